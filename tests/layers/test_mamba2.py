"""Mamba2 against a loop over tokens in float64, its gradients, and a model that decodes with it.

Legend: B batch, T length, D model dim, N heads, P width of a head, G groups, S width of the state.
"""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from layers.test_gated_delta_net import (
    LENGTHS,
    REAL,
    assert_generates_as_full_passes,
    assert_reads_unknown_lengths,
    real_tokens,
    silu,
)
from refusals import refused

import keras_txf as txf
from keras_txf.layers import mamba2

B, D, N, P, S, G = 2, 10, 6, 4, 5, 2
SIZES = dict(num_heads=N, head_dim=P, state_dim=S, num_groups=G, conv_kernel_size=3)


def slow(layer, x, real):
    """One token and head after the other: h <- exp(dt A) h + dt B x^T, y = C h + D x."""
    w = {weight.path.partition("/")[2]: drawing.array(weight).astype("float64") for weight in layer.weights}
    x, size, length, width = x.astype("float64"), layer.conv_kernel_size, x.shape[1], N * P
    gate, mixed, steps = np.split(
        x @ w["input/kernel"] + w.get("input/bias", 0), [width, 2 * width + 2 * G * S], axis=-1
    )
    joined, mixed = mixed * real[..., None], np.zeros_like(mixed) + w.get("convolution_bias", 0)
    for t, i in np.ndindex(length, size):
        if t >= i:
            mixed[:, t] += w["convolution_kernel"][size - 1 - i] * joined[:, t - i]
    x, b, c = np.split(silu(mixed), [width, width + G * S], axis=-1)
    y = np.zeros((B, length, N, P))
    for row, n in np.ndindex(B, N):
        state, group = np.zeros((S, P)), slice(n // (N // G) * S, n // (N // G) * S + S)
        for t in np.flatnonzero(real[row]):
            dt, own = np.log1p(np.exp(steps[row, t, n] + w["dt_bias"][n])), x[row, t, n * P : n * P + P]
            state = np.exp(-dt * np.exp(w["A_log"][n])) * state + dt * np.outer(b[row, t, group], own)
            y[row, t, n] = c[row, t, group] @ state + w["D"][n] * own
    y = (y.reshape(B, length, width) * silu(gate)).reshape(B, length, G, -1)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + layer.norm_epsilon)
    return (y.reshape(B, length, width) * w["norm_scale"]) @ w["output/kernel"] + w.get("output/bias", 0)


@pytest.mark.parametrize("chunk, length", LENGTHS)
def test_equals_a_loop_over_tokens_in_float64(chunk, length, monkeypatch):
    monkeypatch.setattr(mamba2, "CHUNK", chunk)
    x = drawing.normal(B, length, D)
    options = {"use_bias": True, "conv_bias": False, "norm_epsilon": 0.1} if length in (1, 11) else {}
    layer = drawing.built(txf.layers.Mamba2(**SIZES, **options), x)
    drawing.assert_same(layer(x), slow(layer, x, np.ones((B, length), bool)), 2e-5)
    for kind in REAL if length > 7 else ():
        real = real_tokens(kind, length)
        drawing.assert_same(drawing.array(layer(x, mask=real))[real], slow(layer, x, real)[real], 2e-5)


def one_by_one(x, b, c, log_decay, state):
    """The update by Keras, a token after the other."""
    outputs = []
    for t in range(x.shape[1]):
        state = ops.exp(log_decay[:, t, :, None, :, None]) * state + b[:, t, :, :, None, None] * x[:, t, :, None]
        outputs.append(ops.sum(c[:, t, :, :, None, None] * state, axis=2))
    return ops.stack(outputs, axis=1), state


def test_sums_after_a_strong_decay_keep_their_digits():
    """With differences of totals the error would be 0.008."""
    x, b, c = drawing.normal(1, 64, 1, 2, 3), drawing.normal(1, 64, 1, 4), drawing.normal(1, 64, 1, 4)
    log_decay = np.full((1, 64, 1, 2), -0.01, "float32")
    log_decay[:, :32] = np.random.default_rng(1).uniform(-500, 0, (1, 32, 1, 2))
    state, expected = np.zeros((4, 2, 3)), []
    for t in range(64):
        state = np.exp(log_decay[0, t, 0, :, None].astype("float64")) * state + b[0, t, 0, :, None, None] * x[0, t, 0]
        expected.append((c[0, t, 0, :, None, None] * state).sum(0))
    found, last = mamba2.selective_state_space(
        *map(ops.convert_to_tensor, (x, b, c, log_decay, np.zeros((1, 1, 4, 2, 3), "float32")))
    )
    drawing.assert_same(drawing.array(found)[0, :, 0], expected, 5e-5)
    drawing.assert_same(drawing.array(last)[0, 0], state, 5e-5)


def test_gradients_equal_those_of_a_loop_over_tokens(monkeypatch):
    monkeypatch.setattr(mamba2, "CHUNK", 4)
    x, real = drawing.normal(B, 6, D), real_tokens("both", 6)
    layer = drawing.built(txf.layers.Mamba2(**SIZES), x)

    def gradient():
        return drawing.gradient(lambda x: ops.sum(ops.where(real[..., None], layer(x, mask=real), 0.0) ** 2), x)

    in_chunks = gradient()
    monkeypatch.setattr(mamba2, "selective_state_space", one_by_one)
    drawing.assert_same(in_chunks / np.abs(in_chunks).max(), gradient() / np.abs(in_chunks).max(), 2e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="has graphs of unknown lengths")
def test_lengths_may_be_unknown():
    assert_reads_unknown_lengths(txf.layers.Mamba2(**SIZES))


@pytest.mark.slow
def test_a_model_generates_with_the_probabilities_of_its_full_pass(tmp_path, uncompiled):
    mixers = [txf.layers.Mamba2(**SIZES), None]
    assert_generates_as_full_passes(mixers, tmp_path / "model.keras")


@pytest.mark.parametrize("options, words", [
    (dict(num_heads=0), ["`num_heads`", "0"]), (dict(head_dim=2.5), ["`head_dim`", "2.5"]),
    (dict(state_dim=0), ["`state_dim`", "0"]), (dict(num_groups=4), ["`num_groups`", "6", "4"]),
    (dict(conv_kernel_size=0), ["`conv_kernel_size`", "0"]), (dict(use_bias=1), ["`use_bias`", "1"]),
    (dict(conv_bias=0), ["`conv_bias`", "0"]), (dict(norm_epsilon=0.0), ["`norm_epsilon`", "0.0"]),
])  # fmt: skip
def test_wrong_options_raise_value_error(options, words):
    refused(lambda: txf.layers.Mamba2(**{**SIZES, **options}), words)


def test_heads_that_do_not_divide_the_expanded_width_raise_value_error():
    refused(lambda: txf.layers.Mamba2(num_heads=3)(drawing.normal(B, 7, D)), ["`num_heads`", "2 * dim", "3", "20"])
