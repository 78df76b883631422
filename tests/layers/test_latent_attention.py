"""LatentAttention against a slow loop in float64, and what trains, decodes, stores, splits and limits it.

Legend: B batch, T length, D model dim, N heads, R rank of keys and values, C content features of a head, P rotary
    features, V value features.
"""

import functools
import math

import drawing
import numpy as np
import pytest
from keras import ops
from refusals import refused

import keras_txf as txf
from keras_txf.ops import attention as kernel

B, T, D, N, R, C, P = 2, 7, 12, 3, 8, 6, 4
X = drawing.normal(B, T, D)
SIZES = dict(num_heads=N, kv_lora_rank=R, qk_nope_head_dim=C, qk_rope_head_dim=P)
YARN = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 5, "beta_fast": 3.0, "mscale": 0.9,
    "mscale_all_dim": 0.6,
}  # fmt: skip
OPTIONS = {
    "plain": {},
    "queries of a small vector": dict(q_lora_rank=5, v_head_dim=9, causal=True, use_bias=True),
    "narrow values": dict(v_head_dim=2, scale=0.7, norm_epsilon=0.1, position=txf.layers.Rotary(base=50.0)),
    "yarn": dict(v_head_dim=13, causal=True, position=txf.layers.Rotary(30.0, scaling=YARN, interleaved=True)),
}


def make(**options):
    return drawing.built(txf.layers.LatentAttention(**SIZES, **options), X)


def turned(x, position, frequencies, magnitude, interleaved):
    """Rotates each pair of features of one vector by position times frequency."""
    result, half = np.array(x), len(x) // 2
    for i, frequency in enumerate(frequencies):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        cos, sin = (magnitude * f(position * frequency) for f in (math.cos, math.sin))
        result[a], result[b] = x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin
    return result


def frequencies_of(rotary):
    """Of each pair, and the factor on what turns; YaRN by its paper, for the two pairs of P = 4."""
    plain = [rotary.base ** (-2 * i / P) for i in range(P // 2)]
    if rotary.scaling is None:
        return plain, 1.0
    turns = [YARN["original_max_position_embeddings"] / (math.tau * n) for n in (YARN["beta_fast"], 1.0)]
    low, high = (P * math.log(x) / (2 * math.log(rotary.base)) for x in turns)
    low, high = max(math.floor(low), 0), min(math.ceil(high), P - 1)
    ramp = [min(max((i - low) / max(high - low, 0.001), 0), 1) for i in range(P // 2)]
    mixed = [r * f / YARN["factor"] + (1 - r) * f for r, f in zip(ramp, plain)]
    return mixed, magnitude("mscale") / magnitude("mscale_all_dim")


def magnitude(name):
    return 0.1 * YARN[name] * math.log(YARN["factor"]) + 1


def slow(layer, x, mask, places):
    """One query, one head and one key after the other, in float64: outputs (B, T, D) and scores (B, N, T, T)."""
    values = {w.path.partition("/")[2]: drawing.array(w).astype("float64") for w in layer.weights}

    def dense(name, x):
        return x @ values[f"{name}/kernel"] + values.get(f"{name}/bias", 0.0)

    def norm(name, x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + layer.norm_epsilon) * values[f"{name}/scale"]

    x, width = x.astype("float64"), layer.v_head_dim or C
    frequencies = *frequencies_of(layer.position_layer), layer.position_layer.interleaved
    of_small = layer.q_lora_rank is not None
    query = dense("query_up", norm("query_norm", dense("query_down", x))) if of_small else dense("query", x)
    query, small = query.reshape(B, T, N, C + P), dense("key_value_down", x)
    heads = dense("key_value_up", norm("key_value_norm", small[..., :R])).reshape(B, T, N, C + width)
    default = (magnitude("mscale_all_dim") ** 2 if layer.position_layer.scaling else 1.0) / math.sqrt(C + P)
    scale = layer.scale or default
    output, scores = np.zeros((B, T, N, width)), np.zeros((B, N, T, T))
    for b, t, n in np.ndindex(B, T, N):
        seen, logits = [s for s in range(T) if mask[b, t, s]], []
        rotary = turned(query[b, t, n, C:], places[b, t], *frequencies)
        for s in seen:
            key = turned(small[b, s, R:], places[b, s], *frequencies)
            logits.append(scale * (query[b, t, n, :C] @ heads[b, s, n, :C] + rotary @ key))
        chosen = np.exp(np.array(logits) - max(logits))
        scores[b, n, t, seen] = chosen / chosen.sum()
        output[b, t, n] = scores[b, n, t, seen] @ heads[b, seen, n, C:]
    return dense("output", output.reshape(B, T, -1)), scores


@pytest.mark.parametrize("name", OPTIONS)
def test_equals_a_slow_loop_in_float64(name):
    layer = make(**OPTIONS[name])
    order = np.tril(np.ones((T, T), bool)) if layer.causal else np.ones((T, T), bool)
    real = np.arange(T) < np.array([T, 4])[:, None]
    places = np.broadcast_to(np.arange(T), (B, T))
    outputs, scores = layer(X, mask=real, return_attention_scores=True)
    expected, weights = slow(layer, X, order & (real[:, None] | np.eye(T, dtype=bool)), places)
    drawing.assert_same(outputs[0], expected[0], 1e-5)
    drawing.assert_same(outputs[1, :4], expected[1, :4], 1e-5)
    drawing.assert_same(scores[1, :, :4], weights[1, :, :4], 1e-5)
    segments = np.array([[0, 0, 0, 0, 1, 1, 1], [0] * 7])
    places = np.array([[0, 1, 2, 3, 0, 1, 2], [5, 0, 2, 9, 1, 3, 4]])
    visible = order & (segments[:, :, None] == segments[:, None])
    chosen = np.random.default_rng(2).random((B, T, T)) < 0.6
    chosen |= np.eye(T, dtype=bool)
    outputs = layer(X, attention_mask=chosen, segment_ids=segments, positions=places)
    drawing.assert_same(outputs, slow(layer, X, visible & chosen, places)[0], 1e-5)
    bias = layer.output_dense.bias if layer.use_bias else np.zeros(D)
    drawing.assert_same(layer(X, attention_mask=np.zeros((T, T), bool)), np.broadcast_to(bias, (B, T, D)))


@pytest.mark.parametrize("width", [2, 13])
def test_long_sequences_in_blocks_equal_the_whole_attention(width, monkeypatch):
    """Outputs and the gradient of the inputs, with values narrower and wider than the keys."""
    layer = make(v_head_dim=width, causal=True)
    mask = np.arange(T) < np.array([T, 4])[:, None]

    def run():
        return layer(X, mask=mask), drawing.gradient(lambda x: ops.sum(layer(x, mask=mask) ** 2), X)

    whole = run()
    used, blocks = [], kernel.blockwise_attention
    monkeypatch.setattr(kernel, "LONG", 1)
    monkeypatch.setattr(kernel, "fuses_long", lambda *_: False)
    in_blocks = functools.partial(blocks, block_lengths=(3, 4))
    monkeypatch.setattr(kernel, "blockwise_attention", lambda *args: used.append(1) or in_blocks(*args))
    for one, other in zip(run(), whole):
        drawing.assert_same(one, other, 1e-5)
    assert used


def test_a_generator_has_no_absolute_positions_and_a_cache_of_small_vectors():
    layer = txf.layers.LatentAttention(**SIZES, causal=True, q_lora_rank=5, v_head_dim=9)
    model = txf.models.decoder_generator(11, 2, D, attention=layer)
    assert model.get_layer("embedding").position_encoding is None
    names = {x.name for x in txf.models.step_model(model).inputs}
    assert {"decoder_1_key", "decoder_1_value"} <= names
    ids, mask = np.array([[5, 3, 8]]), np.ones((1, 9), bool)
    known = txf.models.prefill_model(model)({"token_ids": ids, "attention_mask": mask})
    assert known["decoder_1_key"].shape == (1, 1, 9, R) and known["decoder_1_value"].shape == (1, 1, 9, P)
    with_sinusoids = txf.models.decoder_generator(11, 1, D, attention=layer, position_encoding="sinusoidal")
    assert with_sinusoids.get_layer("embedding").position_encoding == "sinusoidal"


@pytest.mark.slow
def test_generate_equals_greedy_search_without_a_cache():
    layer = txf.layers.LatentAttention(**SIZES, **OPTIONS["yarn"])
    model = drawing.randomize(txf.models.decoder_generator(11, 2, D, attention=layer, pad_id=None))
    prompts = [[5, 3, 8, 2], [7]]
    for row, answer in zip(prompts, model.generate(prompts, 5, padded=False)):
        for _ in range(5):
            row = [*row, int(drawing.array(model(np.array([row])))[0, -1].argmax())]
        assert list(answer) == row


@drawing.not_on_jax
def test_cost_counts_the_products_of_values_that_are_narrower_than_keys():
    layer = txf.layers.LatentAttention(**SIZES, v_head_dim=2, causal=True)
    cost = txf.training.cost(txf.models.decoder_generator(11, 1, D, attention=layer), batch_size=3, length=5)
    projections = D * N * (C + P) + D * (R + P) + R * N * (C + 2) + N * 2 * D
    others = 2 * D * 4 * D + D * 11
    pairs = 5 * 5 * N * (C + P + 2)
    assert cost.forward_flops == 2 * 3 * (5 * (projections + others) + pairs)


@pytest.mark.parametrize("options, words", [
    (dict(num_heads=0), ["`num_heads`", "0"]), (dict(kv_lora_rank=2.5), ["`kv_lora_rank`", "2.5"]),
    (dict(qk_rope_head_dim=3), ["even", "qk_rope_head_dim=3"]),
    (dict(position="rotary"), ["`position`", "Rotary", "'rotary'"]),
    (dict(position=txf.layers.ALiBi(3)), ["`position`", "Rotary"]), (dict(scale=0.0), ["`scale`", "0.0"]),
    (dict(dropout=1.0), ["`dropout`", "1.0"]), (dict(use_bias=1), ["`use_bias`", "1"]),
])  # fmt: skip
def test_wrong_options_raise_value_error(options, words):
    refused(lambda: txf.layers.LatentAttention(**{**SIZES, **options}), words)


def test_wrong_arguments_raise_value_error():
    refused(lambda: txf.layers.LatentAttention(**SIZES).build((2, 5)), ["`inputs`", "(2, 5)"])
    layer = txf.layers.LatentAttention(**SIZES)
    refused(lambda: txf.layers.DecoderBlock(attention=layer), ["`attention`", "causal=False"])
    cache = txf.layers.Cache.of_prompt(np.ones((B, T), bool), length=T)
    refused(lambda: layer(X, cache=cache, segment_ids=np.ones((B, T), "int32")), ["`segment_ids`", "`cache`"])
    refused(lambda: layer(X, cache=cache, positions=np.arange(T - 1)), ["`positions`"])
