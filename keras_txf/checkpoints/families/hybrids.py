"""LFM2, Qwen3-Next and the text model of Qwen 3.5: attention in some blocks, another mixer of tokens in the others.

LFM2 has short convolutions there, Qwen3-Next and Qwen 3.5 have the gated delta rule. Some have experts instead of the
feed-forward network.
"""

import dataclasses
import math

from keras import ops

from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.mixtures import PART, QWEN, experts, separate_experts, sparse, with_moe_layers
from keras_txf.checkpoints.family import kinds_from
from keras_txf.checkpoints.weight_map import DEPTHWISE, OUT_PROJ, Tensor, as_tensor, projections, stacked
from keras_txf.checks import short_repr
from keras_txf.layers import GatedDeltaNet, MixtureOfExperts, ShortConvolution
from keras_txf.layers.serialization import register

ATTENTION, FULL = "decoder_{i}/attention", "full_attention"


def kinds_of(c, other, attends):
    """Returns the kind of each block, `other` or "full_attention".

    Args:
        c: the config. `layer_types` goes before the keys that `attends` reads.
        other: name of the other kind.
        attends: function of the config and the number of a block: whether the block has attention by default.
    """
    number, given = c("num_hidden_layers"), c("layer_types", None)
    default = [FULL if attends(c, i) else other for i in range(number)]
    return default if given is None else c.each("layer_types", number, allowed=(FULL, other))


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


def lfm2_attends(c, i):
    numbers = c("full_attn_idxs", None)
    return numbers is None or i in numbers


def lfm2_kinds(c):
    return kinds_of(c, "conv", lfm2_attends)


def lfm2_body(c):
    """Returns the options that LFM2 shares with its variant with experts."""
    names = c.values.get("architectures")  # not a key of the model, for which `derive_config` would try values
    if "Bidirectional" in str(names):
        raise ValueError(
            f"config.json must name a class of transformers in 'architectures'; received {short_repr(names)}, whose "
            f"blocks attend both ways by code in the folder.{c.ignore_hint(['architectures'])}"
        )
    mixer, kinds = ShortConvolution(c("conv_L_cache", 3), c("conv_bias", False), name="attention"), lfm2_kinds(c)
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
    return with_mixer(options, kinds, mixer)


def lfm2(c):
    options, width, step = lfm2_body(c), c("intermediate_size"), c("block_multiple_of", 256)
    adjusted = int(c("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    if c("block_auto_adjust_ff_dim", True):
        width = math.ceil(adjusted / step) * step
    return {**options, "intermediate_dim": width}


@register
class Lfm2Experts(MixtureOfExperts):
    """Experts whose weights are divided by their sum plus 1e-6."""

    def normalized(self, weights):
        return weights / (ops.sum(weights, axis=-1, keepdims=True) + 1e-6)


def lfm2_moe(c):
    layer = Lfm2Experts(
        c("num_experts"), c("num_experts_per_tok"), c("moe_intermediate_size"), load_balancing=None,
        router_activation="sigmoid", normalize=c("norm_topk_prob", True), name="feed_forward",
        e_score_correction_bias=c("use_expert_bias", True), routed_scaling_factor=c("routed_scaling_factor", 1.0),
    )  # fmt: skip
    c.each("layer_types", c("num_hidden_layers"))  # raises ValueError if the key is missing
    options, dense = lfm2_body(c), c("num_dense_layers", 2)
    return with_moe_layers(options, [None if i < dense else layer for i in range(options["num_layers"])])


LINEAR = "layers.{i}.linear_attn"
DELTA = {
    f"{ATTENTION}/convolution_kernel": Tensor(f"{LINEAR}.conv1d.weight", other=DEPTHWISE),
    f"{ATTENTION}/A_log": f"{LINEAR}.A_log",
    f"{ATTENTION}/dt_bias": f"{LINEAR}.dt_bias",
    f"{ATTENTION}/norm": f"{LINEAR}.norm",
    f"{ATTENTION}/output": f"{LINEAR}.out_proj",
}
QWEN3_5_DELTA = {
    **stacked(f"{LINEAR}.in_proj_qkv", [f"{ATTENTION}/{part}" for part in ("query", "key", "value")]),
    f"{ATTENTION}/gate": f"{LINEAR}.in_proj_z",
    f"{ATTENTION}/beta": f"{LINEAR}.in_proj_b",
    f"{ATTENTION}/decay": f"{LINEAR}.in_proj_a",
    **DELTA,
}


def qwen3_next_delta(c):
    """Returns rows for two projections, in which each key head has its share of every part."""
    heads = c("linear_num_key_heads", 16)
    parts = {"in_proj_qkvz": ("query", "key", "value", "gate"), "in_proj_ba": ("beta", "decay")}
    packed = {
        path: row
        for name, ours in parts.items()
        for path, row in stacked(f"{LINEAR}.{name}", [f"{ATTENTION}/{part}" for part in ours], groups=heads).items()
    }
    return {**packed, **DELTA}


# Keys of the blocks that predict further tokens, and the dtype of the delta rule's state, which is float32 here too.
QWEN_NEUTRAL = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")


def qwen_kinds(c):
    return kinds_of(c, "linear_attention", lambda c, i: (i + 1) % c("full_attention_interval", 4) == 0)


def qwen_table(c, delta, body=BODY):
    """Returns the rows of a body; the projection of queries has the output gate of each head after its query."""
    query = [f"{ATTENTION}/query", f"{ATTENTION}/gate"]
    return {
        **of_blocks(delta, qwen_kinds(c), "linear_attention"),
        **body,
        **stacked("layers.{i}.self_attn.q_proj", query, groups=c("num_attention_heads")),
    }


def qwen(c):
    """Returns the options that Qwen3-Next shares with Qwen 3.5."""
    c.only("hidden_act", "silu", "swish")  # the delta rule has SiLU around it
    for key, value in (("attn_output_gate", True), ("output_gate_type", "swish"), ("use_sliding_window", False)):
        c.not_read(key, value)
    kinds = qwen_kinds(c)
    options = {
        **llama.options(c, fraction=0.25, used=[kind == FULL for kind in kinds]),
        "head_dim": c("head_dim", 256),
        "attention_bias": c("attention_bias", False),
        "norm": "rms_zero_centered",
        "qk_norm": "head_zero_centered",
        "output_gate": True,
    }
    mixer = GatedDeltaNet(
        c("linear_num_key_heads", 16), c("linear_key_head_dim", 128), c("linear_num_value_heads", 32),
        c("linear_value_head_dim", 128), c("linear_conv_kernel_dim", 4), options["norm_epsilon"], name="attention",
    )  # fmt: skip
    return with_mixer(options, kinds, mixer)


def qwen_experts(c, normalize=True):
    return experts(
        c, c("num_experts"), c("moe_intermediate_size", 512), normalize, num_shared_experts=1, shared_gate=True,
        shared_intermediate_dim=c("shared_expert_intermediate_size", 512),
    )  # fmt: skip


def qwen3_next(c):
    return sparse(c, qwen(c), qwen_experts(c, c("norm_topk_prob", True)))


def qwen3_5(c):
    c.not_read("mlp_only_layers", [])
    return qwen(c)


def lfm2_family(name, options, table, neutral=LFM2_NEUTRAL, **others):
    made = family(
        name, options, lambda c: {**of_blocks(CONVOLUTION, lfm2_kinds(c), "conv"), **table}, neutral, sequences=False,
        tokens=None,
    )  # fmt: skip
    return dataclasses.replace(made, start=kinds_from(ShortConvolution, "conv", **others))


def qwen_family(name, options, table, **heads):
    made = family(name, options, table, QWEN_NEUTRAL, **heads)
    kept = (r"mtp\..*",)  # blocks that predict further tokens
    return dataclasses.replace(made, kept=kept, start=kinds_from(GatedDeltaNet, "linear_attention"))


FAMILIES = {
    "lfm2": lfm2_family("Lfm2", lfm2, LFM2, block_auto_adjust_ff_dim=False),
    "lfm2_moe": lfm2_family("Lfm2Moe", lfm2_moe, LFM2_MOE, (*LFM2_NEUTRAL, "output_router_logits")),
    "qwen3_next": qwen_family("Qwen3Next", qwen3_next, lambda c: qwen_table(c, qwen3_next_delta(c), QWEN)),
    "qwen3_5_text": qwen_family(
        "Qwen3_5", qwen3_5, lambda c: qwen_table(c, QWEN3_5_DELTA), own="Qwen3_5Text", tokens=None
    ),
}
