"""Mixtral, Qwen 2 and 3 MoE, OLMoE, gpt-oss, DeepSeek 2 and 3: Llama with experts instead of the feed-forward network.

DeepSeek has latent attention too, and experts after the first blocks.
"""

import dataclasses
import functools

from keras import ops

from keras_txf import checks
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.rotary import positions, windows
from keras_txf.checkpoints.weight_map import TRANSPOSED, Tensor, stacked
from keras_txf.layers import LatentAttention, MixtureOfExperts
from keras_txf.layers.serialization import register
from keras_txf.ops.tensors import widen

PART = "decoder_{i}/feed_forward/"


def separate_experts(module, router, names):
    """Returns table entries of experts stored as separate tensors; `names` holds gate, intermediate and output."""
    return {
        **BODY,
        f"{PART}router": Tensor(f"{router}.weight", other=TRANSPOSED),
        **{
            f"{PART}{ours}_kernel": Tensor(f"{module}.{{e}}.{theirs}.weight", other=TRANSPOSED)
            for ours, theirs in zip(("gate", "intermediate", "output"), names)
        },
    }


MIXTRAL = separate_experts(
    "layers.{i}.block_sparse_moe.experts", "layers.{i}.block_sparse_moe.gate", ("w1", "w3", "w2")
)
QWEN = {
    **separate_experts("layers.{i}.mlp.experts", "layers.{i}.mlp.gate", ("gate_proj", "up_proj", "down_proj")),
    f"{PART}shared_gate": "layers.{i}.mlp.shared_expert_gate",
    f"{PART}shared_experts/gate": "layers.{i}.mlp.shared_expert.gate_proj",
    f"{PART}shared_experts/intermediate": "layers.{i}.mlp.shared_expert.up_proj",
    f"{PART}shared_experts/output": "layers.{i}.mlp.shared_expert.down_proj",
}


def gpt_oss_table(c):
    """Returns rows for one tensor of all experts, in which the columns of gate and intermediate alternate."""
    module, width = "layers.{i}.mlp", c("intermediate_size")
    halves = {
        path: tensor
        for part in ("kernel", "bias")
        for path, tensor in stacked(
            f"{module}.experts.gate_up_proj" + "_bias" * (part == "bias"),
            [f"{PART}gate_{part}", f"{PART}intermediate_{part}"],
            groups=width,
        ).items()
    }
    return {
        **BODY,
        "decoder_{i}/attention/sinks": "layers.{i}.self_attn.sinks",
        f"{PART}router": Tensor(f"{module}.router.weight", other=TRANSPOSED),
        f"{PART}router_bias": f"{module}.router.bias",
        **halves,
        f"{PART}output_kernel": f"{module}.experts.down_proj",
        f"{PART}output_bias": f"{module}.experts.down_proj_bias",
    }


@register
class ClippedExperts(MixtureOfExperts):
    """gpt-oss's experts: act(min(gate, limit)) * (clip(x, -limit, limit) + 1), and a router with a bias.

    Args:
        sizes, options: options of `MixtureOfExperts`; the experts are gated.
        limit: the largest value of both projections.
    """

    weight_splits = {"router_bias": "whole"}

    def __init__(self, *sizes, limit=7.0, **options):
        super().__init__(*sizes, **options)
        self.limit = checks.positive_number("limit", limit)

    def build(self, inputs_shape):
        super().build(inputs_shape)
        self.router_bias = self.add_weight(
            name="router_bias", shape=(self.num_experts,), initializer="zeros", autocast=False
        )

    def apply_gate(self, gate, x):
        gate, x = ops.minimum(gate, self.limit), ops.clip(x, -self.limit, self.limit)
        return self.activation_function(gate) * (x + 1.0)

    def router_logits(self, inputs):
        return super().router_logits(inputs) + widen(self.router_bias)


def experts(c, number, width, normalize=True, make=MixtureOfExperts, **options):
    """Returns the layer of experts.

    If the config asks for the router's loss, each layer adds its share of the one loss that transformers has.
    """
    loss = c("router_aux_loss_coef", 0.001) / c("num_hidden_layers")
    return make(
        number,
        c("num_experts_per_tok", 2),
        width,
        normalize=normalize,
        load_balancing=(loss or None) if c("output_router_logits", False) else None,
        name="feed_forward",
        **{"activation": c.activation("hidden_act", "silu"), **options},
    )


def with_moe_layers(options, layers):
    """Returns the options with layers of experts in some blocks, or in all blocks."""
    found = {**options, "feed_forward": layers, "feed_forward_bias": None}
    if None not in layers:
        for name in ("intermediate_dim", "activation", "gated", "feed_forward_bias"):
            del found[name]
    return found


def sparse(c, options, layer):
    """Returns the options with experts in each `decoder_sparse_step`-th block that is not in `mlp_only_layers`."""
    dense, step = c("mlp_only_layers", None) or [], c("decoder_sparse_step", 1)
    is_sparse = [i not in dense and (i + 1) % step == 0 for i in range(options["num_layers"])]
    return with_moe_layers(options, [layer if sparse else None for sparse in is_sparse])


def mixtral(c):
    c.only("router_jitter_noise", 0.0)
    c.not_read("attention_bias", False)
    options = {
        **llama.options(c, 1000000.0),
        "num_key_value_heads": c("num_key_value_heads", 8),
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "window": c("sliding_window", None),
    }
    layer = experts(c, c("num_local_experts"), c("intermediate_size"))
    return with_moe_layers(options, [layer] * options["num_layers"])


def qwen2_moe(c):
    number, wide, most = c("num_hidden_layers"), c("use_sliding_window", False), c("max_window_layers", 28)
    kinds = ["sliding_attention" if wide and i % 2 == 0 and i < most else "full_attention" for i in range(number)]
    options = {
        **llama.options(c),
        "attention_bias": c("qkv_bias", True),
        "attention_output_bias": False,
        "window": llama.layered(c, number, kinds),
    }
    layer = experts(
        c, c("num_experts"), c("moe_intermediate_size"), c("norm_topk_prob", False),
        num_shared_experts=1, shared_intermediate_dim=c("shared_expert_intermediate_size", 5632), shared_gate=True,
    )  # fmt: skip
    return sparse(c, options, layer)


def qwen3_moe(c):
    window = c("sliding_window", 4096)
    options = {
        **llama.options(c),
        "attention_bias": c("attention_bias", False),
        "qk_norm": True,
        "window": window if c("use_sliding_window", False) else None,
    }
    layer = experts(c, c("num_local_experts"), c("moe_intermediate_size"), c("norm_topk_prob", False))
    return sparse(c, options, layer)


def olmoe(c):
    c.only("clip_qkv", None)
    options = {
        **llama.options(c, pad_id=1),
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "attention_bias": c("attention_bias", False),
        "qk_norm": "full",
    }
    layer = experts(c, c("num_experts"), c("intermediate_size"), c("norm_topk_prob", False))
    return with_moe_layers(options, [layer] * options["num_layers"])


def gpt_oss(c):
    c.only("swiglu_alpha", 1.702)
    c.only("hidden_act", "silu")
    if not (c("rope_parameters", None) or c("rope_scaling", None)):  # transformers then uses YaRN anyway
        raise ValueError("config.json must have 'rope_parameters' or 'rope_scaling'; received neither.")
    number = c("num_hidden_layers")
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(number)]
    kinds = c.each("layer_types", number, kinds)
    options = {
        **llama.options(c, 150000.0),
        "norm_epsilon": c("rms_norm_eps", 1e-5),
        "attention_bias": c("attention_bias", True),
        "window": windows(kinds, c("sliding_window", 128)),
        "sinks": True,
    }
    layer = experts(
        c, c("num_local_experts"), c("intermediate_size"), activation="gelu_sigmoid", use_bias=True,
        make=functools.partial(ClippedExperts, limit=c("swiglu_limit", 7.0)),
    )  # fmt: skip
    return with_moe_layers(options, [layer] * number)


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
    kind, number = "full_attention", options["num_layers"]
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
    "mixtral": family(
        "Mixtral", mixtral, MIXTRAL, renamed={r"layers\.(\d+)\.block_sparse_moe\.gate": r"layers.\1.mlp.gate"}
    ),
    "qwen2_moe": family("Qwen2Moe", qwen2_moe, QWEN),
    "qwen3_moe": family("Qwen3Moe", qwen3_moe, QWEN, ("max_window_layers",)),
    "olmoe": family("Olmoe", olmoe, QWEN, sequences=False, tokens=None),
    "gpt_oss": family("GptOss", gpt_oss, gpt_oss_table, ("initial_context_length", "experts_per_token")),
    # The class of V2 ignores the file's head_dim.
    "deepseek_v2": deepseek_family("DeepseekV2", deepseek_v2, (*DEEPSEEK_NEUTRAL, "head_dim"), tokens=None),
    "deepseek_v3": deepseek_family("DeepseekV3", deepseek_v3),
}
