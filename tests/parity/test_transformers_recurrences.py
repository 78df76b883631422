"""GatedDeltaNet, Mamba2 and ShortConvolution equal the layers of Qwen3-Next, Granite 4 and LFM2, with padding too."""

import numpy as np
import pytest
import torch
from parity.weights import close, normal, randomize
from transformers import GraniteMoeHybridConfig, Lfm2Config, Qwen3NextConfig
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

import keras_txf as txf

pytestmark = pytest.mark.parity
B, D, G, N, K, V = 2, 10, 2, 6, 4, 5


def check(theirs, ours, found, length, padded):
    """`found` is weights by the ends of our paths; kernels as PyTorch has them."""
    x, real = normal(B, length, D), np.arange(length) >= np.array([[0], [3 * padded]])
    ours.build(x.shape)
    for weight in ours.weights:
        value = found.pop(weight.path.partition("/")[2]).detach().numpy()
        weight.assign(value.T if value.ndim == 2 else value)
    assert not found
    mask = real if padded else None
    expected = theirs(torch.from_numpy(x), attention_mask=torch.from_numpy(real) if padded else None)
    close(ours(x, mask=mask), expected, where=real)


@pytest.mark.parametrize("length, padded", [(5, False), (70, False), (70, True)])
def test_gated_delta_net(length, padded):
    config = Qwen3NextConfig(
        hidden_size=D, linear_num_key_heads=G, linear_num_value_heads=N, linear_key_head_dim=K,
        linear_value_head_dim=V, linear_conv_kernel_dim=3, rms_norm_eps=1e-4,
    )  # fmt: skip
    theirs = randomize(Qwen3NextGatedDeltaNet(config, 0))
    packed = theirs.in_proj_qkvz.weight.reshape(G, -1, D).split([K, K, N // G * V, N // G * V], dim=1)
    found = {f"{name}/kernel": x.reshape(-1, D) for name, x in zip(("query", "key", "value", "gate"), packed)}
    packed = theirs.in_proj_ba.weight.reshape(G, -1, D).split(N // G, dim=1)
    found |= {f"{name}/kernel": x.reshape(-1, D) for name, x in zip(("beta", "decay"), packed)}
    found |= {"A_log": theirs.A_log, "dt_bias": theirs.dt_bias, "norm/scale": theirs.norm.weight}
    found |= {"convolution_kernel": theirs.conv1d.weight[:, 0], "output/kernel": theirs.out_proj.weight}
    check(theirs, txf.layers.GatedDeltaNet(G, K, N, V, 3, norm_epsilon=1e-4), found, length, padded)


@pytest.mark.parametrize("groups, bias, length, padded", [(2, True, 70, False), (1, False, 70, True)])
def test_mamba2(groups, bias, length, padded):
    config = GraniteMoeHybridConfig(
        hidden_size=D, mamba_n_heads=4, mamba_n_groups=groups, mamba_d_state=K, mamba_d_conv=3, mamba_chunk_size=16,
        mamba_proj_bias=bias, mamba_conv_bias=bias, rms_norm_eps=1e-4, num_hidden_layers=1,
    )  # fmt: skip
    theirs = randomize(GraniteMoeHybridMambaLayer(config, 0))
    parts = {"input": theirs.in_proj, "output": theirs.out_proj}
    found = {f"{name}/kernel": part.weight for name, part in parts.items()}
    found |= {"convolution_kernel": theirs.conv1d.weight[:, 0], "norm_scale": theirs.norm.weight}
    found |= {name: getattr(theirs, name) for name in ("A_log", "D", "dt_bias")}
    if bias:
        found |= {f"{name}/bias": part.bias for name, part in parts.items()}
        found["convolution_bias"] = theirs.conv1d.bias
    ours = txf.layers.Mamba2(4, None, K, groups, 3, use_bias=bias, conv_bias=bias, norm_epsilon=1e-4)
    check(theirs, ours, found, length, padded)


@pytest.mark.parametrize("bias, padded", [(True, False), (False, True)])
def test_short_convolution(bias, padded):
    theirs = randomize(Lfm2ShortConv(Lfm2Config(hidden_size=D, conv_bias=bias, conv_L_cache=3), 0))
    parts = {"input": theirs.in_proj, "output": theirs.out_proj}
    found = {f"{name}/kernel": part.weight for name, part in parts.items()}
    found["convolution_kernel"] = theirs.conv.weight[:, 0]
    if bias:
        found |= {f"{name}/bias": part.bias for name, part in parts.items()} | {"convolution_bias": theirs.conv.bias}
    check(theirs, txf.layers.ShortConvolution(3, bias), found, 7, padded)
