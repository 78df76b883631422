"""Mixtral, Qwen 2 and 3 MoE, OLMoE and gpt-oss: Llama with experts instead of the feed-forward network."""

import functools

from keras import ops

from keras_txf import checks
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.rotary import windows
from keras_txf.checkpoints.weight_map import TRANSPOSED, Tensor, stacked
from keras_txf.layers import MixtureOfExperts
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


FAMILIES = {
    "mixtral": family(
        "Mixtral", mixtral, MIXTRAL, renamed={r"layers\.(\d+)\.block_sparse_moe\.gate": r"layers.\1.mlp.gate"}
    ),
    "qwen2_moe": family("Qwen2Moe", qwen2_moe, QWEN),
    "qwen3_moe": family("Qwen3Moe", qwen3_moe, QWEN, ("max_window_layers",)),
    "olmoe": family("Olmoe", olmoe, QWEN, sequences=False, tokens=None),
    "gpt_oss": family("GptOss", gpt_oss, gpt_oss_table, ("initial_context_length", "experts_per_token")),
}
