"""LFM2, Qwen3-Next and the text model of Qwen 3.5: attention in some blocks, another mixer of tokens in the others.

LFM2 has short convolutions there, Qwen3-Next and Qwen 3.5 have the gated delta rule. All three have variants with experts
instead of the feed-forward network.
"""

import dataclasses
import math

import numpy as np

from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.mixtures import PART, separate_experts
from keras_txf.checkpoints.weight_map import OUT_PROJ, Tensor, Transform, as_tensor, projections
from keras_txf.layers import ShortConvolution

ATTENTION, FULL = "decoder_{i}/attention", "full_attention"
DEPTHWISE = Transform(lambda x: np.transpose(x[:, 0]), lambda x: np.transpose(x)[:, None])  # (C, 1, K) <-> (K, C)


def kinds_of(c, other, default=None):
    """Returns the kind of each block, `other` or "full_attention"."""
    kinds = c.each("layer_types", c("num_hidden_layers"), default)
    unknown = sorted(set(kinds) - {FULL, other})
    if unknown:
        raise ValueError(f"config.json must have `layer_types` of {FULL!r} and {other!r}; received {unknown}.")
    return kinds


def with_mixer(options, kinds, mixer):
    """Returns the options with another layer instead of the attention in each block without full attention."""
    return {**options, "attention": [None if kind == FULL else mixer for kind in kinds]}


def of_blocks(table, kinds, kind):
    """Returns the rows of a table for the blocks of one kind. They come before the rows of all blocks."""
    rows = {path: as_tensor(row) for path, row in table.items()}
    return {
        path.replace("{i}", str(i)): dataclasses.replace(row, name=row.name.replace("{i}", str(i)))
        for i, own in enumerate(kinds)
        if own == kind
        for path, row in rows.items()
    }


LFM2 = {
    **BODY,
    **projections(ATTENTION, "layers.{i}.self_attn", OUT_PROJ),
    f"{ATTENTION}/query_norm": "layers.{i}.self_attn.q_layernorm",
    f"{ATTENTION}/key_norm": "layers.{i}.self_attn.k_layernorm",
    f"{ATTENTION}_norm": "layers.{i}.operator_norm",
    "decoder_{i}/feed_forward/gate": "layers.{i}.feed_forward.w1",
    "decoder_{i}/feed_forward/intermediate": "layers.{i}.feed_forward.w3",
    "decoder_{i}/feed_forward/output": "layers.{i}.feed_forward.w2",
    "decoder_{i}/feed_forward_norm": "layers.{i}.ffn_norm",
    "decoder_norm": "embedding_norm",
}
CONVOLUTION = {
    f"{ATTENTION}/input": "layers.{i}.conv.in_proj",
    f"{ATTENTION}/convolution_kernel": Tensor("layers.{i}.conv.conv.weight", other=DEPTHWISE),
    f"{ATTENTION}/convolution_bias": "layers.{i}.conv.conv.bias",
    f"{ATTENTION}/output": "layers.{i}.conv.out_proj",
}
LFM2_MOE = {
    **LFM2,
    **{
        path: row
        for path, row in separate_experts(
            "layers.{i}.feed_forward.experts", "layers.{i}.feed_forward.gate", ("w1", "w3", "w2")
        ).items()
        if path not in BODY
    },
    f"{PART}e_score_correction_bias": "layers.{i}.feed_forward.expert_bias",
}
LFM2_NEUTRAL = ("block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init")


def lfm2_kinds(c):
    number, attends = c("num_hidden_layers"), c("full_attn_idxs", None)
    return kinds_of(c, "conv", [FULL if attends is None or i in attends else "conv" for i in range(number)])


def lfm2_body(c, kinds):
    """Returns the options that LFM2 shares with its variant with experts."""
    dim, epsilon = c("hidden_size"), c("norm_eps", 1e-5)
    # The class in transformers does not read these keys, most of which are of the code before it.
    for key, value in (("hidden_act", "silu"), ("attention_dropout", 0.0), ("block_use_swiglu", True),
                       ("use_pos_enc", True), ("num_heads", c("num_attention_heads")), ("block_norm_eps", epsilon),
                       *((key, dim) for key in ("block_dim", "conv_dim", "conv_dim_out"))):  # fmt: skip
        c.not_read(key, value)
    options = {
        **llama.options(c, 1000000.0, 0, "norm_eps", used=[kind == FULL for kind in kinds]),
        "num_key_value_heads": c("num_key_value_heads", 8),
        "norm_epsilon": epsilon,
        "qk_norm": True,
    }
    return with_mixer(options, kinds, ShortConvolution(c("conv_L_cache", 3), c("conv_bias", False), name="attention"))


def lfm2(c):
    width, step = c("intermediate_size"), c("block_multiple_of", 256)
    adjusted = int(c("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    if c("block_auto_adjust_ff_dim", True):
        width = math.ceil(adjusted / step) * step
    return {**lfm2_body(c, lfm2_kinds(c)), "intermediate_dim": width}


FAMILIES = {
    "lfm2": family(
        "Lfm2",
        lfm2,
        lambda c: {**of_blocks(CONVOLUTION, lfm2_kinds(c), "conv"), **LFM2},
        LFM2_NEUTRAL,
        sequences=False,
        tokens=None,
    ),
}
