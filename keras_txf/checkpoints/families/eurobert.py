"""EuroBERT: an encoder of Llama's blocks."""

from keras_txf import models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.family import Family, Task, classes, encoder_task

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
    c.not_read("clf_pooling", pooling)  # its name in the code of the first folders
    return {"pooling": POOLINGS.get(pooling), "head_activation": "gelu", "pool_after_head": pooling == "late"}


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
                lambda c: {"head_activation": None, "logit_bias": c("mlp_bias", False)},
            ),
            "sequence_classification": classes(
                "EuroBertForSequenceClassification",
                models.encoder_classifier,
                {"head": "dense", "logits": "classifier"},
                pooled,
            ),
            "token_classification": classes(
                "EuroBertForTokenClassification", models.token_classifier, {"logits": "classifier"}
            ),
        },
        "model.",
        (r".*rotary_emb\.inv_freq",),
        # In the first files.
        neutral=("bos_token", "eos_token", "mask_token", "pad_token", "hidden_dropout", "layer_norm_eps"),
    )
}
