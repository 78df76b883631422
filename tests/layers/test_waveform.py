"""WaveformEmbedding against loops over windows in float64, and WaveformNormalization against NumPy."""

import math

import drawing
import numpy as np
import pytest
from drawing import array, assert_same
from refusals import refused

import keras_txf as txf

waveform, normalization = txf.layers.WaveformEmbedding, txf.layers.WaveformNormalization
X = drawing.normal(2, 41, 1)
MASK = np.arange(41) < np.array([[41], [26]])
SIZES = dict(filters=[3, 6], kernel_sizes=[5, 2], strides=[3, 2], position_groups=2)  # windows of 8 samples, 6 apart


def made(norm="layer", activation="relu", **options):
    layer = waveform(8, **{**SIZES, "norm": norm, "activation": activation, "position_kernel_size": 4, **options})
    return drawing.built(layer, X)


def weights(layer):
    """The arrays of a layer by the ends of their paths, in float64."""
    return {weight.path.partition("/")[2]: array(weight).astype("float64") for weight in layer.weights}


def normed(x, axis, w, name, epsilon=1e-5):
    x = (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)
    return x * w[f"{name}/gamma"] + w[f"{name}/beta"]


def slow(layer, x):
    """What the layer returns for a sound (samples, 1), all of it real."""
    w, x = weights(layer), x.astype("float64")
    for number, stride in enumerate(layer.strides):
        kernel, bias = w[f"convolution_{number}/kernel"], w.get(f"convolution_{number}/bias", 0.0)
        starts = range(0, len(x) - len(kernel) + 1, stride)
        x = np.array([np.einsum("kf,kfd->d", x[s : s + len(kernel)], kernel) + bias for s in starts])
        if f"norm_{number}/gamma" in w:
            x = normed(x, 0 if layer.norm == "group" else -1, w, f"norm_{number}")
        x = np.maximum(x, 0)
    x = normed(x, -1, w, "projection_norm", layer.norm_epsilon) if layer.projection_norm else x
    x = x @ w["projection/kernel"] + w["projection/bias"]
    if layer.position_kernel_size is None:
        return x
    direction, size, share = w["position/direction"], layer.position_kernel_size, 8 // layer.position_groups
    positions = np.tile(w["position/bias"], (len(x), 1))
    for place in range(size):
        kernel = w["position/gain"][place] * direction[place] / math.sqrt((direction[place] ** 2).sum())
        for time in range(len(x)):
            seen = time + place - size // 2
            for feature in range(8 if 0 <= seen < len(x) else 0):
                group = slice(feature // share * share, feature // share * share + share)
                positions[time, feature] += x[seen, group] @ kernel[:, feature]
    return x + np.maximum(positions, 0)


@pytest.mark.parametrize("options", [
    {}, dict(norm="group", use_bias=False, position_kernel_size=3), dict(norm=None, position_groups=4),
    dict(projection_norm=False, position_kernel_size=None), dict(norm_epsilon=0.5, position_groups=8),
])  # fmt: skip
def test_windows_and_positions(options):
    layer = made(**options)
    for length in (8, 13, 41):
        found = array(layer(X[:, :length]))
        assert_same(found, np.stack([slow(layer, row[:length]) for row in X]), 1e-5)
        assert layer.compute_output_shape((2, length, 1)) == found.shape


def test_padding_changes_no_frame_that_is_real():
    layer = made()
    spoilt = np.where(MASK[..., None], X, np.nan).astype("float32")
    found, real = array(layer(spoilt, mask=MASK)), array(layer.compute_mask(X, MASK))
    np.testing.assert_array_equal(real, [[all(row[s : s + 8]) for s in range(0, 34, 6)] for row in MASK])
    assert_same(found[0], slow(layer, X[0]), 1e-5)
    assert_same(found[1, :4], slow(layer, X[1, :26]), 1e-5)
    left = np.pad(X[:1, :26], ((0, 0), (12, 0), (0, 0)))  # by a multiple of the strides
    assert_same(array(layer(left, mask=np.arange(38)[None] >= 12))[0, 2:], slow(layer, X[0, :26]), 1e-5)


def test_padding_is_silence_for_a_norm_over_time():
    layer = made("group")
    silent = np.where(MASK[..., None], X, 0.0)
    slow_layer = made("group", position_kernel_size=None)
    slow_layer.set_weights(layer.get_weights()[: len(slow_layer.weights)])
    found = array(slow_layer(np.where(MASK[..., None], X, np.nan).astype("float32"), mask=MASK))
    assert_same(found[1, :4], slow(slow_layer, silent[1])[:4], 1e-5)


def test_dropout_in_training_alone():
    layer = made(projection_dropout=0.5, position_kernel_size=None)
    assert_same(array(layer(X)), np.stack([slow(layer, row) for row in X]), 1e-5)
    assert (array(layer(X, training=True)) == 0).any()


def test_a_builder_takes_waveforms_without_a_last_axis():
    embedding = waveform(8, **SIZES, position_kernel_size=3)
    model = txf.models.encoder_classifier(None, 3, 1, 8, 2, input_dim=1, embedding=embedding)
    expected = array(model({"features": X, "features_mask": MASK}))
    assert_same(array(model({"features": X[..., 0], "features_mask": MASK})), expected, 1e-6)
    assert_same(array(model(X[1:, :26, 0])), expected[1:], 1e-5)


def test_normalization():
    sounds = 3 + 5 * drawing.normal(2, 41)
    expected = [(row - row.mean()) / row.std() for row in (sounds[0], sounds[1, :26])]
    found = array(normalization()(np.where(MASK, sounds, np.nan).astype("float32"), mask=MASK))
    assert_same(found[0], expected[0], 1e-5)
    assert_same(found[1], np.pad(expected[1], (0, 15)), 1e-5)
    assert_same(array(normalization()(sounds))[0], expected[0], 1e-5)
    assert not array(normalization()(sounds, mask=np.zeros_like(MASK))).any()


@pytest.mark.parametrize("make, words", [
    (lambda: waveform(8, filters=[]), ["`filters`", "[]"]), (lambda: waveform(8, filters=3), ["`filters`", "3"]),
    (lambda: waveform(8, [4, 4], [3, 2], [2]), ["`strides`", "2", "[2]"]),
    (lambda: waveform(8, [4, 0], [3, 2], [2, 2]), ["`filters`", "0"]),
    (lambda: made("batch"), ["`norm`", "'batch'"]),
    (lambda: made(position_groups=3), ["`position_groups`", "dim=8", "3"]),
    (lambda: made(projection_dropout=1.5), ["`projection_dropout`", "1.5"]),
    (lambda: made()(X[:, :7]), ["`inputs`", "at least 8 samples", "received 7"]),
    (lambda: made()(X[0]), ["`inputs`", "(batch, samples, features)", "(41, 1)"]),
    (lambda: made()(X, mask=MASK[:, :5]), ["`mask`", "5"]),
    (lambda: normalization()(X), ["`inputs`", "(batch, samples)", "(2, 41, 1)"]),
    (lambda: normalization()(np.zeros((2, 9), "int16")), ["`inputs`", "floats", "32768", "int16"]),
    (lambda: normalization()(X[..., 0], mask=MASK[:, :5]), ["`mask`", "5"]),
])  # fmt: skip
def test_wrong_input_raises_value_error(make, words):
    refused(make, words)
