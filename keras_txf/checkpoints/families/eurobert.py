"""EuroBERT: an encoder with the blocks of Llama."""

from keras_txf import models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.family import Family, Task, classes, encoder_task
from keras_txf.layers import Pooling
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.projections import Projection
from keras_txf.layers.serialization import register

BODY = {path.replace("decoder_", "encoder_"): name for path, name in llama.BODY.items()}
POOLINGS = {"late": "mean", "mean": "mean", "bos": "first"}  # `classifier_pooling` -> the kind of `Pooling`


def options(c):
    return {
        **llama.options(c),
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "pad_id": c.pad_id(128001),
        "attention_bias": c("attention_bias", False),
        "feed_forward_bias": c("mlp_bias", False),
    }


def pooled(c):
    c.only("classifier_pooling", *POOLINGS)
    pooling = c("classifier_pooling", "late")
    c.not_read("clf_pooling", pooling)  # the key's name in the code of the first folders
    if pooling == "late":
        return {"pooling": LatePooling("gelu")}
    return {"pooling": POOLINGS.get(pooling), "head": "gelu"}


def class_table(c):
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
    "eurobert": Family(
        options,
        BODY,
        {
            "encoder": encoder_task("EuroBertModel"),
            "masked_lm": Task(
                "EuroBertForMaskedLM",
                models.masked_language_model,
                {"logits": "lm_head", "logit_adjustment/bias": "lm_head.bias"},
                lambda c: {"head": None, "logit_bias": c("mlp_bias", False)},
            ),
            "sequence_classification": classes(
                "EuroBertForSequenceClassification", models.encoder_classifier, class_table, pooled
            ),
            "token_classification": classes(
                "EuroBertForTokenClassification", models.token_classifier, {"logits": "classifier"}
            ),
        },
        "model.",
        (r".*rotary_emb\.inv_freq",),
        # Keys of the first files.
        neutral=("bos_token", "eos_token", "mask_token", "pad_token", "hidden_dropout", "layer_norm_eps"),
    )
}
