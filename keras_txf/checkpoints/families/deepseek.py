"""DeepSeek 2 and 3: latent attention, and experts after the first blocks."""

import dataclasses

from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.mixtures import PART, separate_experts, with_moe_layers
from keras_txf.checkpoints.families.rotary import positions
from keras_txf.layers import LatentAttention, MixtureOfExperts

ATTENTION, MLP, GATED = "layers.{i}.self_attn", "layers.{i}.mlp", ("gate_proj", "up_proj", "down_proj")
LATENT = {
    "query_down": "q_a_proj", "query_norm": "q_a_layernorm", "query_up": "q_b_proj",
    "key_value_down": "kv_a_proj_with_mqa", "key_value_norm": "kv_a_layernorm", "key_value_up": "kv_b_proj",
}  # fmt: skip
DEEPSEEK_MOE = {
    **separate_experts(f"{MLP}.experts", f"{MLP}.gate", GATED),
    **{
        f"{PART}shared_experts/{ours}": f"{MLP}.shared_experts.{theirs}"
        for ours, theirs in zip(("gate", "intermediate", "output"), GATED)
    },
    f"{PART}e_score_correction_bias": f"{MLP}.gate.e_score_correction_bias",
}
DEEPSEEK = {
    **DEEPSEEK_MOE,
    **{f"decoder_{{i}}/attention/{ours}": f"{ATTENTION}.{theirs}" for ours, theirs in LATENT.items()},
}
OF_ATTENTION = ("num_heads", "num_key_value_heads", "head_dim", "position", "attention_dropout")
# Keys of sizes that follow from others, of the load-balancing loss, and of the blocks that predict further tokens.
DEEPSEEK_NEUTRAL = (
    "qk_head_dim", "output_router_logits", "ep_size", "aux_loss_alpha", "seq_aux", "num_mtp_layers",
    "num_nextn_predict_layers",
)  # fmt: skip


def deepseek(c, top_k, dense, interleaved=True, **router):
    options, heads = llama.options(c), c("num_attention_heads")
    c.only("num_key_value_heads", heads, None)  # each head has its own keys
    c.only("moe_layer_freq", 1)
    kind = "full_attention"
    [position] = positions(c, [kind], {kind: c("rope_theta", 10000.0)}, interleaved=interleaved)
    attention = LatentAttention(
        heads, c("kv_lora_rank", 512), c("qk_nope_head_dim", 128), c("qk_rope_head_dim", 64), c("v_head_dim", 128),
        c("q_lora_rank", 1536), causal=True, position=position, dropout=options["attention_dropout"],
        use_bias=c("attention_bias", False), name="attention",
    )  # fmt: skip
    rest = {name: value for name, value in options.items() if name not in OF_ATTENTION}
    return {"attention": attention, **with_deepseek_moe(c, rest, top_k, dense, **router)}


def with_deepseek_moe(c, options, top_k, dense, **router):
    """Returns the options with experts after the first `dense` blocks."""
    layer = MixtureOfExperts(
        c("n_routed_experts"), top_k, c("moe_intermediate_size"), options["activation"],
        num_shared_experts=c("n_shared_experts"), load_balancing=None, name="feed_forward",
        routed_scaling_factor=c("routed_scaling_factor"), **router,
    )  # fmt: skip
    return with_moe_layers(options, [None if i < dense else layer for i in range(options["num_layers"])])


def sigmoid_router(c, n_group, topk_group):
    """Returns the options of the router of DeepSeek V3; `n_group` and `topk_group` are defaults."""
    return {
        "router_activation": "sigmoid",
        "normalize": c("norm_topk_prob", True),
        "e_score_correction_bias": True,
        "n_group": c("n_group", n_group),
        "topk_group": c("topk_group", topk_group),
    }


def deepseek_v3(c):
    c.only("head_dim", c("qk_rope_head_dim", 64), None)
    c.only("scoring_func", "sigmoid")
    c.only("topk_method", "noaux_tc")
    return deepseek(
        c, c("num_experts_per_tok", 8), c("first_k_dense_replace", 3), c("rope_interleave", True),
        **sigmoid_router(c, 8, 4),
    )  # fmt: skip


def deepseek_v2(c):
    c.only("scoring_func", "softmax")
    c.only("norm_topk_prob", False)
    c.only("mlp_bias", False)
    c.only("topk_method", "greedy", "group_limited_greedy")
    groups = {"n_group": c("n_group", None), "topk_group": c("topk_group", None), "top_k_in_group": 1}
    groups = {} if c("topk_method", "greedy") == "greedy" else groups
    return deepseek(c, c("num_experts_per_tok"), c("first_k_dense_replace", 0), normalize=False, **groups)


def deepseek_family(name, options, neutral=DEEPSEEK_NEUTRAL, body=DEEPSEEK, further="61", **heads):
    """Returns a family; `further` is a pattern of the numbers of blocks that predict further tokens."""
    made = llama.family(name, options, body, neutral, **heads)
    return dataclasses.replace(made, kept=(rf"(model\.)?layers\.({further})\..*",))


FAMILIES = {
    # The class of V2 ignores the file's head_dim.
    "deepseek_v2": deepseek_family("DeepseekV2", deepseek_v2, (*DEEPSEEK_NEUTRAL, "head_dim"), tokens=None),
    "deepseek_v3": deepseek_family("DeepseekV3", deepseek_v3),
}
