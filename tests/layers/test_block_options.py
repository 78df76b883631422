"""Parallel residuals, layer scale, sinks, and the norm over all heads: each against its own few lines of NumPy."""

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")


def array(x):
    return keras.ops.convert_to_numpy(x)


def randomised(layer, *inputs):
    """The layer, built, with weights that are all different."""
    layer(*inputs)
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(rng.normal(size=weight.shape) * 0.5)
    return layer


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
def test_a_parallel_residual_has_all_sublayers_read_the_same(placement):
    context = np.random.default_rng(2).normal(size=(2, 3, 7)).astype("float32")
    block = txf.layers.DecoderBlock(
        3, cross_attention=True, norm_placement=placement, residual="parallel", layer_scale=0.1
    )
    block = randomised(block, X, context)
    expected = X.astype("float64")
    parts = {
        "attention": lambda x: block.attention(x),
        "cross_attention": lambda x: block.cross_attention_layer(x, context),
        "feed_forward": lambda x: block.feed_forward(x),
    }
    for name, part in parts.items():
        update = part(getattr(block, f"{name}_norm")(X))
        if placement == "sandwich":
            update = getattr(block, f"{name}_post_norm")(update)
        expected = expected + array(update) * array(getattr(block, f"{name}_scale").gamma)
    drawing.assert_same(block(X, context), expected, 1e-5)


def test_one_norm_before_parallel_sublayers():
    context = np.random.default_rng(2).normal(size=(2, 3, 7)).astype("float32")
    options = dict(norm_placement="pre", residual="parallel_one_norm", residual_scale=0.3)
    block = randomised(txf.layers.DecoderBlock(3, cross_attention=True, **options), X, context)
    assert [weight.path for weight in block.weights if "norm" in weight.path] == [
        f"{block.name}/attention_norm/{name}" for name in ("gamma", "beta")
    ]
    normed = block.attention_norm(X)
    updates = block.attention(normed), block.cross_attention_layer(normed, context), block.feed_forward(normed)
    expected = X.astype("float64") + 0.3 * sum(array(update).astype("float64") for update in updates)
    drawing.assert_same(block(X, context), expected, 1e-5)


def test_a_norm_of_what_sublayers_add():
    block = randomised(txf.layers.EncoderBlock(3, norm_placement="res_post", norm="rms", residual_scale=0.5), X)
    x = X.astype("float64")
    for sublayer, norm in ((block.attention, block.attention_norm), (block.feed_forward, block.feed_forward_norm)):
        update = array(sublayer(x.astype("float32"))).astype("float64")
        update = update / np.sqrt((update**2).mean(-1, keepdims=True) + 1e-5) * array(norm.scale)
        x = x + 0.5 * update
    drawing.assert_same(block(X), x, 1e-5)
    stack = txf.models.encoder(7, 1, 12, 3, norm_placement="res_post")
    assert "encoder_norm" in [layer.name for layer in stack.layers]


@pytest.mark.parametrize("gated", [False, True])
def test_the_last_bias_of_the_feed_forward_is_its_own(gated):
    options = {"feed_forward_bias": False, "feed_forward_output_bias": True, "gated": gated, "activation": "tanh"}
    block = randomised(txf.layers.EncoderBlock(3, norm_placement="pre", dropout=0.0, **options), X)
    names = {weight.path.rpartition("feed_forward/")[2] for weight in block.feed_forward.weights}
    assert names == {"intermediate/kernel", "output/kernel", "output/bias", *(["gate/kernel"] if gated else [])}
    layer = block.feed_forward
    wide = X @ array(layer.intermediate.kernel)
    wide = np.tanh(X @ array(layer.gate.kernel)) * wide if gated else np.tanh(wide)
    drawing.assert_same(layer(X), wide @ array(layer.output_dense.kernel) + array(layer.output_dense.bias), 1e-5)


def test_layer_scale_begins_as_its_number_and_is_learned():
    block = txf.layers.EncoderBlock(3, norm_placement="pre", dropout=0.0, layer_scale=1e-3)
    outputs = array(block(X))
    assert 0 < np.abs(outputs - X).max() < 0.05
    [gamma] = [weight for weight in block.trainable_weights if weight.path.endswith("attention_scale/gamma")]
    np.testing.assert_allclose(array(gamma), np.full(12, 1e-3), rtol=1e-6)
    again = type(block).from_config(block.get_config())
    assert again.layer_scale == 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_sinks_take_weight_from_the_keys(causal):
    layer = randomised(txf.layers.MultiHeadSelfAttention(3, num_key_value_heads=1, sinks=True, causal=causal), X)
    heads = {name: array(getattr(layer, name)(X)).astype("float64") for name in ("query", "key", "value")}
    query = heads["query"].reshape(2, 5, 3, 4)
    logits = np.einsum("btnh,bsh->bnts", query, heads["key"]) / 2
    if causal:
        logits = np.where(np.tril(np.ones((5, 5), bool)), logits, -np.inf)
    weights = np.exp(logits)
    sinks = np.exp(array(layer.sink_logits).astype("float64"))[None, :, None, None]
    weights = weights / (weights.sum(-1, keepdims=True) + sinks)
    outputs = np.einsum("bnts,bsh->btnh", weights, heads["value"]).reshape(2, 5, 12)
    result, scores = layer(X, return_attention_scores=True)
    drawing.assert_same(result, array(layer.output_dense(outputs.astype("float32"))), 1e-5)
    drawing.assert_same(scores, weights, 1e-5)
    drawing.assert_same(layer(X), result, 1e-6)
    assert (array(scores).sum(-1) < 1).all()


def test_a_token_that_sees_nothing_gets_zeros_beside_a_sink():
    layer = randomised(txf.layers.MultiHeadSelfAttention(3, sinks=True, output_projection=False), X)
    mask = np.ones((5, 5), bool)
    mask[2] = False
    outputs = array(layer(X, attention_mask=mask))
    assert np.isfinite(outputs).all() and (outputs[:, 2] == 0).all() and (outputs[:, 1] != 0).any()


def test_the_full_norm_is_over_all_heads():
    layer = randomised(
        txf.layers.MultiHeadSelfAttention(3, num_key_value_heads=1, qk_norm="full", norm_epsilon=1e-5), X
    )
    assert tuple(layer.query_norm.scale.shape) == (12,) and tuple(layer.key_norm.scale.shape) == (4,)
    heads = {}
    for name in ("query", "key"):
        x = array(getattr(layer, name)(X)).astype("float64")
        scale = array(getattr(layer, f"{name}_norm").scale)
        heads[name] = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    logits = np.einsum("btnh,bsh->bnts", heads["query"].reshape(2, 5, 3, 4), heads["key"]) / 2
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    drawing.assert_same(layer(X, return_attention_scores=True)[1], weights, 1e-5)


@pytest.mark.parametrize("kind", ["layer", "layer_per_head"])
def test_layer_norms_are_of_each_head(kind):
    options = dict(num_key_value_heads=1, qk_norm=kind, norm_epsilon=1e-2)
    layer = randomised(txf.layers.MultiHeadSelfAttention(3, **options), X)
    heads = {}
    for name, count in (("query", 3), ("key", 1)):
        norm = getattr(layer, f"{name}_norm")
        assert tuple(norm.gamma.shape) == ((4,) if kind == "layer" else (count, 4))
        x = array(getattr(layer, name)(X)).astype("float64").reshape(2, 5, count, 4)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-2)
        heads[name] = x * array(norm.gamma) + (array(norm.beta) if kind == "layer" else 0)
    logits = np.einsum("btnh,bsh->bnts", heads["query"], heads["key"][:, :, 0]) / 2
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    drawing.assert_same(layer(X, return_attention_scores=True)[1], weights, 1e-5)


def test_a_norm_of_each_head_is_float32_and_saved(tmp_path):
    inputs = keras.Input((5, 12), dtype="float16")
    layer = txf.layers.MultiHeadSelfAttention(3, qk_norm="layer_per_head", dtype="mixed_float16", name="attention")
    model = keras.Model(inputs, layer(inputs))
    randomised(layer, X.astype("float16"))
    norm = layer.query_norm
    large = np.random.default_rng(3).normal(size=(2, 5, 3, 4)).astype("float16") * 1000  # whose squares are too large
    assert np.isfinite(array(norm(large))).all() and norm(large).dtype == norm(large[:1]).dtype
    exact = large.astype("float64")
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-6) * array(norm.gamma)
    np.testing.assert_allclose(array(norm(large)), exact, atol=5e-3)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again(X)), array(model(X)))


def test_head_is_another_word_for_true():
    layers = [randomised(txf.layers.MultiHeadSelfAttention(3, qk_norm=value), X) for value in (True, "head")]
    np.testing.assert_array_equal(*(array(layer(X)) for layer in layers))


@pytest.mark.parametrize("options, words", [
    ({"residual": "parallel"}, ["residual='parallel'", "norm_placement", "'post'"]),
    ({"residual": "parallel_one_norm"}, ["residual='parallel_one_norm'", "norm_placement='pre'", "'post'"]),
    ({"residual": "parallel_one_norm", "norm_placement": "pre", "norm_attention": False},
     ["residual='parallel_one_norm'", "norm_attention=False"]),
    ({"residual": "side by side"}, ["`residual`", "side by side"]),
    ({"layer_scale": 0.0}, ["`layer_scale`", "0.0"]),
    ({"qk_norm": "heads"}, ["`qk_norm`", "heads"]),
    ({"sinks": 1}, ["`sinks`", "1"]),
    ({"feed_forward_output_bias": 1}, ["`feed_forward_output_bias`", "1"]),
])  # fmt: skip
def test_bad_options_are_refused(options, words):
    refused(lambda: txf.layers.EncoderBlock(3, **options), words)
