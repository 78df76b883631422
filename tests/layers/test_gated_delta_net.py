"""GatedDeltaNet against a loop over tokens in float64, its gradients, and a model that decodes with it.

Legend: B batch, T length, D model dim, N value heads, G key heads, K and V widths of keys and values.
"""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from refusals import refused

import keras_txf as txf
from keras_txf.layers import gated_delta_net

B, D, G, N, K, V = 2, 10, 2, 6, 4, 5
SIZES = dict(num_key_heads=G, key_head_dim=K, num_value_heads=N, value_head_dim=V, conv_kernel_size=3)
LENGTHS = [(64, 1), (64, 70), (64, 7), (4, 8), (4, 11)]  # of a chunk, and of the sequence
if keras.backend.backend() == "jax":  # which compiles each operation anew
    LENGTHS = LENGTHS[:2]
REAL = {"left": [(4, 99), (0, 99)], "right": [(0, 99), (0, 4)], "both": [(0, 5), (2, 6)]}


def real_tokens(kind, length):
    places = np.arange(length)
    return np.stack([(places >= first) & (places < end) for first, end in REAL[kind]])


def silu(x):
    return x / (1 + np.exp(-x))


def slow(layer, x, real):
    """One token and head after the other: S <- a (1 - b k k^T) S + b k v^T."""
    w = {weight.path.partition("/")[2]: drawing.array(weight).astype("float64") for weight in layer.weights}
    x, size, length = x.astype("float64"), layer.conv_kernel_size, x.shape[1]
    query, key, value, gate, decay, beta = (
        x @ w[f"{name}/kernel"] for name in ("query", "key", "value", "gate", "decay", "beta")
    )
    joined = np.concatenate([query, key, value], axis=-1) * real[..., None]
    mixed = np.zeros_like(joined)
    for t, i in np.ndindex(length, size):
        if t >= i:
            mixed[:, t] += w["convolution_kernel"][size - 1 - i] * joined[:, t - i]
    query, key, value = np.split(silu(mixed), [G * K, 2 * G * K], axis=-1)
    output = np.zeros((B, length, N, V))
    for b, n in np.ndindex(B, N):
        state, head = np.zeros((K, V)), slice(n // (N // G) * K, n // (N // G) * K + K)
        for t in np.flatnonzero(real[b]):
            q, k = (y[b, t, head] / np.sqrt((y[b, t, head] ** 2).sum() + 1e-6) for y in (query, key))
            a = np.exp(-np.exp(w["A_log"][n]) * np.log1p(np.exp(decay[b, t, n] + w["dt_bias"][n])))
            step = 1 / (1 + np.exp(-beta[b, t, n]))
            v = value[b, t, n * V : n * V + V]
            state = a * (np.eye(K) - step * np.outer(k, k)) @ state + step * np.outer(k, v)
            read = q @ state / np.sqrt(K)
            read = read / np.sqrt((read**2).mean() + layer.norm_epsilon) * w["norm/scale"]
            output[b, t, n] = read * silu(gate[b, t, n * V : n * V + V])
    return output.reshape(B, length, -1) @ w["output/kernel"]


@pytest.mark.parametrize("chunk, length", LENGTHS)
def test_equals_a_loop_over_tokens_in_float64(chunk, length, monkeypatch):
    monkeypatch.setattr(gated_delta_net, "CHUNK", chunk)
    x = drawing.normal(B, length, D)
    layer = drawing.built(txf.layers.GatedDeltaNet(**SIZES), x)
    drawing.assert_same(layer(x), slow(layer, x, np.ones((B, length), bool)), 2e-5)
    for kind in REAL if length > 7 else ():
        real = real_tokens(kind, length)
        drawing.assert_same(drawing.array(layer(x, mask=real))[real], slow(layer, x, real)[real], 2e-5)


def one_by_one(query, key, value, log_decay, beta, state):
    """The rule by Keras, a token after the other."""
    outputs = []
    for t in range(query.shape[1]):
        k, v, b = key[:, t, :, :, None], value[:, t, :, None], beta[:, t, :, None, None]
        decayed = ops.exp(log_decay[:, t, :, None, None]) * state
        state = decayed - b * k * ops.sum(k * decayed, axis=2, keepdims=True) + b * k * v
        outputs.append(ops.sum(query[:, t, :, :, None] * state, axis=2))
    return ops.stack(outputs, axis=1), state


def test_gradients_equal_those_of_a_loop_over_tokens(monkeypatch):
    monkeypatch.setattr(gated_delta_net, "CHUNK", 4)
    x, real = drawing.normal(B, 6, D), real_tokens("both", 6)
    layer = drawing.built(txf.layers.GatedDeltaNet(**SIZES), x)

    def gradient():
        return drawing.gradient(lambda x: ops.sum(ops.where(real[..., None], layer(x, mask=real), 0.0) ** 2), x)

    in_chunks = gradient()
    monkeypatch.setattr(gated_delta_net, "gated_delta_rule", one_by_one)
    drawing.assert_same(in_chunks / np.abs(in_chunks).max(), gradient() / np.abs(in_chunks).max(), 2e-5)


@drawing.not_on_jax
def test_cost_counts_the_products_of_every_chunk(monkeypatch):
    monkeypatch.setattr(gated_delta_net, "CHUNK", 4)
    model = txf.models.decoder_generator(11, 1, D, attention=txf.layers.GatedDeltaNet(**SIZES))
    projections = D * (2 * G * K + 2 * N * V + 2 * N) + N * V * D
    chunk = 2 * 4**3 + 4 * 4 * (2 * K + K + V + V) + 4 * K * (K + V + 2 * V) + K * K * V
    expected = 11 * (projections + 2 * D * 4 * D + D * 11) + N * 3 * chunk
    assert txf.training.cost(model, batch_size=3, length=11).forward_flops == 2 * 3 * expected


def test_equal_keys_with_full_steps_do_not_overflow():
    """A text of one token alone: the powers of the matrix that is inverted reach 1e18."""
    key = np.broadcast_to(np.float32([0.6, 0.8, 0.0, 0.0]), (1, 64, 1, K))
    value, ones, state = drawing.normal(1, 64, 1, V), np.ones((1, 64, 1), "float32"), np.zeros((1, 1, K, V), "float32")
    given = [ops.convert_to_tensor(x) for x in (key, key, value, -1e-3 * ones, 0.99 * ones, state)]
    for found, expected in zip(gated_delta_net.gated_delta_rule(*given), one_by_one(*given)):
        drawing.assert_same(found, expected)


def assert_reads_unknown_lengths(layer):
    import tensorflow as tf

    layer = drawing.built(layer, drawing.normal(B, 7, D))
    graph = tf.function(layer, input_signature=[tf.TensorSpec((None, None, D))])
    for length in (0, 1, 64, 70):
        x = drawing.normal(B, length, D)
        drawing.assert_same(graph(x), layer(x))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="has graphs of unknown lengths")
def test_lengths_may_be_unknown():
    assert_reads_unknown_lengths(txf.layers.GatedDeltaNet(**SIZES))


def assert_generates_as_full_passes(mixers, path):
    """Of a decoder with these attentions, and of the same decoder after a file."""
    options = dict(num_heads=2, attention=mixers, norm="rms", norm_placement="pre", position="alibi")
    model = drawing.randomize(txf.models.decoder_generator(11, len(mixers), D, **options, pad_id=None))
    model.save(path)
    again = keras.saving.load_model(path)
    prompts = [[5, 3, 8, 2], [7]]
    for sampler in ("greedy", txf.generation.Beam(3)):
        found = model.generate(prompts, 4, sampler=sampler, return_scores=True, padded=False)
        assert sampler != "greedy" or again.generate(prompts, 4, padded=False) == found.ids
        for prompt, ids, log_probs in zip(prompts, found.ids, found.log_probs):
            whole = ops.log_softmax(model(np.array([ids])), axis=-1)
            expected = drawing.array(whole)[0, range(len(prompt) - 1, len(ids) - 1), ids[len(prompt) :]]
            np.testing.assert_allclose(log_probs, expected, atol=1e-4)


@pytest.mark.slow
def test_a_model_with_both_recurrences_generates_with_the_probabilities_of_its_full_pass(tmp_path, uncompiled):
    mixers = [txf.layers.GatedDeltaNet(**SIZES), txf.layers.ShortConvolution(3, use_bias=True), None]
    assert_generates_as_full_passes(mixers, tmp_path / "model.keras")


@pytest.mark.parametrize("options, words", [
    (dict(num_key_heads=0), ["`num_key_heads`", "0"]), (dict(key_head_dim=2.5), ["`key_head_dim`", "2.5"]),
    (dict(num_value_heads=3), ["`num_value_heads`", "num_key_heads=2", "3"]),
    (dict(conv_kernel_size=0), ["`conv_kernel_size`", "0"]), (dict(norm_epsilon=0.0), ["`norm_epsilon`", "0.0"]),
])  # fmt: skip
def test_wrong_options_raise_value_error(options, words):
    refused(lambda: txf.layers.GatedDeltaNet(**{**SIZES, **options}), words)
