"""Rotary, ALiBi and the biases and buckets of T5 and DeBERTa are those of transformers."""

import numpy as np
import pytest
import torch
from parity.weights import close, normal, randomize, to_numpy
from transformers import LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from keras_txf.layers import ALiBi, RelativeBias, Rotary
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
@pytest.mark.parametrize("positions", [np.arange(LENGTH), np.arange(LENGTH) + np.array([[0], [57]])])
def test_rotary(case, positions):
    frequencies, magnitude = their_frequencies(**ROTARY[case])
    angles = torch.from_numpy(np.atleast_2d(positions)).float()[..., None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    x = normal(BATCH, LENGTH, HEADS, HEAD_DIM)
    expected, _ = apply_rotary_pos_emb(
        torch.from_numpy(x), torch.from_numpy(x), angles.cos() * magnitude, angles.sin() * magnitude, unsqueeze_dim=2
    )
    close(Rotary(**ROTARY[case])(x, positions.astype("int32")), expected)


@pytest.mark.parametrize("case", ROTARY)
def test_rotary_frequencies(case):
    """Relative to their size: the longest wavelengths matter in long texts only."""
    options = dict(ROTARY[case])
    dim = int(HEAD_DIM * options.pop("fraction", 1.0))
    frequencies, magnitude = rotary.rotary_frequencies(dim, **options)
    expected, their_magnitude = their_frequencies(**ROTARY[case])
    np.testing.assert_allclose(frequencies, to_numpy(expected), rtol=1e-6)
    assert magnitude == pytest.approx(their_magnitude, abs=1e-12)


@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_ntk(factor):
    """Transformers has it as "dynamic": at some length its base has grown by the same factor."""
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": factor}
    config = LlamaConfig(head_dim=HEAD_DIM, max_position_embeddings=60, rope_parameters=parameters)
    length = round(60 * (2 * factor - 1) / factor)
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=length)
    ours, _ = rotary.rotary_frequencies(HEAD_DIM, scaling={"type": "ntk", "factor": factor})
    np.testing.assert_allclose(ours, to_numpy(theirs), rtol=1e-6)


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


BUCKETS = [(32, 128), (8, 20), (16, 64), (64, 256), (20, 100), (6, 7), (7, 50), (12, 1000), (32, 17)]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", BUCKETS)
def test_relative_buckets(bidirectional, num_buckets, max_distance):
    distances = np.arange(-300, 301, dtype="int32")
    expected = T5Attention._relative_position_bucket(
        torch.from_numpy(distances), bidirectional, num_buckets, max_distance
    )
    ours = mathematics.relative_buckets(distances, bidirectional, num_buckets, max_distance)
    np.testing.assert_array_equal(to_numpy(ours), to_numpy(expected))


@pytest.mark.parametrize("side, max_distance", [(256, 512), (32, 128), (4, 20), (6, 300), (128, 1024)])
def test_disentangled_buckets(side, max_distance):
    distances = torch.arange(-max_distance, max_distance + 1)
    theirs = make_log_bucket_position(distances, side, max_distance).long() + side
    ours = mathematics.disentangled_buckets(max_distance, 2 * side)
    np.testing.assert_array_equal(ours, to_numpy(theirs.clamp(0, 2 * side - 1)))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias(bidirectional):
    config = T5Config(
        num_heads=HEADS, relative_attention_num_buckets=8, relative_attention_max_distance=10,
        is_decoder=not bidirectional,
    )  # fmt: skip
    theirs = randomize(T5Attention(config, has_relative_attention_bias=True, layer_idx=0))
    ours = RelativeBias(HEADS, num_buckets=8, max_distance=10, bidirectional=bidirectional)
    ours.build()
    ours.embeddings.assign(to_numpy(theirs.relative_attention_bias.weight))
    close(ours(np.arange(9), np.arange(13)), theirs.compute_bias(9, 13))
    # A query in the middle of a decode step.
    close(ours(np.arange(2) + 5, np.arange(13)), theirs.compute_bias(2, 13, past_seen_tokens=5))
