"""Layers and models of float64 compute in float64 from end to end, on every backend."""

import contextlib

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from layers.test_contracts import CASES as LAYERS
from models.test_contracts import CASES as MODELS

import keras_txf as txf

STEP = 1e-7


@pytest.fixture(autouse=True)
def wide_jax():
    """JAX has float64 in this scope alone."""
    if keras.backend.backend() != "jax":
        return (yield)
    import jax

    with jax.enable_x64(True):
        yield


def arrays(outputs):
    return [ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]


def along_a_line(case):
    """The outputs for three sets of weights and inputs on a line, two small steps apart."""
    subject = case.make(dtype="float64")
    case.model(subject)
    random, start = np.random.default_rng(0), subject.get_weights()
    directions = [random.normal(size=weight.shape) for weight in start]
    given = case.arrays()
    moved = {name: random.normal(size=x.shape) * (x != 0) for name, x in given.items() if x.dtype.kind == "f"}
    for step in (0.0, STEP, 2 * STEP):
        subject.set_weights(
            [w + step * d if w.dtype == "float64" else w for w, d in zip(start, directions, strict=True)]
        )
        now = {name: x + step * moved[name] if name in moved else x for name, x in given.items()}
        if isinstance(subject, keras.Model):
            yield arrays(subject(case.feed(now)))
        else:
            first, *others = now
            yield arrays(subject(now[first], **{name: now[name] for name in others}))


# A log-mel spectrogram is float32 under every policy. The inputs of the model of two blocks are float32.
SMOOTH = [case for case in LAYERS if case.name not in ("log-mel", "encoder-shared")]
SMOOTH += [case for case in MODELS if case.core or case.fullest]
if keras.backend.backend() == "jax":  # which compiles each operation by itself
    SMOOTH = [case for case in SMOOTH if case.core]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("case", SMOOTH, ids=lambda case: case.name)
def test_nothing_rounds_to_float32(case):
    """Over two steps of 1e-7 every function is straight. A number that is float32 on the way moves in jumps of 1e-8."""
    for first, second, third in zip(*along_a_line(case), strict=True):
        assert first.dtype == second.dtype == third.dtype == "float64"
        assert np.abs(third - 2 * second + first).max() < 2e-9 * max(1, np.abs(first).max())


def normed(x, gamma, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma


def turned(x):
    """Rotates each pair (i, i + H / 2) of (T, N, H) by its position times 10000^(-2i / H)."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def test_a_block_equals_numpy():
    x = np.random.default_rng(0).normal(size=(5, 8))
    attention = txf.layers.MultiHeadSelfAttention(
        2, causal=True, position="rotary", qk_norm="layer_per_head", norm_epsilon=1e-5, logit_soft_cap=2.0,
        name="attention", dtype="float64",
    )  # fmt: skip
    options = dict(attention=attention, norm="rms", norm_placement="pre", dtype="float64")
    block = txf.layers.EncoderBlock(intermediate_dim=6, gated=True, activation="silu", **options)
    found = arrays(drawing.built(block, x[None])(x[None]))[0][0]
    weights = {weight.path.split("/", 1)[1]: ops.convert_to_numpy(weight) for weight in block.weights}

    def part(name):
        return lambda x: x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    def rms(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + block.norm_epsilon) * weights[f"{name}/scale"]

    y = rms(x, "attention_norm")
    query, key, value = (part(f"attention/{name}")(y).reshape(5, 2, 4) for name in ("query", "key", "value"))
    query, key = (
        turned(normed(z, weights[f"attention/{name}_norm/gamma"], block.norm_epsilon))
        for z, name in ((query, "query"), (key, "key"))
    )
    logits = 2 * np.tanh(np.einsum("tnh,snh->nts", query, key) / 2 / 2)
    scores = softmax(np.where(np.tri(5, dtype=bool), logits, -1e30))
    x = x + part("attention/output")(np.einsum("nts,snh->tnh", scores, value).reshape(5, 8))
    y = rms(x, "feed_forward_norm")
    gate = part("feed_forward/gate")(y)
    x = x + part("feed_forward/output")(gate / (1 + np.exp(-gate)) * part("feed_forward/intermediate")(y))
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)


def test_positions_and_pooling_equal_numpy():
    places, frequencies = np.arange(50)[:, None], 10000.0 ** (-2 * np.arange(3) / 6)
    waves = np.stack([np.sin(places * frequencies), np.cos(places * frequencies)], axis=-1).reshape(1, 50, 6)
    layer = txf.layers.PositionalEmbedding(None, 6, pad_id=None, dtype="float64")
    np.testing.assert_allclose(arrays(layer(np.ones((1, 50), "int32")))[0], waves, atol=1e-12)
    x = np.random.default_rng(0).normal(size=(2, 5, 8))
    layer = drawing.built(txf.layers.Pooling("attention", dtype="float64"), x)
    weights = softmax((x @ ops.convert_to_numpy(layer.score.kernel))[..., 0])
    np.testing.assert_allclose(arrays(layer(x))[0], (weights[..., None] * x).sum(1), atol=1e-12)


def test_long_attention_and_its_gradient_are_float64(monkeypatch):
    if keras.backend.backend() != "torch":
        pytest.skip("PyTorch has gradients without a graph")
    import torch

    x = np.random.default_rng(0).normal(size=(1, 5, 8))
    layer = txf.layers.MultiHeadSelfAttention(2, logit_soft_cap=3.0, dtype="float64")

    def gradient():
        given = torch.tensor(x, requires_grad=True)
        torch.sum(torch.square(layer(given))).backward()
        return given.grad.numpy()

    expected = gradient()
    monkeypatch.setattr("keras_txf.ops.attention.LONG", 1)
    np.testing.assert_allclose(gradient(), expected, atol=1e-12)


def test_other_layers_keep_the_types_of_keras():
    """Outside of our layers Keras narrows float64 as without this package."""
    x = ops.convert_to_tensor(np.ones((2, 2)), "float64")
    with contextlib.suppress(ValueError):  # a layer that fails leaves the scope too
        txf.layers.FeedForward(4, dtype="float64")(np.ones((2, 2), "float64"))
    kept = keras.backend.backend() == "tensorflow"
    assert keras.backend.result_type("float64", "float64") == ("float64" if kept else "float32")
    assert keras.backend.standardize_dtype(ops.maximum(x, 1.0).dtype) == "float64" or not kept
