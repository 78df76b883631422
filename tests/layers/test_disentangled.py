"""DisentangledPositions against a slow loop in float64, and what shares, stores, decodes and limits it.

Legend: B batch, T length, D width, N heads.
"""

import itertools
import math

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from refusals import refused

import keras_txf as txf

B, T, D, N = 2, 7, 12, 3
X = drawing.normal(B, T, D)
PLACES = np.array([[0, 1, 2, 3, 0, 1, 2], [5, 3, 9, 0, 2, 30, 4]])


def bucket(distance, max_distance, num_buckets):
    """DeBERTa's rule for one distance, query position minus key position."""
    if num_buckets is None:
        return min(max(distance + max_distance, 0), 2 * max_distance - 1)
    side, length = num_buckets // 2, abs(distance)
    exact = side // 2
    if length > exact:
        share = math.log(length / exact) / math.log((max_distance - 1) / exact)
        length = exact + math.ceil(share * (exact - 1) - 1e-6)
    return min(max(side + int(math.copysign(length, distance)), 0), 2 * side - 1)


def slow_attention(layer, x, mask, places):
    """One sample, head, query and key at a time, in float64; `mask` is bool (B, T, T), `places` int (B, T)."""
    position = layer.position_layer
    weights = {w.path.partition(layer.name + "/")[2]: drawing.array(w).astype("float64") for w in layer.weights}

    def project(name, x):
        return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0)

    vectors = drawing.array(position.embeddings).astype("float64")
    if position.norm:
        vectors = vectors - vectors.mean(-1, keepdims=True)
        vectors = vectors / np.sqrt((vectors**2).mean(-1, keepdims=True) + position.norm_epsilon)
        gamma, beta = (drawing.array(w).astype("float64") for w in position.norm_layer.weights)
        vectors = vectors * gamma + beta
    own = "" if position.share_projections else "position_"
    x, kv_heads = x.astype("float64"), layer.num_key_value_heads or N
    heads = {"query": N, "key": kv_heads, "value": kv_heads}
    content = {name: project(name, x).reshape(B, T, count, -1) for name, count in heads.items()}
    far = {}
    for name, wanted in (("query", position.position_to_content), ("key", position.content_to_position)):
        if wanted:
            far[name] = project(own + name, vectors).reshape(len(vectors), heads[name], -1)
    width = content["query"].shape[-1]
    output = np.zeros((B, T, N, width))
    for b, n, t in itertools.product(range(B), range(N), range(T)):
        group, allowed = n // (N // kv_heads), [s for s in range(T) if mask[b, t, s]]
        logits = []
        for s in allowed:
            place = bucket(int(places[b, t] - places[b, s]), position.max_distance, position.num_buckets)
            query, key = content["query"][b, t, n], content["key"][b, s, group]
            terms = [query @ key]
            terms += [query @ far["key"][place, group]] if "key" in far else []
            terms += [far["query"][place, n] @ key] if "query" in far else []
            scale = 1 / math.sqrt(len(terms) * width) if layer.scale is None else layer.scale
            logits.append(sum(terms) * scale)
        chosen = np.exp(np.array(logits) - max(logits))
        output[b, t, n] = (chosen / chosen.sum()) @ content["value"][b, allowed, group]
    return project("output", output.reshape(B, T, -1))


POSITIONS = {
    "version 1": dict(max_distance=4),
    "version 3": dict(max_distance=9, num_buckets=8, share_projections=True, norm=True, norm_epsilon=0.01),
    "content to position": dict(max_distance=9, num_buckets=4, position_to_content=False),
    "position to content": dict(max_distance=5, content_to_position=False, share_projections=True),
}
ATTENTIONS = {
    "no bias of keys": dict(key_bias=False), "causal": dict(causal=True, use_bias=False), "plain": {},
    "grouped": dict(num_key_value_heads=1, head_dim=6, scale=0.4),
}  # fmt: skip


def attention(position, **options):
    position = txf.layers.DisentangledPositions(D, **POSITIONS[position], name="places")
    layer = txf.layers.MultiHeadSelfAttention(N, position=position, **options)
    return drawing.built(layer, X)


# Each position and each attention, and the one pair in which the terms have heads of their own.
PAIRS = [*zip(POSITIONS, ATTENTIONS), ("version 1", "grouped"), ("version 3", "plain")]


@pytest.mark.parametrize("position, options", PAIRS)
def test_logits_are_the_sum_of_the_papers_terms(position, options):
    layer = attention(position, **ATTENTIONS[options])
    real = np.arange(T) < np.array([T, 4])[:, None]
    mask = np.broadcast_to(real[:, None], (B, T, T))
    if layer.causal:
        mask = (mask & np.tril(np.ones((T, T), bool))) | np.eye(T, dtype=bool)
    places = np.broadcast_to(np.arange(T), (B, T))
    drawing.assert_same(layer(X, mask=real), slow_attention(layer, X, mask, places), 1e-4)
    segments = np.array([[0, 0, 0, 0, 1, 1, 1], [0] * 7])
    mask = segments[:, :, None] == segments[:, None]
    if layer.causal:
        mask = mask & np.tril(np.ones((T, T), bool))
    outputs = layer(X, segment_ids=segments, positions=PLACES)
    drawing.assert_same(outputs, slow_attention(layer, X, mask, PLACES), 1e-4)


@pytest.mark.parametrize("max_distance, num_buckets", [(512, 512), (20, 8), (7, None), (30, 12)])
def test_buckets_equal_debertas(max_distance, num_buckets):
    layer = txf.layers.DisentangledPositions(1, max_distance, num_buckets)
    layer.build()
    number, far = num_buckets or 2 * max_distance, 3 * max_distance
    layer.embeddings.assign(np.arange(number)[:, None])
    found = drawing.array(layer(np.arange(far, far + 1), np.arange(2 * far)))[0, 0, :, 0]
    expected = [bucket(far - key, max_distance, num_buckets) for key in range(2 * far)]
    np.testing.assert_array_equal(found, expected)
    assert {0, number - 1} < set(expected)


def test_a_call_returns_the_vector_of_each_query_and_key():
    layer = attention("version 3").position_layer
    queries, keys = np.array([[0, 8], [3, 3]]), np.array([[1, 2, 9], [5, 0, 3]])
    found = drawing.array(layer(queries, keys))
    table = drawing.array(layer.norm_layer(layer.embeddings))
    for b, t, s in np.ndindex(2, 2, 3):
        expected = table[bucket(int(queries[b, t] - keys[b, s]), 9, 8)]
        np.testing.assert_allclose(found[b, t, s], expected, rtol=1e-6)


@pytest.mark.parametrize("name, own", [("version 1", 4), ("version 3", 0)])
def test_blocks_share_the_vectors_and_files_keep_them(name, own, tmp_path):
    position = txf.layers.DisentangledPositions(D, **POSITIONS[name], name="places")
    model = drawing.randomize(txf.models.encoder(11, 2, D, N, position=position))
    paths = [weight.path for weight in model.weights]
    kernels = [f"encoder_{i}/attention/position_{part}/kernel" for i in range(2) for part in ("key", "query")]
    assert sorted(path for path in paths if "position_" in path and path.endswith("kernel")) == kernels[:own]
    assert [path for path in paths if path.endswith("places/embeddings")] == ["places/embeddings"]
    ids = np.array([[5, 3, 8, 1, 0], [7, 2, 4, 9, 6]])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(drawing.array(again(ids)), drawing.array(model(ids)))
    assert [weight.path for weight in again.weights] == paths


@pytest.mark.slow
def test_generate_equals_greedy_search_without_a_cache():
    position = txf.layers.DisentangledPositions(D, **POSITIONS["version 1"])
    model = drawing.randomize(txf.models.decoder_generator(11, 2, D, N, position=position, pad_id=None))
    rows = np.array([[5, 3, 8], [7, 2, 4]])
    for _ in range(5):
        rows = np.concatenate([rows, drawing.array(model(rows))[:, -1:].argmax(-1)], axis=1)
    np.testing.assert_array_equal(model.generate(rows[:, :3], 5, stop_ids=()), rows)


def test_dropout_applies_to_vectors_only_in_training():
    plain, dropped = (
        drawing.built(txf.layers.MultiHeadSelfAttention(N, position=position), X)
        for position in (txf.layers.DisentangledPositions(D, 4, dropout=rate) for rate in (0.0, 0.6))
    )
    np.testing.assert_array_equal(drawing.array(dropped(X)), drawing.array(plain(X)))
    np.testing.assert_array_equal(drawing.array(plain(X, training=True)), drawing.array(plain(X)))
    assert drawing.difference(dropped(X, training=True), plain(X)) > 1e-3


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX lists the sizes of all values of a computation")
@pytest.mark.parametrize("positions", [None, np.zeros((3, 40), "int32")])
def test_no_value_is_larger_than_the_logits(positions):
    """A vector for each query and key, (B, N, T, T, H), would be 16 times as large."""
    import jax

    position = txf.layers.DisentangledPositions(32, max_distance=20, num_buckets=16, share_projections=True)
    layer = txf.layers.MultiHeadSelfAttention(2, position=position)
    x = drawing.normal(3, 40, 32)
    layer(x)

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (math.prod(value.aval.shape) for value in equation.outvars)
            for inner in equation.params.values():
                yield from sizes(inner.jaxpr) if hasattr(inner, "jaxpr") else ()

    def loss(x):
        return ops.sum(layer(x, positions=positions) ** 2)

    assert 3 * 2 * 40 * 40 <= max(sizes(jax.make_jaxpr(jax.grad(loss))(x).jaxpr)) <= 2 * 3 * 2 * 40 * 40


@pytest.mark.parametrize("options, words", [
    (dict(num_buckets=6), ["`num_buckets`", "multiple of 4", "6"]),
    (dict(num_buckets=64, max_distance=17), ["`num_buckets`", "max_distance - 1", "64", "17"]),
    (dict(content_to_position=False, position_to_content=False),
     ["`content_to_position`", "`position_to_content`", "True"]),
    (dict(norm=1), ["`norm`", "1"]),
    (dict(dropout=1.5), ["`dropout`", "1.5"]),
])  # fmt: skip
def test_wrong_options_raise_value_error(options, words):
    refused(lambda: txf.layers.DisentangledPositions(D, **options), words)


def test_another_width_than_the_shared_projections_raises_value_error():
    position = txf.layers.DisentangledPositions(D + 1, share_projections=True)
    layer = txf.layers.MultiHeadSelfAttention(N, position=position)
    refused(lambda: layer(X), ["`position`", "share_projections=True", "12", "dim=13"])
    position = txf.layers.DisentangledPositions(D + 1)
    assert txf.layers.MultiHeadSelfAttention(N, position=position)(X).shape == X.shape
