"""ViT: images as sequences of patches."""

import numpy as np

from keras_txf import checks, models
from keras_txf.checkpoints.family import POOLER, Family, Task, classes
from keras_txf.checkpoints.weight_map import Tensor, Transform

BODY = {
    "embedding/class_token": Tensor(
        "embeddings.cls_token", other=Transform(lambda x: x[0, 0], lambda x: x[None, None])
    ),
    "embedding/position/embeddings": Tensor(
        "embeddings.position_embeddings", other=Transform(lambda x: x[0], lambda x: x[None])
    ),
    "encoder_{i}/attention/query": "encoder.layer.{i}.attention.attention.query",
    "encoder_{i}/attention/key": "encoder.layer.{i}.attention.attention.key",
    "encoder_{i}/attention/value": "encoder.layer.{i}.attention.attention.value",
    "encoder_{i}/attention/output": "encoder.layer.{i}.attention.output.dense",
    "encoder_{i}/attention_norm": "encoder.layer.{i}.layernorm_before",
    "encoder_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "encoder_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "encoder_{i}/feed_forward_norm": "encoder.layer.{i}.layernorm_after",
    "encoder_norm": "layernorm",
}

RENAMED = {
    **{
        rf"encoder\.layer\.(\d+)\.attention\.attention\.{part}": rf"layers.\1.attention.{part[0]}_proj"
        for part in ("query", "key", "value")
    },
    r"encoder\.layer\.(\d+)\.attention\.output\.dense": r"layers.\1.attention.o_proj",
    r"encoder\.layer\.(\d+)\.intermediate\.dense": r"layers.\1.mlp.fc1",
    r"encoder\.layer\.(\d+)\.output\.dense": r"layers.\1.mlp.fc2",
    r"encoder\.layer\.(\d+)\.(layernorm_\w+)": r"layers.\1.\2",
}


def table(c):
    """With the kernel of patches: (dim, channels, height, width) there, (height · width · channels, dim) here."""
    height, width = checks.pair("patch_size", c("patch_size", 16))
    shape = (height, width, c("num_channels", 3), c("hidden_size"))
    kernel = Transform(
        lambda x: np.transpose(x, (2, 3, 1, 0)).reshape(-1, x.shape[0]),
        lambda x: np.transpose(x.reshape(shape), (3, 2, 0, 1)),
    )
    return {**BODY, "embedding/patch": Tensor("embeddings.patch_embeddings.projection", kernel)}


def options(c):
    return {
        "image_size": c("image_size", 224),
        "patch_size": c("patch_size", 16),
        "channels": c("num_channels", 3),
        "num_layers": c("num_hidden_layers"),
        "dim": c("hidden_size"),
        "num_heads": c("num_attention_heads"),
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_act", "gelu"),
        "attention_bias": c("qkv_bias", True),
        "attention_output_bias": True,
        "norm_epsilon": c("layer_norm_eps", 1e-12),
        "dropout": c("hidden_dropout_prob", 0.0),
        "attention_dropout": c("attention_probs_dropout_prob", 0.0),
    }


FAMILIES = {
    "vit": Family(
        options,
        table,
        {
            "image_encoder": Task("ViTModel", models.image_encoder, whole=False),
            "image_classification": classes(
                "ViTForImageClassification", models.image_classifier, {"logits": "classifier"}
            ),
        },
        "vit.",
        kept=(POOLER,),
        neutral=("encoder_stride", "pooler_act", "pooler_output_size"),  # of other heads
        renamed=RENAMED,
    )
}
