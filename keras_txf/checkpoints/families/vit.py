"""ViT, its masked autoencoder, I-JEPA, DeiT, DINOv2 (with registers too) and DINOv3: images as patches."""

import numpy as np

from keras_txf import checks, models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.family import POOLER, Family, Task, classes, sizes
from keras_txf.checkpoints.weight_map import ONE_ROW, Tensor, Transform, projections, stacked
from keras_txf.layers import AxialRotary

ONE_VECTOR = Transform(lambda x: x[0, 0], lambda x: x[None, None])
EMBEDDING = {
    "embedding/class_token": Tensor("embeddings.cls_token", other=ONE_VECTOR),
    "embedding/position/embeddings": Tensor("embeddings.position_embeddings", other=ONE_ROW),
    "encoder_norm": "layernorm",
}
ATTENTION = projections(
    "encoder_{i}/attention", "encoder.layer.{i}.attention",
    ("attention.query", "attention.key", "attention.value", "output.dense"),
)  # fmt: skip
BODY = {
    **EMBEDDING,
    **ATTENTION,
    "encoder_{i}/attention_norm": "encoder.layer.{i}.layernorm_before",
    "encoder_{i}/feed_forward/intermediate": "encoder.layer.{i}.intermediate.dense",
    "encoder_{i}/feed_forward/output": "encoder.layer.{i}.output.dense",
    "encoder_{i}/feed_forward_norm": "encoder.layer.{i}.layernorm_after",
}
MAE = {**BODY, "embedding/position": Tensor("embeddings.position_embeddings", other=ONE_ROW)}
DEIT = {**BODY, "embedding/distillation_token": Tensor("embeddings.distillation_token", other=ONE_VECTOR)}
OF_DINO = {
    "encoder_{i}/attention_norm": "layer.{i}.norm1",
    "encoder_{i}/attention_scale/gamma": "layer.{i}.layer_scale1.lambda1",
    "encoder_{i}/feed_forward_norm": "layer.{i}.norm2",
    "encoder_{i}/feed_forward_scale/gamma": "layer.{i}.layer_scale2.lambda1",
}
DINOV2 = {**EMBEDDING, **ATTENTION, **{path: f"encoder.{name}" for path, name in OF_DINO.items()}}
REGISTERS = {"embedding/register_tokens": Tensor("embeddings.register_tokens", other=ONE_ROW)}
DINOV3 = {  # its projections have the same names as in Llama
    **{
        path.replace("decoder_", "encoder_"): name.replace("layers.", "layer.").replace("self_attn", "attention")
        for path, name in llama.BODY.items()
    },
    **OF_DINO,
    **REGISTERS,
    "embedding/class_token": EMBEDDING["embedding/class_token"],
}


def renamed(blocks):
    """Returns the names of attention's projections in transformers 5; `blocks` is the name of the list of blocks."""
    layer, new = r"encoder\.layer\.(\d+)\.attention", rf"{blocks}.\1.attention"
    parts = {rf"{layer}\.attention\.{part}": f"{new}.{part[0]}_proj" for part in ("query", "key", "value")}
    return {**parts, rf"{layer}\.output\.dense": f"{new}.o_proj"}


RENAMED = {
    **renamed("layers"),
    r"encoder\.layer\.(\d+)\.intermediate\.dense": r"layers.\1.mlp.fc1",
    r"encoder\.layer\.(\d+)\.output\.dense": r"layers.\1.mlp.fc2",
    r"encoder\.layer\.(\d+)\.(layernorm_\w+)": r"layers.\1.\2",
}


def pairs(c):
    """Returns height and width of images, and of patches."""
    return checks.pair("image_size", c("image_size", 224)), checks.pair("patch_size", c("patch_size", 16))


def patch(c, name="embeddings.patch_embeddings.projection"):
    """Returns the row of the patches' kernel.

    The kernel is (dim, channels, height, width) in files, (height · width · channels, dim) here.
    """
    shape = (*pairs(c)[1], c("num_channels", 3), c("hidden_size"))
    kernel = Transform(
        lambda x: np.transpose(x, (2, 3, 1, 0)).reshape(-1, x.shape[0]),
        lambda x: np.transpose(x.reshape(shape), (3, 2, 0, 1)),
    )
    return {"embedding/patch": Tensor(name, kernel)}


def square(c, key, default):
    """Returns the side of a square.

    Raises ValueError for other sizes: transformers has no positions for them, or treats them as squares.
    """
    height, width = checks.pair(key, c(key, default))
    if height != width:
        raise ValueError(f"config.json must have a square as `{key}`; received {height} and {width}.")
    return height


def dinov2_table(c):
    block = "encoder.layer.{i}.mlp"
    inner = {"encoder_{i}/feed_forward/intermediate": f"{block}.fc1", "encoder_{i}/feed_forward/output": f"{block}.fc2"}
    if c("use_swiglu_ffn", False):
        wide = [f"encoder_{{i}}/feed_forward/{part}" for part in ("gate", "intermediate")]
        inner = {**stacked(f"{block}.weights_in", wide), "encoder_{i}/feed_forward/output": f"{block}.weights_out"}
    return {**DINOV2, **patch(c), **inner}


def images(c):
    return {
        "image_size": c("image_size", 224),
        "patch_size": c("patch_size", 16),
        "channels": c("num_channels", 3),
        **sizes(c, vocab_size=None),
        "activation": c.activation("hidden_act", "gelu"),
        "norm_epsilon": c("layer_norm_eps", 1e-12),
    }


def body(c):
    return {
        **images(c),
        "attention_bias": c("qkv_bias", True),
        "attention_output_bias": True,
        "dropout": c("hidden_dropout_prob", 0.0),
        "attention_dropout": c("attention_probs_dropout_prob", 0.0),
    }


def vit(c):
    return {**body(c), "intermediate_dim": c("intermediate_size")}


def vit_mae(c):
    c.only("hidden_dropout_prob", 0.0)  # the blocks' rate, not the embedding's; no published file has another value
    return {**vit(c), "position_encoding": "fixed"}


def ijepa(c):
    return {**vit(c), "class_token": False}


def deit(c):
    return {**vit(c), "distillation_token": True}


def dinov2(c):
    c.only("hidden_dropout_prob", 0.0)  # rate of the embedding alone; no published file has another value
    square(c, "image_size", 224)
    number, inner, gated = c("num_hidden_layers"), int(c("hidden_size") * c("mlp_ratio", 4)), c("use_swiglu_ffn", False)
    activation = c.activation("hidden_act", "gelu")
    return {
        **body(c),
        "intermediate_dim": (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner,
        "gated": gated,
        "activation": "silu" if gated else activation,
        "layer_scale": c("layerscale_value", 1.0),
        "stochastic_depth": [c("drop_path_rate", 0.0)] * number,
    }


def registers(c, default):
    """Returns the number of registers; raises ValueError for 0, for which transformers writes an empty tensor."""
    if not (number := c("num_register_tokens", default)):
        raise ValueError("config.json must have at least 1 for `num_register_tokens`; received 0.")
    return number


def dinov2_with_registers(c):
    return {**dinov2(c), "register_tokens": registers(c, 4)}


def dinov3(c):
    c.only("value_bias", c("query_bias", True))
    number = registers(c, 0)
    grid = [size // patch for size, patch in zip(*pairs(c))]
    return {
        **images(c),
        "intermediate_dim": c("intermediate_size"),
        "gated": c("use_gated_mlp", False),
        "attention_bias": c("query_bias", True),
        "attention_key_bias": c("key_bias", False),
        "attention_output_bias": c("proj_bias", True),
        "feed_forward_bias": c("mlp_bias", True),
        "dropout": 0.0,
        "attention_dropout": c("attention_dropout", 0.0),
        "stochastic_depth": [c("drop_path_rate", 0.0)] * c("num_hidden_layers"),
        "layer_scale": c("layerscale_value", 1.0),
        "register_tokens": number,
        "position": AxialRotary(grid, c("rope_theta", 100.0), 1 + number, name="rotary"),
    }


def tasks(name, options=lambda c: {}, head=None):
    return {
        "image_encoder": Task(f"{name}Model", models.image_encoder, whole=False),
        "image_classification": classes(
            f"{name}ForImageClassification", models.image_classifier, {**(head or {}), "logits": "classifier"}, options
        ),
    }


OF_BACKBONES = ("apply_layernorm", "reshape_hidden_states", "out_features", "out_indices", "stage_names")
MASK = (r"embeddings\.mask_token",)  # tensor of a head that is not built
POOLED = ("encoder_stride", "pooler_act", "pooler_output_size")  # keys of other heads
FAMILIES = {
    "vit": Family(
        vit, lambda c: {**BODY, **patch(c)}, tasks("ViT"), "vit.", MASK, (POOLER,), neutral=POOLED, renamed=RENAMED
    ),
    "vit_mae": Family(
        vit_mae,
        lambda c: {**MAE, **patch(c)},
        {"image_encoder": Task("ViTMAEModel", models.image_encoder, whole=False)},
        "vit.",
        # Keys of the pretraining, which hides patches and draws them again.
        neutral=("mask_ratio", "norm_pix_loss", "decoder_hidden_size", "decoder_num_hidden_layers",
                 "decoder_num_attention_heads", "decoder_intermediate_size"),
        renamed=RENAMED,
    ),
    "ijepa": Family(
        ijepa,
        lambda c: {**BODY, **patch(c)},
        tasks("IJepa", lambda c: {"pooling": "mean"}),
        "ijepa.",
        MASK,
        (POOLER,),
        neutral=POOLED,
        renamed=RENAMED,
    ),
    "deit": Family(
        deit,
        lambda c: {**DEIT, **patch(c)},
        {
            **tasks("DeiT"),
            "distilled_image_classification": classes(
                "DeiTForImageClassificationWithTeacher",
                models.image_classifier,
                {"logits": "cls_classifier", "distillation_logits": "distillation_classifier"},
                lambda c: {"distillation_head": True},
            ),
        },
        "deit.",
        MASK,
        (POOLER,),
        neutral=POOLED,
        renamed=RENAMED,
    ),
    "dinov2": Family(
        dinov2,
        dinov2_table,
        tasks("Dinov2", lambda c: {"pooling": "first_and_others"}),
        "dinov2.",
        kept=MASK,
        # Keys of backbones.
        neutral=(*OF_BACKBONES, "use_mask_token"),
        renamed=renamed("encoder.layer"),
    ),
    "dinov2_with_registers": Family(
        dinov2_with_registers,
        lambda c: {**dinov2_table(c), **REGISTERS},
        tasks("Dinov2WithRegisters", lambda c: {"pooling": "first_and_others"}),
        "dinov2_with_registers.",
        kept=MASK,
        neutral=OF_BACKBONES,
        renamed=renamed("encoder.layer"),
    ),
    "dinov3_vit": Family(
        dinov3,
        lambda c: {**DINOV3, **patch(c, "embeddings.patch_embeddings")},
        {"image_encoder": Task("DINOv3ViTModel", models.image_encoder, whole=False)},
        kept=MASK,
        # Keys of backbones, and of moved positions in training, which we do not support.
        neutral=(*OF_BACKBONES, "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"),
        renamed={r"layer\.(.*)": r"model.layer.\1"},
    ),
}  # fmt: skip
