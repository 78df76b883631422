"""The frequencies of rotary positions, and ALiBi, equal transformers."""

import numpy as np
import pytest
import torch
from parity.weights import close, normal, to_numpy
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from keras_txf.layers import ALiBi, Rotary
from keras_txf.ops import positions as mathematics
from keras_txf.ops import rotary

pytestmark = pytest.mark.parity

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 7, 3, 16
LLAMA3 = dict(type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=64)

ROTARY = {
    "plain": {},
    "base": dict(base=500000.0),
    "fraction": dict(fraction=0.5),
    "linear": dict(scaling=dict(type="linear", factor=4.0)),
    "llama3": dict(base=500000.0, scaling=LLAMA3),
    "llama3, fraction": dict(fraction=0.5, scaling=LLAMA3),
    "yarn": dict(scaling=YARN),
    "yarn, attention factor": dict(scaling=YARN | dict(attention_factor=1.3)),
    "yarn, mscale": dict(scaling=YARN | dict(mscale=0.707)),
    "yarn, mscale pair": dict(scaling=YARN | dict(mscale=0.707, mscale_all_dim=1.2)),
    "yarn, not truncated": dict(scaling=YARN | dict(truncate=False)),
    "yarn, betas": dict(scaling=YARN | dict(beta_fast=8.0, beta_slow=2.0)),
    "yarn, betas, not truncated": dict(scaling=YARN | dict(beta_fast=4.0, beta_slow=0.5, truncate=False)),
    "yarn, one ramp step": dict(scaling=YARN | dict(beta_fast=1.0, beta_slow=1.0, truncate=False)),
    "yarn, shorter": dict(scaling=YARN | dict(factor=0.5)),
    "yarn, fraction": dict(base=500000.0, fraction=0.5, scaling=YARN),
}


def their_frequencies(base=10000.0, fraction=1.0, scaling=None):
    scaling = {"type": "default"} if scaling is None else dict(scaling)
    parameters = {"rope_type": scaling.pop("type"), "rope_theta": base, "partial_rotary_factor": fraction, **scaling}
    config = LlamaConfig(head_dim=HEAD_DIM, max_position_embeddings=256, rope_parameters=parameters)
    if parameters["rope_type"] == "default":  # its own function knows no fraction: a narrower head is the same
        config.head_dim = int(HEAD_DIM * fraction)
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu")


@pytest.mark.parametrize("case", ROTARY)
def test_rotary_frequencies(case):
    """Relative to their size: the longest wavelengths matter in long texts only."""
    options = dict(ROTARY[case])
    dim = int(HEAD_DIM * options.pop("fraction", 1.0))
    frequencies, magnitude = rotary.rotary_frequencies(dim, **options)
    expected, their_magnitude = their_frequencies(**ROTARY[case])
    np.testing.assert_allclose(frequencies, to_numpy(expected), rtol=1e-6)
    assert magnitude == pytest.approx(their_magnitude, abs=1e-12)


def test_ntk_of_one_pair():
    """Its only wavelength is the shortest, which a larger base leaves alone."""
    x, positions = normal(BATCH, LENGTH, HEADS, 2), np.arange(LENGTH)
    close(Rotary(scaling={"type": "ntk", "factor": 4.0})(x, positions), to_numpy(Rotary()(x, positions)))


@pytest.mark.parametrize("num_heads", range(1, 18))
def test_alibi(num_heads):
    """Bloom's bias counts keys from the first, ours from the query: a constant a row for the softmax."""
    theirs = to_numpy(build_alibi_tensor(torch.ones(1, LENGTH), num_heads, torch.float32))  # (N, 1, S)
    slopes = mathematics.alibi_slopes(num_heads)
    np.testing.assert_allclose(slopes, theirs[:, 0, 1], rtol=1e-6)

    ours = to_numpy(ALiBi(num_heads)(np.arange(LENGTH), np.arange(LENGTH)))[0]
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    expected = theirs - theirs[:, 0, :, None]
    np.testing.assert_allclose(ours[:, causal], expected[:, causal], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(ours, ours.transpose(0, 2, 1))
