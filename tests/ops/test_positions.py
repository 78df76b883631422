"""Sinusoid, rotary and its scalings, ALiBi and T5's buckets against their papers' formulas.

Legend: B batch, T length, N heads, H head dim.
"""

import math

import drawing
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.ops import positions, rotary


def papers(places, feature, dim):
    angle = places / 10000 ** ((feature // 2 * 2) / dim)
    return np.cos(angle) if feature % 2 else np.sin(angle)


def fairseqs(places, feature, dim):
    """Of `SinusoidalPositionalEmbedding` of fairseq, whose padding token is 1."""
    pairs = dim // 2
    angle = (places + 2) * math.exp(-(feature % pairs) * math.log(10000) / (pairs - 1))
    return 0 * angle if feature == 2 * pairs else np.sin(angle) if feature < pairs else np.cos(angle)


@pytest.mark.parametrize("function, formula, dim", [
    *((positions.sinusoid, papers, dim) for dim in (1, 5, 8)),
    *((positions.inclusive_sinusoid, fairseqs, dim) for dim in (4, 7, 8)),
])  # fmt: skip
def test_sinusoids_are_their_formulas(function, formula, dim):
    for places in (np.arange(7), np.array([[0, 3, 90], [5, 5, 0]]), np.array([0.5, 2.25])):
        waves = drawing.array(function(ops.convert_to_tensor(places), dim))
        expected = np.stack([formula(places, feature, dim) for feature in range(dim)], axis=-1)
        np.testing.assert_allclose(waves, expected, atol=1e-5)  # a float32 angle of 90 radians is known to 4e-6


def complex_rotation(x, places, frequencies, magnitude):
    """Features i and i + R/2 as one complex number, turned by position · frequency."""
    half = len(frequencies)
    pairs = x[..., :half] + 1j * x[..., half : 2 * half]
    turned = pairs * np.exp(1j * places[:, :, None, None] * frequencies) * magnitude
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)


@pytest.mark.parametrize("rotated, magnitude", [(6, 1.0), (4, 1.0), (2, 1.25)])
def test_rotation_is_a_complex_product(rotated, magnitude):
    x = drawing.normal(2, 5, 3, 6)
    places = np.array([[0, 1, 2, 3, 4], [7, 3, 0, 100, 2]])
    frequencies, _ = rotary.rotary_frequencies(rotated)
    expected = complex_rotation(x.astype("float64"), places, frequencies, magnitude)
    drawing.assert_same(rotary.rotate(ops.convert_to_tensor(x), places, frequencies, magnitude), expected, 2e-5)
    row = rotary.rotate(ops.convert_to_tensor(x), places[1], frequencies, magnitude)
    drawing.assert_same(row[1], expected[1], 2e-5)


def test_interleaved_rotation_turns_neighbours():
    x = drawing.normal(2, 5, 3, 8)
    places = np.array([[0, 3, 4, 9, 2], [7, 1, 0, 5, 6]])
    frequencies, _ = rotary.rotary_frequencies(6)
    expected = x.astype("float64")
    angles = places[..., None] * frequencies
    turned = (expected[..., 0:6:2] + 1j * expected[..., 1:6:2]) * np.exp(1j * angles)[:, :, None]
    expected[..., 0:6:2], expected[..., 1:6:2] = turned.real, turned.imag
    drawing.assert_same(rotary.rotate(ops.convert_to_tensor(x), places, frequencies, interleaved=True), expected, 2e-5)
    layer = txf.layers.Rotary(fraction=0.75, interleaved=True)
    drawing.assert_same(type(layer).from_config(layer.get_config())(x, places), expected, 2e-5)


def rotary_logits(dtype):
    """(T, T) products of one query and one key that stand at 64 places below 8,192."""
    frequencies, _ = rotary.rotary_frequencies(64)
    vectors = (ops.cast(drawing.normal(1, 1, 1, 64, seed=seed), dtype) for seed in (1, 2))
    query, key = (rotary.rotate(ops.tile(x, (1, 64, 1, 1)), np.arange(8128, 8192), frequencies) for x in vectors)
    return drawing.array(query)[0, :, 0] @ drawing.array(key)[0, :, 0].T


def test_bfloat16_rotary_still_tells_positions_near_8192_apart():
    exact, rounded = map(rotary_logits, ("float32", "bfloat16"))
    assert 5 < np.abs(exact).max() < 40
    # A product of 64 numbers with 8 bits each: 2^-8 of the norms, |q| |k| about 64, in the worst case.
    assert np.abs(rounded - exact).max() < 0.25
    # Angles computed in bfloat16 would hold 32 neighbouring places for one; here all rows differ.
    assert len(np.unique(rounded, axis=0)) == 64
    assert min(np.abs(rounded[i] - rounded[i + 1]).max() for i in range(63)) > 1


def plain(dim, base):
    return np.array([base ** (-2 * i / dim) for i in range(dim // 2)])


def test_frequencies_of_plain_linear_and_ntk():
    for dim, base in ((8, 10000.0), (6, 500000.0)):
        frequencies, magnitude = rotary.rotary_frequencies(dim, base)
        np.testing.assert_allclose(frequencies, plain(dim, base))
        linear, _ = rotary.rotary_frequencies(dim, base, {"type": "linear", "factor": 4.0})
        np.testing.assert_allclose(linear, plain(dim, base) / 4)
        ntk, _ = rotary.rotary_frequencies(dim, base, {"type": "ntk", "factor": 4.0})
        np.testing.assert_allclose([ntk[0], ntk[-1]], [1.0, plain(dim, base)[-1] / 4])
        assert magnitude == 1.0


def test_llama3_stretches_long_waves_and_keeps_short_ones():
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    frequencies, magnitude = rotary.rotary_frequencies(128, 500000.0, {"type": "llama3", **numbers})
    plain_ones, expected = plain(128, 500000.0), []
    for frequency in plain_ones:  # the code that Meta published, one frequency at a time
        wavelength = 2 * math.pi / frequency
        smooth = min(max((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    assert expected[0] == plain_ones[0] and expected[-1] == plain_ones[-1] / 8.0
    np.testing.assert_allclose(frequencies, expected)
    assert magnitude == 1.0


def test_yarn_is_the_papers():
    dim, base, length, factor = 128, 10000.0, 4096, 16.0
    numbers = {"factor": factor, "original_max_position_embeddings": length}
    frequencies, magnitude = rotary.rotary_frequencies(dim, base, {"type": "yarn", **numbers, "truncate": False})
    # The paper's ramp is linear in the number of turns' feature index, from 32 turns to 1.
    fast, slow = (dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    for i, frequency in enumerate(plain(dim, base)):
        stretched = min(max((i - fast) / (slow - fast), 0), 1)
        np.testing.assert_allclose(frequencies[i], frequency * (1 - stretched + stretched / factor))
    assert magnitude == pytest.approx(0.1 * math.log(factor) + 1)
    for extra, expected in (({"attention_factor": 1.5}, 1.5), ({"mscale": 0.7, "mscale_all_dim": 0.7}, 1.0)):
        assert rotary.rotary_frequencies(dim, base, {"type": "yarn", **numbers, **extra})[1] == expected
    nulls = dict.fromkeys(("beta_fast", "beta_slow", "attention_factor", "truncate"))
    again = rotary.rotary_frequencies(dim, base, {"type": "yarn", **numbers, **nulls, "truncate": False})
    np.testing.assert_array_equal(again[0], frequencies)


SHORT, LONG = [1.0, 1.1, 1.3, 2.0], [1.5, 2.5, 6.0, 20.0]
DYNAMIC = {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 20}
LONGROPE = {**DYNAMIC, "type": "longrope", "short_factor": SHORT, "long_factor": LONG}


def test_dynamic_grows_the_base_with_the_text():
    for length in (1, 19, 20, 21, 47, 400):
        frequencies, magnitude = rotary.rotary_frequencies(8, 500.0, DYNAMIC, length)
        grown = max(4.0 * length / 20 - (4.0 - 1), 1)  # as it was published, as a base
        np.testing.assert_allclose(frequencies, plain(8, 500.0 * grown ** (8 / (8 - 2))), rtol=1e-6)
        assert magnitude == 1.0


def test_longrope_has_other_factors_for_long_texts():
    for length, factors in ((None, SHORT), (1, SHORT), (20, SHORT), (21, LONG), (400, LONG)):
        frequencies, magnitude = rotary.rotary_frequencies(8, 500.0, LONGROPE, length)
        np.testing.assert_allclose(frequencies, plain(8, 500.0) / factors, rtol=1e-6)
        assert magnitude == pytest.approx(math.sqrt(1 + math.log(4) / math.log(20)))
    assert rotary.rotary_frequencies(8, 500.0, {**LONGROPE, "attention_factor": 1.2})[1] == 1.2
    assert rotary.rotary_frequencies(8, 500.0, {**LONGROPE, "factor": 0.5})[1] == 1.0


@pytest.mark.parametrize("scaling", [LONGROPE, DYNAMIC], ids=lambda scaling: scaling["type"])
def test_the_longest_text_of_the_batch_decides(scaling):
    """Positions of packed or continued texts say how long they are; all tokens of the batch turn alike."""
    layer = txf.layers.Rotary(500.0, scaling=scaling)
    layer = type(layer).from_config(layer.get_config())
    x = drawing.normal(2, 3, 2, 8)
    for places in (np.array([[0, 1, 2], [17, 18, 19]]), np.array([[0, 1, 2], [18, 19, 20]])):
        frequencies, magnitude = rotary.rotary_frequencies(8, 500.0, scaling, int(places.max()) + 1)
        expected = complex_rotation(x.astype("float64"), places, drawing.array(frequencies), magnitude)
        drawing.assert_same(layer(x, places), expected, 2e-5)


@pytest.mark.parametrize("change, words", [
    ({"short_factor": [1.0, 2.0]}, "`long_factor` .* 2 numbers"), ({"long_factor": None}, "`long_factor` .* 4 numbers"),
    ({"short_factor": [1.0, 2.0, 0.0, 1.0]}, "`short_factor` must be a positive"), ({"beta_fast": 1.0}, "beta_fast"),
    ({"original_max_position_embeddings": 1}, "must be above 1"),
])  # fmt: skip
def test_wrong_factors_raise_value_error(change, words):
    with pytest.raises(ValueError, match=words):
        txf.layers.Rotary(scaling={**LONGROPE, **change})
    with pytest.raises(ValueError, match="a list of 3 numbers"):  # which are for another width
        txf.layers.Rotary(scaling=LONGROPE)(drawing.normal(2, 5, 3, 6), np.arange(5))
    with pytest.raises(ValueError, match="a list of 3 numbers"):  # before there are values
        txf.models.decoder_generator(11, 1, 12, 2, position=txf.layers.Rotary(scaling=LONGROPE))


def test_alibi_slopes_are_the_papers():
    np.testing.assert_allclose(positions.alibi_slopes(8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_allclose(positions.alibi_slopes(1), [2.0**-8])
    # 12 heads: the slopes of 8 heads, then every other slope of 16 heads.
    expected = [2.0**-i for i in range(1, 9)] + [2 ** (-0.5 * i) for i in (1, 3, 5, 7)]
    np.testing.assert_allclose(positions.alibi_slopes(12), expected)


def bucket(distance, bidirectional, num_buckets, max_distance):
    """T5's rule for one distance, key position minus query position."""
    start = 0
    if bidirectional:
        num_buckets //= 2
        start, distance = (num_buckets if distance > 0 else 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return start + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return start + min(exact + int(share * (num_buckets - exact) + 1e-6), num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (8, 20)])
def test_buckets_are_t5s(bidirectional, num_buckets, max_distance):
    distances = np.arange(-300, 301)
    buckets = positions.relative_buckets(ops.convert_to_tensor(distances), bidirectional, num_buckets, max_distance)
    expected = [bucket(d, bidirectional, num_buckets, max_distance) for d in distances.tolist()]
    np.testing.assert_array_equal(drawing.array(buckets), expected)
