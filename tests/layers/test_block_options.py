"""Options of attention, and residuals and scales of blocks: each against its own few lines of NumPy."""

import functools

import keras
import numpy as np
import pytest
from drawing import array, assert_same, built, normal
from refusals import refused
from user_layers import LogDistance

import keras_txf as txf

X, CONTEXT = normal(2, 5, 12), normal(2, 3, 7, seed=2)


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
def test_sublayers_of_a_parallel_residual_read_the_input_of_the_block(placement):
    options = dict(norm_placement=placement, residual=txf.layers.Residual("parallel", layer_scale=0.1))
    block = built(txf.layers.DecoderBlock(3, cross_attention=True, **options), X, CONTEXT)
    expected = X.astype("float64")
    cross = functools.partial(block.cross_attention_layer, context=CONTEXT)
    parts = {"attention": block.attention, "cross_attention": cross, "feed_forward": block.feed_forward}
    for name, part in parts.items():
        update = part(getattr(block, f"{name}_norm")(X))
        if placement == "sandwich":
            update = getattr(block, f"{name}_post_norm")(update)
        expected = expected + array(update) * array(getattr(block, f"{name}_scale").gamma)
    assert_same(block(X, CONTEXT), expected, 1e-5)


def test_one_norm_before_parallel_sublayers():
    options = dict(norm_placement="pre", residual=txf.layers.Residual("parallel_one_norm", scale=0.3))
    block = built(txf.layers.DecoderBlock(3, cross_attention=True, **options), X, CONTEXT)
    assert [weight.path for weight in block.weights if "norm" in weight.path] == [
        f"{block.name}/attention_norm/{name}" for name in ("gamma", "beta")
    ]
    normed = block.attention_norm(X)
    updates = block.attention(normed), block.cross_attention_layer(normed, CONTEXT), block.feed_forward(normed)
    expected = X.astype("float64") + 0.3 * sum(array(update).astype("float64") for update in updates)
    assert_same(block(X, CONTEXT), expected, 1e-5)


def test_a_norm_of_the_outputs_of_sublayers():
    residual = txf.layers.Residual(scale=0.5)
    block = built(txf.layers.EncoderBlock(3, norm_placement="res_post", norm="rms", residual=residual), X)
    x = X.astype("float64")
    for sublayer, norm in ((block.attention, block.attention_norm), (block.feed_forward, block.feed_forward_norm)):
        update = array(sublayer(x.astype("float32"))).astype("float64")
        update = update / np.sqrt((update**2).mean(-1, keepdims=True) + 1e-5) * array(norm.scale)
        x = x + 0.5 * update
    assert_same(block(X), x, 1e-5)
    stack = txf.models.encoder(7, 1, 12, 3, norm_placement="res_post")
    assert "encoder_norm" in [layer.name for layer in stack.layers]


@pytest.mark.parametrize("gated", [False, True])
def test_output_bias_of_the_feed_forward_is_independent(gated):
    layer = built(txf.layers.FeedForward(48, "tanh", gated, use_bias=False, output_bias=True), X)
    names = {weight.path.removeprefix(f"{layer.name}/") for weight in layer.weights}
    assert names == {"intermediate/kernel", "output/kernel", "output/bias", *(["gate/kernel"] if gated else [])}
    wide = X @ array(layer.intermediate.kernel)
    wide = np.tanh(X @ array(layer.gate.kernel)) * wide if gated else np.tanh(wide)
    assert_same(layer(X), wide @ array(layer.output_dense.kernel) + array(layer.output_dense.bias), 1e-5)


def test_layer_scale_has_its_initial_value_and_is_learned():
    block = txf.layers.EncoderBlock(
        3, norm_placement="pre", dropout=0.0, residual=txf.layers.Residual(layer_scale=1e-3)
    )
    outputs = array(block(X))
    assert 0 < np.abs(outputs - X).max() < 0.05
    [gamma] = [weight for weight in block.trainable_weights if weight.path.endswith("attention_scale/gamma")]
    np.testing.assert_allclose(array(gamma), np.full(12, 1e-3), rtol=1e-6)
    again = type(block).from_config(block.get_config())
    assert again.residual.layer_scale == 1e-3


# Of each, the arguments of `MultiHeadSelfAttention` and of `CrossAttention`, or of the first alone.
ATTENTIONS = {
    "plain": dict(num_heads=3),
    "heads alone": dict(num_heads=4, head_dim=6, num_key_value_heads=2, output_projection=False, qk_norm=True),
    "causal": dict(num_heads=3, head_dim=8, causal=True, output_projection=False),
    "sinks": dict(num_heads=3, num_key_value_heads=1, sinks=True, causal=True),
    "output gate": dict(num_heads=3, head_dim=5, num_key_value_heads=1, output_gate=True),
    "norm of each head": dict(num_heads=3, num_key_value_heads=1, qk_norm="head", norm_epsilon=1e-2),
    "norm over all heads": dict(num_heads=3, num_key_value_heads=1, qk_norm="full", norm_epsilon=1e-2),
    "layer norm": dict(num_heads=3, num_key_value_heads=1, qk_norm="layer", norm_epsilon=1e-2, scale=0.4),
    "layer norms": dict(num_heads=3, num_key_value_heads=1, qk_norm="layer_per_head", norm_epsilon=1e-2),
    "position of the user's": dict(num_heads=3, causal=True, position=LogDistance(3)),
    "rotary": dict(num_heads=3, causal=True, position="rotary"),
    "alibi and window": dict(num_heads=3, window=2, position="alibi"),
    "relative": dict(num_heads=3, causal=True, window=3, position="relative"),
}  # fmt: skip


def normed(norm, kind, x, epsilon):
    """Queries or keys, (B, length, heads, H), after the norm that `qk_norm` names."""
    if kind == "full":
        flat = x.reshape(*x.shape[:2], -1)
        scaled = flat / np.sqrt((flat**2).mean(-1, keepdims=True) + epsilon) * array(norm.scale)
        return scaled.reshape(x.shape)
    if kind in (True, "head"):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * array(norm.scale)
    centred = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    assert tuple(norm.gamma.shape) == (x.shape[-1:] if kind == "layer" else x.shape[-2:])
    return centred * array(norm.gamma) + (array(norm.beta) if kind == "layer" else 0)


def attention(layer, inputs, context, mask):
    """Outputs and scores by the paper's formula, in float64: softmax(Q K^T / sqrt(H)) V, the heads side by side."""
    kv_heads, parts = layer.num_key_value_heads or layer.num_heads, {}
    position, places = getattr(layer, "position_layer", None), np.arange(inputs.shape[1])  # its formula: tests/ops
    for name, x in (("query", inputs), ("key", context), ("value", context)):
        heads = layer.num_heads if name == "query" else kv_heads
        kernel, bias = (array(weight).astype("float64") for weight in getattr(layer, name).weights)
        parts[name] = (x.astype("float64") @ kernel + bias).reshape(*x.shape[:2], heads, -1)
        if layer.qk_norm and name != "value":
            parts[name] = normed(getattr(layer, f"{name}_norm"), layer.qk_norm, parts[name], layer.norm_epsilon)
        if position is not None and name != "value":
            parts[name] = array(position.rotate(parts[name].astype("float32"), places))
    query, key, value = (np.repeat(x, layer.num_heads // x.shape[2], axis=2) for x in parts.values())
    scale = layer.scale or 1 / np.sqrt(query.shape[-1])
    logits = np.einsum("btnh,bsnh->bnts", query, key) * scale
    if position is not None and (bias := position.bias(places, places)) is not None:
        logits = logits + array(bias)
    weights = np.exp(np.where(mask, logits, -np.inf))
    sinks = np.exp(array(layer.sink_logits))[:, None, None] if layer.sinks else 0
    scores = weights / (weights.sum(-1, keepdims=True) + sinks)
    outputs = np.einsum("bnts,bsnh->btnh", scores, value).reshape(*inputs.shape[:2], -1)
    if layer.output_gate:
        kernel, bias = (array(weight).astype("float64") for weight in layer.gate_dense.weights)
        outputs = outputs / (1 + np.exp(-(inputs @ kernel + bias)))
    if layer.output_dense is not None:
        kernel, bias = map(array, layer.output_dense.weights)
        outputs = outputs @ kernel + bias
    return outputs, scores


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_equals_numpy(name):
    layer = built(txf.layers.MultiHeadSelfAttention(**ATTENTIONS[name]), X)
    distance = np.arange(5)[:, None] - np.arange(5)
    seen = (np.abs(distance) < (layer.window or 5)) & ((distance >= 0) | (not layer.causal))
    expected, scores = attention(layer, X, X, seen)
    assert_same(layer(X), expected)
    found = layer(X, return_attention_scores=True)  # which may be another kernel
    assert_same(found[0], expected)
    assert_same(found[1], scores)


@pytest.mark.parametrize("name", [name for name, x in ATTENTIONS.items() if "position" not in x])
def test_cross_attention_equals_numpy(name):
    layer = txf.layers.CrossAttention(**ATTENTIONS[name])
    context = X[:, ::-1, :7] if layer.causal else CONTEXT
    mask = np.arange(context.shape[1]) < np.array([[5], [2]])
    seen = (
        (mask[:, None, None] | np.eye(5, dtype=bool)) & np.tri(5, dtype=bool) if layer.causal else mask[:, None, None]
    )
    expected, _ = attention(built(layer, X, context), X, context, seen)
    assert_same(layer(X, context, context_mask=mask), expected)


def test_a_norm_of_each_head_is_float32_and_saved(tmp_path):
    inputs = keras.Input((5, 12), dtype="float16")
    layer = txf.layers.MultiHeadSelfAttention(3, qk_norm="layer_per_head", dtype="mixed_float16", name="attention")
    model = keras.Model(inputs, layer(inputs))
    built(layer, X.astype("float16"))
    norm = layer.query_norm
    large = np.random.default_rng(3).normal(size=(2, 5, 3, 4)).astype("float16") * 1000  # whose squares are too large
    assert np.isfinite(array(norm(large))).all() and norm(large).dtype == norm(large[:1]).dtype
    exact = large.astype("float64")
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-6) * array(norm.gamma)
    np.testing.assert_allclose(array(norm(large)), exact, atol=5e-3)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again(X)), array(model(X)))


@pytest.mark.parametrize("options, words", [
    ({"residual": "parallel"}, ["residual='parallel'", "norm_placement", "'post'"]),
    ({"residual": "parallel_one_norm"}, ["residual='parallel_one_norm'", "`norm_placement` must be 'pre'", "'post'"]),
])  # fmt: skip
def test_wrong_options_raise_value_error(options, words):
    refused(lambda: txf.layers.EncoderBlock(3, **options), words)
