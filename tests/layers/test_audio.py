"""AudioEmbedding against a loop over windows, and LogMelSpectrogram against a slow Fourier transform, in float64."""

import drawing
import numpy as np
import pytest
from drawing import array, assert_same
from refusals import refused

import keras_txf as txf

X = drawing.normal(2, 7, 5)
MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1] * 7], bool)


def made(*arguments, **options):
    return drawing.built(txf.layers.AudioEmbedding(8, *arguments, **options), X)


def slow(layer, frames):
    """What the layer returns for one row of real frames, without positions: a ReLU after each window."""
    for convolution, stride in zip(layer.convolutions, layer.strides):
        kernel, bias = (array(weight).astype("float64") for weight in convolution.weights)
        side = len(kernel) // 2
        around = np.pad(frames.astype("float64"), ((side, side), (0, 0)))
        starts = range(0, len(frames), stride)
        frames = np.array([np.einsum("kf,kfd->d", around[s : s + len(kernel)], kernel) + bias for s in starts])
        frames = np.maximum(frames, 0)
    return frames


@pytest.mark.parametrize("kernel_size, strides", [(3, (1, 2)), (5, (2, 3)), (1, (1,)), (3, (2, 2))])
def test_convolutions(kernel_size, strides):
    layer = made(kernel_size, strides, "relu", None)
    for length in (1, 4, 7):
        found = array(layer(X[:, :length]))
        assert_same(found, np.stack([slow(layer, row[:length]) for row in X]), 1e-5)
        assert layer.compute_output_shape((2, length, 5)) == found.shape


def test_padding_on_the_right_changes_nothing():
    layer = made(activation="relu")
    spoilt = np.where(MASK[..., None], X, np.nan).astype("float32")
    found = array(layer(spoilt, mask=MASK))
    assert_same(found[:1, :3], array(layer(X[:1, :5])), 1e-5)
    assert_same(found[1:], array(layer(X[1:])), 1e-5)
    np.testing.assert_array_equal(array(layer.compute_mask(X, MASK)), MASK[:, ::2])


@pytest.mark.parametrize("encoding", ["sinusoidal_inclusive", "learned"])
def test_positions(encoding):
    layer = made(activation="relu", position_encoding=encoding, max_length=6)
    if encoding == "learned":
        expected = array(layer.position_layer.position.embeddings)[:4]
    else:  # sines and cosines of four wavelengths, 2π to 10,000 · 2π
        angles = np.arange(4)[:, None] * 10000.0 ** (-np.arange(4) / 3)
        expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    assert_same(array(layer(X)) - np.stack([slow(layer, row) for row in X]), np.stack([expected] * 2), 1e-5)
    left = np.pad(X[:1], ((0, 0), (2, 0), (0, 0)))  # by a multiple of the strides
    found = array(layer(left, mask=np.arange(9)[None] >= 2))
    assert_same(found[:, 1:], array(layer(X[:1])), 1e-5)


def model():
    return txf.models.encoder_decoder(None, 11, 1, 8, 2, input_dim=5, encoder_options={"embedding": audio(8)})


def test_a_builder_copies_the_layer():
    layer = audio(8, max_length=4)
    first, second = (embedded_by(layer, dtype=dtype) for dtype in (None, "float16"))
    assert not layer.built and first.get_layer("embedding").max_length == 4
    assert first(X).shape == (2, 4, 8)
    assert second.get_layer("embedding").convolutions[0].dtype_policy.name == "float16"


def test_padding_on_the_right_of_a_model():
    speech, ids = model(), np.array([[1, 4, 6]])
    padded = speech({"source_features": X[:1], "source_features_mask": MASK[:1], "target_ids": ids})
    assert_same(array(padded), array(speech({"source_features": X[:1, :5], "target_ids": ids})), 1e-5)


def test_several_start_tokens_are_a_prompt(uncompiled):
    speech, inputs = drawing.randomize(model()), {"source_features": X}
    ids = np.array([[1, 7, 3]] * 2)
    for _ in range(2):
        logits = array(speech({**inputs, "target_ids": ids}))
        ids = np.concatenate([ids, logits[:, -1:].argmax(-1)], axis=1)
    np.testing.assert_array_equal(speech.generate(inputs=inputs, max_length=5, start_id=[1, 7, 3]), ids[:, 3:])
    function = speech.make_generate_function(max_new_tokens=2, start_id=(1, 7, 3))
    np.testing.assert_array_equal(array(function(inputs, np.array([3, 0]))[0]), ids[:, 3:])


SOUNDS = drawing.normal(2, 61) * [[1.0], [0.01]]


def slow_log_mel(sound, bins, rate, frame, hop):
    """A Fourier transform by its sum, and filters by straight lines between the corners."""
    sound = np.pad(sound.astype("float64"), frame // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(frame) / frame)
    frequencies = np.arange(frame // 2 + 1)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(frame), frequencies) / frame)
    starts = range(0, len(sound) - frame + 1, hop)
    power = np.array([np.abs((sound[s : s + frame] * window) @ waves) ** 2 for s in starts])[:-1]
    # Frequencies 0.005 mels apart: a mel is 200 / 3 Hz up to 1,000 Hz, then a 27th of the ratio 6.4.
    scale = np.concatenate([np.arange(3000) / 3, 1000 * 6.4 ** (np.arange(9000) * 0.005 / 27)])
    places = np.arange(len(scale))
    corners = np.interp(np.linspace(0, np.interp(rate / 2, scale, places), bins + 2), places, scale)
    hertz = frequencies * rate / frame
    filters = np.stack([
        np.interp(hertz, corners[i : i + 3], [0, 2 / (corners[i + 2] - corners[i]), 0]) for i in range(bins)
    ])  # fmt: skip
    logs = np.log10(np.maximum(power @ filters.T, 1e-10))
    return (np.maximum(logs, logs.max() - 8) + 4) / 4


@pytest.mark.parametrize("bins, rate, frame, hop", [(3, 1600, 16, 7), (5, 8000, 20, 10)])
def test_log_mel(bins, rate, frame, hop):
    layer = txf.layers.LogMelSpectrogram(bins, rate, frame, hop)
    expected = np.stack([slow_log_mel(sound, bins, rate, frame, hop) for sound in SOUNDS])
    assert_same(array(layer(SOUNDS)), expected, 1e-4)
    padded = txf.layers.LogMelSpectrogram(bins, rate, frame, hop, num_samples=80)
    silent = np.pad(SOUNDS, ((0, 0), (0, 19)))
    assert_same(array(padded(SOUNDS)), array(layer(silent)), 1e-6)
    assert_same(array(padded(np.concatenate([silent, silent], axis=1))), array(layer(silent)), 1e-6)


audio, log_mel, encoder = txf.layers.AudioEmbedding, txf.layers.LogMelSpectrogram, txf.models.encoder


def embedded_by(embedding, **options):
    return encoder(None, 1, 8, 2, input_dim=5, embedding=embedding, **options)


@pytest.mark.parametrize("make, words", [
    (lambda: audio(8, kernel_size=4), ["`kernel_size`", "odd", "4"]),
    (lambda: audio(8, strides=[]), ["`strides`", "[]"]), (lambda: audio(8, strides=2), ["`strides`", "2"]),
    (lambda: audio(8, strides=[1, 0]), ["`strides`", "0"]), (lambda: audio(3), ["at least 4 features", "sinusoidal"]),
    (lambda: audio(8, position_encoding="learned"), ["`max_length`", "None"]),
    (lambda: audio(8, max_length=3)(X), ["`inputs`", "at most 6 frames", "max_length=3", "received 7"]),
    (lambda: audio(8)(X[0]), ["`inputs`", "(batch, frames, features)", "(7, 5)"]),
    (lambda: audio(8)(X, mask=MASK[:, :5]), ["`mask`", "5"]),
    (lambda: log_mel()(np.zeros((2, 200), "float32")), ["`inputs`", "at least 201", "received 200"]),
    (lambda: log_mel(num_samples=159, frame_length=16), ["`num_samples`", "at least 160", "received 159"]),
    (lambda: log_mel()(np.zeros((2, 900), "int16")), ["`inputs`", "floats", "32768", "int16"]),
    (lambda: log_mel()(np.zeros(900, "float32")), ["`inputs`", "(batch, samples)"]),
    (lambda: encoder(9, 1, 8, 2, embedding=audio(8)), ["`embedding`", "PositionalEmbedding", "AudioEmbedding"]),
    (lambda: embedded_by("audio"), ["`embedding`", "'audio'"]),
    (lambda: embedded_by(audio(8), packed=True), ["`embedding`", "`packed`"]),
    (lambda: embedded_by(audio(8), max_length=4), ["`max_length`", "`embedding`", "4"]),
    (lambda: txf.models.encoder_decoder(None, 9, 1, 8, 2, input_dim=5,
                                        encoder_options={"position_encoding": None, "embedding": audio(8)}),
     ["`position_encoding`", "`embedding`", "None"]),
    (lambda: model().generate(inputs={"source_features": X}, start_id=[1, 99]), ["`start_id`", "99"]),
    (lambda: model().generate(inputs={"source_features": X}, start_id=[]), ["`start_id`", "[]"]),
])  # fmt: skip
def test_wrong_input_raises_value_error(make, words):
    refused(make, words)
