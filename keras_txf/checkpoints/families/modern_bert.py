"""ModernBERT and its decoder: pre-norm blocks with rotary positions, gated feed-forward networks and windows."""

from keras_txf import models
from keras_txf.checkpoints.families.rotary import positions, windows
from keras_txf.checkpoints.family import Family, Task, classes, decoder_tasks, encoder_task, for_both, sizes, spans
from keras_txf.checkpoints.weight_map import query_key_value, stacked
from keras_txf.layers import Residual
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.norms import make_norm
from keras_txf.layers.projections import Projection
from keras_txf.layers.serialization import register

BODY = {
    "embedding/token": "embeddings.tok_embeddings",
    "encoder_embedding_norm": "embeddings.norm",
    **query_key_value("layers.{i}.attn.Wqkv", path="encoder_{i}/attention"),
    "encoder_{i}/attention/output": "layers.{i}.attn.Wo",
    "encoder_{i}/attention_norm": "layers.{i}.attn_norm",
    **stacked("layers.{i}.mlp.Wi", ["encoder_{i}/feed_forward/gate", "encoder_{i}/feed_forward/intermediate"]),
    "encoder_{i}/feed_forward/output": "layers.{i}.mlp.Wo",
    "encoder_{i}/feed_forward_norm": "layers.{i}.mlp_norm",
    "encoder_norm": "final_norm",
}
DECODER = {
    **{path.replace("encoder_", "decoder_"): row for path, row in BODY.items()},
    **{f"decoder_{{i}}/attention/{part}": f"layers.{{i}}.attn.{part[0]}_proj" for part in ("query", "key", "value")},
}
HEAD = {"head/dense": "head.dense", "head/norm": "head.norm"}
LOGITS = {"logits": "decoder", "logit_adjustment/bias": "decoder.bias"}
CLASSES = {**HEAD, "logits": "classifier"}


@register
class FirstResidual(Residual):
    """The residual stream of the first block, whose attention has no norm, because a norm follows the embedding."""

    def norms_of(self, block, sublayer):
        return [] if sublayer == "attention" else super().norms_of(block, sublayer)


@register
class NormedHead(Layer):
    """A Dense layer with an activation and a layer norm, (..., D) -> (..., D)."""

    weight_splits = {"dense": "whole"}

    def __init__(self, activation="gelu", use_bias=False, norm_epsilon=1e-5, norm_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.activation, self.use_bias = activation, use_bias
        self.norm_epsilon, self.norm_bias = norm_epsilon, norm_bias
        self.supports_masking = True

    def build(self, inputs_shape):
        dtype = self.dtype_policy
        self.dense = Projection(inputs_shape[-1], use_bias=self.use_bias, dtype=dtype, name="dense")
        self.norm = make_norm("layer", self.norm_epsilon, dtype, "norm", self.norm_bias)
        self.dense.build(inputs_shape)
        self.norm.build(inputs_shape)
        self.activation_function = get_activation("activation", self.activation)

    def call(self, inputs):
        return self.norm(self.activation_function(self.dense(inputs)))


def options(c):
    number, every = c("num_hidden_layers"), c("global_attn_every_n_layers", 3)
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(number)]
    kinds = c.each("layer_types", number, kinds)
    c.only("sparse_prediction", False)
    bases = {"full_attention": c("global_rope_theta", 160000.0), "sliding_attention": c("local_rope_theta", 10000.0)}
    return {
        **sizes(c),
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_activation", "gelu"),
        "gated": True,
        "norm_placement": "pre",
        "residual": [FirstResidual(), *["sequential"] * (number - 1)],
        "norm_epsilon": c("norm_eps", 1e-5),
        "norm_bias": c("norm_bias", False),
        "attention_bias": c("attention_bias", False),
        "feed_forward_bias": c("mlp_bias", False),
        "dropout": c("embedding_dropout", 0.0),
        "attention_dropout": c("attention_dropout", 0.0),
        "feed_forward_dropout": c("mlp_dropout", 0.0),
        # A token attends to half of `local_attention` on each side, and to itself.
        "window": windows(kinds, c("local_attention", 128) // 2 + 1),
        "position": positions(c, kinds, bases, scaled=tuple(bases)),
        "position_encoding": None,
        "max_length": c("max_position_embeddings", 8192),
        "pad_id": c.pad_id(50283),
        "scale_embedding": False,
        "embedding_norm": True,
    }


def decoder(c):
    found, width = options(c), c("sliding_window", c("local_attention", 128) // 2)  # includes the token itself
    window = [width if window else None for window in found["window"]]
    return {**found, "window": window, "pad_id": c.pad_id_of_decoder(50283)}


def head(c):
    own = c("classifier_bias", False), c("norm_eps", 1e-5), c("norm_bias", False)
    return {"head": NormedHead(c.activation("classifier_activation", "gelu"), *own)}


def class_head(c):
    return {**head(c), "head_dropout": c("classifier_dropout", 0.0)}


def pooling(c):
    c.only("classifier_pooling", "cls", "mean")
    return {"pooling": "mean" if c("classifier_pooling", "cls") == "mean" else "first"}


# Keys of the first files without an effect. The model has no position embeddings, even if the last key asks for them.
NEUTRAL = (
    "reference_compile", "repad_logits_with_grad", "deterministic_flash_attn", "sparse_pred_ignore_index",
    "layer_norm_eps", "position_embedding_type",
)  # fmt: skip
FAMILIES = {
    "modernbert": Family(
        options,
        BODY,
        {
            "encoder": encoder_task("ModernBertModel"),
            "masked_lm": Task(
                "ModernBertForMaskedLM",
                models.masked_language_model,
                {**HEAD, **LOGITS},
                lambda c: {**head(c), "logit_bias": c("decoder_bias", True)},
            ),
            "sequence_classification": classes(
                "ModernBertForSequenceClassification", models.encoder_classifier, CLASSES,
                lambda c: {**class_head(c), **pooling(c)},
            ),
            "token_classification": classes(
                "ModernBertForTokenClassification", models.token_classifier, CLASSES, class_head
            ),
            "question_answering": spans("ModernBertForQuestionAnswering", CLASSES, class_head),
        },
        "model.",
        (r".*rotary_emb\..*inv_freq",),
        neutral=NEUTRAL,
    ),
    "modernbert-decoder": Family(
        decoder,
        for_both(DECODER),
        decoder_tasks(
            "ModernBertDecoder",
            Task(
                "ModernBertDecoderForCausalLM",
                models.decoder_generator,
                {"head/dense": "lm_head.dense", "head/norm": "lm_head.norm", **LOGITS},
                lambda c: {**head(c), "logit_bias": c("decoder_bias", True)},
            ),
            sequences=(CLASSES, lambda c: {**class_head(c), "logit_bias": c("classifier_bias", False)}),
            tokens=None,
            pad_id=50283,
        ),
        "model.",
        (r".*rotary_emb\..*inv_freq",),
        neutral=(*NEUTRAL, "classifier_pooling"),  # the decoder's classifier takes the last token
    ),
}  # fmt: skip
