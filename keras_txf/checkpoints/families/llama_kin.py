"""Phi-3, StarCoder 2, OLMo 2 and 3, Granite, ERNIE 4.5, Seed-OSS and EuroBERT.

They are Llama with other norms, projections, factors, or as an encoder.
"""

from keras_txf import models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.rotary import positions, windows
from keras_txf.checkpoints.family import Family, Task, classes, encoder_task
from keras_txf.checkpoints.weight_map import query_key_value, stacked
from keras_txf.layers import Pooling
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.projections import Projection
from keras_txf.layers.serialization import register

PHI3 = {
    **BODY,
    **query_key_value("layers.{i}.self_attn.qkv_proj"),
    **stacked(
        "layers.{i}.mlp.gate_up_proj", [f"decoder_{{i}}/feed_forward/{part}" for part in ("gate", "intermediate")]
    ),
}
STARCODER2 = {
    **BODY,
    "decoder_{i}/feed_forward/intermediate": "layers.{i}.mlp.c_fc",
    "decoder_{i}/feed_forward/output": "layers.{i}.mlp.c_proj",
}
OLMO2 = {
    **BODY,
    "decoder_{i}/attention_norm": "layers.{i}.post_attention_layernorm",
    "decoder_{i}/feed_forward_norm": "layers.{i}.post_feedforward_layernorm",
}
EUROBERT = {path.replace("decoder_", "encoder_"): name for path, name in BODY.items()}
POOLINGS = {"late": "mean", "mean": "mean", "bos": "first"}  # `classifier_pooling` -> the kind of `Pooling`


def phi3(c):
    scaling = c("rope_scaling", None) or c("rope_parameters", None) or {}
    if "yarn" in (scaling.get("rope_type"), scaling.get("type")) and "short_factor" not in scaling:
        raise ValueError(
            "config.json has rotary positions of type 'yarn', which means 'longrope' in Phi-3 and needs 'short_factor'."
        )
    # Keys for the code in Phi's folders, which the class in transformers does not read.
    for key, neutral in (("attention_bias", False), ("mlp_bias", False), ("lm_head_bias", False),
                         ("full_attn_mod", 1), ("interpolate_factor", 1)):  # fmt: skip
        c.not_read(key, neutral)
    return {
        **llama.options(c, pad_id=32000, fraction=1.0),
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "window": c("sliding_window", None),
        "dropout": c("resid_pdrop", 0.0),
        "embedding_dropout": 0.0,
    }


def starcoder2(c):
    return {
        **llama.options(c, epsilon="norm_epsilon"),
        "activation": c.activation("hidden_act", "gelu_pytorch_tanh"),
        "gated": False,
        "use_bias": c("use_bias", True),
        "norm": "layer",
        "norm_bias": True,
        "norm_epsilon": c("norm_epsilon", 1e-5),
        "window": c("sliding_window", None),
        "dropout": c("residual_dropout", 0.0),
        "embedding_dropout": c("embedding_dropout", 0.0),
    }


def olmo2(c):
    return {
        **llama.options(c, pad_id=1),
        "norm_placement": "res_post",
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "qk_norm": "full",
        "attention_bias": c("attention_bias", False),
    }


def olmo3(c):
    number = c("num_hidden_layers")
    kinds = ["sliding_attention" if (i + 1) % 4 else "full_attention" for i in range(number)]
    kinds = c.each("layer_types", number, kinds)
    # A `rope_theta` outside of `rope_parameters` is for full attention alone.
    bases = {"full_attention": c("rope_theta", 500000.0), "sliding_attention": 500000.0}
    return {**olmo2(c), "window": windows(kinds, c("sliding_window", 4096)), "position": positions(c, kinds, bases)}


def ernie(c):
    return {**llama.options(c, 500000.0, pad_id=0, interleaved=True), "use_bias": c("use_bias", False)}


def seed_oss(c):
    return {
        **llama.options(c, pad_id=1),
        "attention_bias": c("attention_bias", True),
        "attention_output_bias": c("attention_out_bias", False),
        "feed_forward_bias": c("mlp_bias", False),
        "dropout": c("residual_dropout", 0.1),
        "embedding_dropout": 0.0,
    }


def granite(c):
    return {
        **llama.llama(c),
        "scale_embedding": c("embedding_multiplier", 1.0),
        "residual_scale": c("residual_multiplier", 1.0),
        "scale": c("attention_multiplier", 1.0),
        "logit_scale": 1 / c("logits_scaling", 1.0),
    }


def eurobert(c):
    return {
        **llama.options(c),
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "pad_id": c.pad_id(128001),
        "attention_bias": c("attention_bias", False),
        "feed_forward_bias": c("mlp_bias", False),
    }


def eurobert_pooling(c):
    c.only("classifier_pooling", *POOLINGS)
    pooling = c("classifier_pooling", "late")
    c.not_read("clf_pooling", pooling)  # the key's name in the code of the first folders
    if pooling == "late":
        return {"pooling": LatePooling("gelu")}
    return {"pooling": POOLINGS.get(pooling), "head": "gelu"}


def eurobert_classes(c):
    late = c("classifier_pooling", "late") == "late"
    return {"pooling/dense" if late else "head": "dense", "logits": "classifier"}


@register
class LatePooling(Layer):
    """The mean of all tokens after a Dense layer and its activation, (B, T, D) -> (B, D)."""

    weight_splits = {"dense": "whole"}

    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        self.activation = activation
        self.pooling = Pooling("mean", dtype=self.dtype_policy, name="pooling")

    def build(self, inputs_shape):
        self.dense = Projection(inputs_shape[-1], dtype=self.dtype_policy, name="dense")
        self.dense.build(inputs_shape)
        self.activation_function = get_activation("activation", self.activation)

    def call(self, inputs, mask=None):
        return self.pooling(self.activation_function(self.dense(inputs)), mask=mask)

    def compute_mask(self, inputs, previous_mask=None):
        return None


FAMILIES = {
    "phi3": family("Phi3", phi3, PHI3, ("embd_pdrop",), pad_id=32000),
    "starcoder2": family(  # files of StarCoder 2 have keys of GPT BigCode, which its class does not read
        "Starcoder2", starcoder2, STARCODER2,
        ("activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
         "scale_attention_softmax_in_fp32", "scale_attn_weights"),
    ),
    "olmo2": family("Olmo2", olmo2, OLMO2, tokens=None, pad_id=1),
    "olmo3": family("Olmo3", olmo3, OLMO2, tokens=None, pad_id=1),
    "ernie4_5": family("Ernie4_5", ernie, sequences=False, tokens=None),
    "seed_oss": family("SeedOss", seed_oss, pad_id=1),
    "granite": family("Granite", granite, sequences=False, tokens=None),
    "eurobert": Family(
        eurobert,
        EUROBERT,
        {
            "encoder": encoder_task("EuroBertModel"),
            "masked_lm": Task(
                "EuroBertForMaskedLM",
                models.masked_language_model,
                {"logits": "lm_head", "logit_adjustment/bias": "lm_head.bias"},
                lambda c: {"head": None, "logit_bias": c("mlp_bias", False)},
            ),
            "sequence_classification": classes(
                "EuroBertForSequenceClassification", models.encoder_classifier, eurobert_classes, eurobert_pooling
            ),
            "token_classification": classes(
                "EuroBertForTokenClassification", models.token_classifier, {"logits": "classifier"}
            ),
        },
        "model.",
        (r".*rotary_emb\.inv_freq",),
        # Keys of the first files.
        neutral=("bos_token", "eos_token", "mask_token", "pad_token", "hidden_dropout", "layer_norm_eps"),
    ),
}  # fmt: skip
