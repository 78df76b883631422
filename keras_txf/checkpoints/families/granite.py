"""Granite with experts: GraniteMoe, and GraniteMoeShared with a network that all tokens use."""

from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.mixtures import PART, experts, with_moe_layers
from keras_txf.checkpoints.weight_map import EACH_TRANSPOSED, TRANSPOSED, Tensor, stacked

MOE, SHARED = "layers.{i}.block_sparse_moe", "layers.{i}.shared_mlp"
GRANITE = {
    **BODY,
    f"{PART}router": Tensor(f"{MOE}.router.layer.weight", other=TRANSPOSED),
    **stacked(
        f"{MOE}.input_linear.weight", [f"{PART}{name}_kernel" for name in ("gate", "intermediate")],
        other=EACH_TRANSPOSED,
    ),
    f"{PART}output_kernel": Tensor(f"{MOE}.output_linear.weight", other=EACH_TRANSPOSED),
    **stacked(f"{SHARED}.input_linear", [f"{PART}shared_experts/{name}" for name in ("gate", "intermediate")]),
    f"{PART}shared_experts/output": f"{SHARED}.output_linear",
}  # fmt: skip


def options(c):
    """Returns the options of every model of Granite: those of Llama, and factors."""
    return {
        **llama.options(c),
        "attention_bias": c("attention_bias", False),
        "scale_embedding": c("embedding_multiplier", 1.0),
        "residual_scale": c("residual_multiplier", 1.0),
        "scale": c("attention_multiplier", 1.0),
        "logit_scale": 1 / c("logits_scaling", 1.0),
    }


def moe(c, shared_intermediate_dim=0):
    shared = {"num_shared_experts": 1, "shared_intermediate_dim": shared_intermediate_dim}
    layer = experts(c, c("num_local_experts", 8), c("intermediate_size"), **(shared if shared_intermediate_dim else {}))
    return with_moe_layers(options(c), [layer] * c("num_hidden_layers"))


def moe_shared(c):
    return moe(c, c("shared_intermediate_size", 0))


HEADS = dict(
    renamed={r"layers\.(\d+)\.block_sparse_moe\.router\.layer": r"layers.\1.block_sparse_moe.router"},
    sequences=False,
    tokens=None,
)
FAMILIES = {
    "granitemoe": family("GraniteMoe", moe, GRANITE, **HEADS),
    "granitemoeshared": family("GraniteMoeShared", moe_shared, GRANITE, **HEADS),
}
