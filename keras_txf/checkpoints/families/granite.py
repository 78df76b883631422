"""Granite with experts: GraniteMoe, GraniteMoeShared, and Granite 4, whose blocks are mostly Mamba 2."""

import dataclasses
import itertools
import math

from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.mixtures import PART, experts, with_moe_layers
from keras_txf.checkpoints.family import kinds_from
from keras_txf.checkpoints.weight_map import DEPTHWISE, EACH_TRANSPOSED, TRANSPOSED, Tensor, stacked
from keras_txf.layers import Mamba2

MOE, SHARED, MAMBA = "layers.{i}.block_sparse_moe", "layers.{i}.shared_mlp", "layers.{i}.mamba"
GATED = ("gate", "intermediate")


def shared(path):
    """Returns the rows of the network that all tokens use."""
    return {
        **stacked(f"{SHARED}.input_linear", [f"{path}{name}" for name in GATED]),
        f"{path}output": f"{SHARED}.output_linear",
    }


GRANITE = {
    **BODY,
    f"{PART}router": Tensor(f"{MOE}.router.layer.weight", other=TRANSPOSED),
    **stacked(f"{MOE}.input_linear.weight", [f"{PART}{name}_kernel" for name in GATED], other=EACH_TRANSPOSED),
    f"{PART}output_kernel": Tensor(f"{MOE}.output_linear.weight", other=EACH_TRANSPOSED),
    **shared(f"{PART}shared_experts/"),
}
OF_MAMBA = {"input": "in_proj", "A_log": "A_log", "D": "D", "dt_bias": "dt_bias", "norm_scale": "norm.weight",
            "convolution_bias": "conv1d.bias"}  # fmt: skip
HYBRID = {
    **GRANITE,
    "decoder_{i}/attention/convolution_kernel": Tensor(f"{MAMBA}.conv1d.weight", other=DEPTHWISE),
    **{f"decoder_{{i}}/attention/{ours}": f"{MAMBA}.{theirs}" for ours, theirs in OF_MAMBA.items()},
}


def hybrid_table(c):
    """Returns the rows of Granite 4. The output projections of both kinds of blocks have one path of ours."""
    table = {**HYBRID, **({} if c("num_local_experts", 8) else shared(PART))}
    output = "decoder_{i}/attention/output"
    mixers = {
        f"decoder_{i}/attention/output": f"layers.{i}.mamba.out_proj"
        for i, kind in enumerate(layer_types(c))
        if kind == "mamba"
    }
    return {**mixers, output: table.pop(output), **table}


def options(c, used=None):
    """Returns the options of every model of Granite: those of Llama, and factors."""
    return {
        **llama.options(c, used=used),
        "attention_bias": c("attention_bias", False),
        "scale_embedding": c("embedding_multiplier", 1.0),
        "residual_scale": c("residual_multiplier", 1.0),
        "scale": c("attention_multiplier", 1.0),
        "logit_scale": 1 / c("logits_scaling", 1.0),
    }


def with_experts(c, found, width):
    """Returns the options with experts in all blocks, and next to them a network of a width that all tokens use."""
    always = {"num_shared_experts": 1, "shared_intermediate_dim": width} if width else {}
    layer = experts(c, c("num_local_experts", 8), c("intermediate_size"), **always)
    return with_moe_layers(found, [layer] * found["num_layers"])


def moe(c):
    return with_experts(c, options(c), 0)


def moe_shared(c):
    return with_experts(c, options(c), c("shared_intermediate_size", 0))


# The only limits of steps: none. Files of transformers 5 have an object for infinity.
LIMITS = [kind((0.0, top)) for kind, top in itertools.product((list, tuple), (math.inf, {"__float__": "Infinity"}))]
OF_ATTENTION = (
    "num_heads", "num_key_value_heads", "head_dim", "position", "attention_dropout", "attention_bias", "scale"
)  # fmt: skip
KINDS = {"linear_attention": "mamba", "mamba": "mamba", "full_attention": "attention", "attention": "attention"}


def layer_types(c):
    """Returns "mamba" or "attention" for each block. Files of Granite have these words, transformers 5 the others."""
    number = c("num_hidden_layers")
    kinds = c.each("layer_types", number, ["mamba"] * number, KINDS)
    return [KINDS[kind] for kind in kinds]


def hybrid(c):
    c.not_read("normalization_function", "rmsnorm")
    c.only("position_embedding_type", None, "rope", "nope")
    c.only("time_step_limit", None, *LIMITS)
    c.only("hidden_act", "silu")  # also the activation in Mamba2
    kinds = layer_types(c)
    found, heads = options(c, [kind == "attention" for kind in kinds]), c("mamba_n_heads", 128)
    inner = c("mamba_expand", 2) * found["dim"]
    c.only("mamba_d_head", "auto", inner // heads)
    mamba = Mamba2(
        heads, inner // heads, c("mamba_d_state", 256), c("mamba_n_groups", 1), c("mamba_d_conv", 4),
        c("mamba_proj_bias", False), c("mamba_conv_bias", True), found["norm_epsilon"], name="attention",
    )  # fmt: skip
    if c("position_embedding_type", None) != "rope":
        found["position"] = None
    if "attention" not in kinds:
        found = {name: value for name, value in found.items() if name not in OF_ATTENTION}
    found["attention"] = [mamba if kind == "mamba" else None for kind in kinds]
    if c("num_local_experts", 8):
        return with_experts(c, found, c("shared_intermediate_size", 1024))
    for key in ("num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"):
        c.read[key] = c.values.get(key)  # without effect; files of dense models have 0
    return {**found, "intermediate_dim": c("shared_intermediate_size", 1024)}


HEADS = dict(
    renamed={
        r"layers\.(\d+)\.block_sparse_moe\.router\.layer": r"layers.\1.block_sparse_moe.router",
        r"layers\.(\d+)\.block_sparse_moe\.(in|out)put_linear": r"layers.\1.block_sparse_moe.experts",
    },
    sequences=False,
    tokens=None,
)
FAMILIES = {
    "granitemoe": family("GraniteMoe", moe, GRANITE, **HEADS),
    "granitemoeshared": family("GraniteMoeShared", moe_shared, GRANITE, **HEADS),
    "granitemoehybrid": dataclasses.replace(
        family("GraniteMoeHybrid", hybrid, hybrid_table, ("mamba_chunk_size",), **HEADS),
        start=kinds_from(Mamba2, "linear_attention"),
    ),
}
