"""MixtureOfExperts computes what the sparse blocks of Mixtral and Qwen2-MoE of transformers do, with their weights."""

import drawing
import numpy as np
import pytest
import torch
import transformers

import keras_txf as txf

X = np.random.default_rng(1).normal(size=(2, 5, 6)).astype("float32")


def make(**options):
    layer = txf.layers.MixtureOfExperts(3, intermediate_dim=4, **options)
    layer(X)
    return layer


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["mixtral", "qwen2_moe"])
def test_equals_hugging_face(kind):
    sizes = dict(hidden_size=6, intermediate_size=4, num_experts_per_tok=2)
    if kind == "mixtral":
        from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

        theirs = MixtralSparseMoeBlock(transformers.MixtralConfig(num_local_experts=3, **sizes))
        ours = make()
    else:
        from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

        config = transformers.Qwen2MoeConfig(num_experts=3, moe_intermediate_size=4, norm_topk_prob=False, **sizes)
        theirs, ours = Qwen2MoeSparseMoeBlock(config), make(normalize=False)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        if kind == "qwen2_moe":  # its shared expert has a gate of its own, which is closed here
            theirs.shared_expert.down_proj.weight.zero_()
    weights = {name: value.detach().numpy() for name, value in theirs.state_dict().items()}
    assign(ours, weights)
    outputs = theirs(torch.tensor(X))
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    drawing.assert_same(ours(X), outputs.detach().numpy(), 1e-4)


def assign(layer, weights):
    """Weights of Hugging Face, of all experts in one tensor or of each by itself."""
    [router] = [value for name, value in weights.items() if name in ("gate.weight", "router.weight")]
    layer.router.assign(router.T)
    if "experts.gate_up_proj" in weights:
        gate_up, down = weights["experts.gate_up_proj"], weights["experts.down_proj"]
        gate_up = gate_up.transpose(0, 2, 1) if gate_up.shape[1] != 6 else gate_up
        gate, up = np.split(gate_up, 2, axis=2)
        down = down.transpose(0, 2, 1) if down.shape[1] == 6 else down
    else:
        names = {"gate": ("w1", "gate_proj"), "up": ("w3", "up_proj"), "down": ("w2", "down_proj")}
        gate, up, down = (
            np.stack(
                [
                    next(
                        weights[f"experts.{e}.{name}.weight"].T
                        for name in names[part]
                        if f"experts.{e}.{name}.weight" in weights
                    )
                    for e in range(3)
                ]
            )
            for part in ("gate", "up", "down")
        )
    layer.gate.assign(gate)
    layer.intermediate.assign(up)
    layer.output_kernel.assign(down)
