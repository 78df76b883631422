"""LatentAttention and the router of MixtureOfExperts compute what DeepSeek's of transformers do, with their weights."""

import drawing
import keras
import numpy as np
import pytest

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

T, D = 9, 12
X = np.random.default_rng(1).normal(size=(2, T, D)).astype("float32")
SIZES = dict(
    vocab_size=20, hidden_size=D, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=8, qk_nope_head_dim=6,
    qk_rope_head_dim=4, v_head_dim=5, num_hidden_layers=1, moe_intermediate_size=4, n_shared_experts=2,
)  # fmt: skip
YARN = dict(
    rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=5, mscale=0.9, mscale_all_dim=0.6
)
NAMES = {
    "query": "q_proj", "query_down": "q_a_proj", "query_norm": "q_a_layernorm", "query_up": "q_b_proj",
    "key_value_down": "kv_a_proj_with_mqa", "key_value_norm": "kv_a_layernorm", "key_value_up": "kv_b_proj",
    "output": "o_proj",
}  # fmt: skip


def randomized(module):
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())))
    return module.eval()


@pytest.mark.parametrize("rank, interleaved, bias", [(5, True, False), (None, True, True), (7, False, True)])
def test_attention_equals_hugging_face(rank, interleaved, bias):
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as module

    config = transformers.DeepseekV3Config(
        **SIZES, q_lora_rank=rank, rope_interleave=interleaved, attention_bias=bias, rope_parameters=YARN,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomized(module.DeepseekV3Attention(config, 0))
    scaling = {"type" if name == "rope_type" else name: value for name, value in YARN.items() if name != "rope_theta"}
    ours = txf.layers.LatentAttention(
        3, 8, 6, 4, 5, rank, causal=True, position=txf.layers.Rotary(50.0, 1.0, scaling, interleaved), use_bias=bias
    )
    ours(X)
    values = theirs.state_dict()
    for weight in ours.weights:
        layer, name = weight.path.split("/")[-2:]
        tensor = values.pop(f"{NAMES[layer]}.{'bias' if name == 'bias' else 'weight'}").numpy()
        weight.assign(tensor.T if name == "kernel" else tensor)
    assert not values
    places = torch.arange(T)[None]
    turns = module.DeepseekV3RotaryEmbedding(config)(torch.tensor(X), places)
    hidden = torch.full((1, 1, T, T), float("-inf")).triu(1)
    with torch.no_grad():
        expected, scores = theirs(torch.tensor(X), turns, hidden)
    outputs, weights = ours(X, return_attention_scores=True)
    drawing.assert_same(weights, scores.numpy(), 1e-5)
    drawing.assert_same(outputs, expected.numpy(), 1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("version", [2, 3])
def test_experts_equal_hugging_face(version):
    if version == 3:
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE as block

        config = transformers.DeepseekV3Config(
            **SIZES, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=1.7
        )
        own = dict(router_activation="sigmoid", e_score_correction_bias=True)
    else:
        from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe as block

        config = transformers.DeepseekV2Config(
            **SIZES, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=1.7,
            topk_method="group_limited_greedy",
        )  # fmt: skip
        own = dict(normalize=False, top_k_in_group=1)
    theirs = randomized(block(config))
    ours = txf.layers.MixtureOfExperts(
        8, 3, 4, num_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.7, **own
    )
    ours(X)
    values = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    ours.router.assign(values["gate.weight"].T)
    if version == 3:
        ours.correction_bias.assign(values["gate.e_score_correction_bias"])
    gate, up = np.split(values["experts.gate_up_proj"], 2, axis=1)
    for weight, tensor in (
        (ours.gate, gate),
        (ours.intermediate, up),
        (ours.output_kernel, values["experts.down_proj"]),
    ):
        weight.assign(tensor.transpose(0, 2, 1))
    shared = ours.shared_experts
    for layer, name in ((shared.gate, "gate"), (shared.intermediate, "up"), (shared.output_dense, "down")):
        layer.kernel.assign(values[f"shared_experts.{name}_proj.weight"].T)
    with torch.no_grad():
        expected = theirs(torch.tensor(X)).numpy()
    drawing.assert_same(ours(X), expected, 1e-5 * np.abs(expected).max())
    keras.backend.clear_session()
