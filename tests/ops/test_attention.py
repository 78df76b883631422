"""The attention op against a slow reference, and its fused path against its plain path.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

import itertools
import math

import drawing
import numpy as np
import pytest
from keras import ops

from keras_txf.ops import attention as kernel
from keras_txf.ops.masks import AttentionMask

B, T, S, N, H = 2, 5, 7, 4, 6


def slow_attention(query, key, value, mask, bias, causal, scale, soft_cap, kept):
    """One sample, one head, one query at a time, in float64."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    batch, length, heads, head_dim = query.shape
    keys, kv_heads = key.shape[1:3]
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    output, scores = np.zeros(query.shape), np.zeros((batch, heads, length, keys))
    for b, n, t in itertools.product(range(batch), range(heads), range(length)):
        group = n // (heads // kv_heads)
        allowed = [s for s in range(keys) if (mask is None or mask[b, n, t, s]) and (not causal or s <= t)]
        if not allowed:
            continue
        logits = np.array([query[b, t, n] @ key[b, s, group] * scale for s in allowed])
        if soft_cap is not None:
            logits = soft_cap * np.tanh(logits / soft_cap)
        if bias is not None:
            logits = logits + bias[b, n, t, allowed]
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        scores[b, n, t, allowed] = weights
        output[b, t, n] = (weights * kept[b, n, t, allowed]) @ value[b, allowed, group]
    return output, scores


def draw_mask(shape, seed=3):
    """Keys at random, except that query 1 of the last sample and head sees none."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    mask[-1, -1, 1] = False
    return mask


MASKS = {
    "no mask": None, "one for all": draw_mask((1, 1, T, S)), "by head": draw_mask((B, N, T, S)),
    "key padding": np.arange(S)[None, None, None] < np.array([S, 3])[:, None, None, None],
}  # fmt: skip
BIASES = {"no bias": None, "by head": drawing.normal(1, N, T, S), "by sample": 2 * drawing.normal(B, N, T, S)}


@pytest.mark.parametrize("kv_heads, mask_kind, bias_kind", [
    ((1, 2, 4)[(i + j) % 3], mask_kind, bias_kind)  # each two of the three are met
    for i, mask_kind in enumerate([*MASKS, "causal"]) for j, bias_kind in enumerate(BIASES)
])  # fmt: skip
def test_op_equals_the_slow_reference(kv_heads, mask_kind, bias_kind):
    causal = mask_kind == "causal"
    keys = T if causal else S  # the hint holds for squares only
    mask, bias = MASKS.get(mask_kind, AttentionMask(causal=True)), BIASES[bias_kind]
    bias = None if bias is None else bias[..., :keys]
    query, key, value = (
        drawing.normal(B, length, heads, H, seed=length + heads)
        for length, heads in ((T, N), (keys, kv_heads), (keys, kv_heads))
    )
    full = {
        "mask": None if mask is None or causal else np.broadcast_to(mask, (B, N, T, keys)),
        "bias": None if bias is None else np.broadcast_to(bias, (B, N, T, keys)),
    }
    some = (np.random.default_rng(0).random((B, N, T, keys)) < 0.8) / np.float32(0.8)
    for scale, soft_cap, kept in itertools.product((None, 0.3), (None, 1.5), (None, some)):
        dropout = None if kept is None else lambda weights: weights * ops.convert_to_tensor(some)
        arguments = {"scale": scale, "logit_soft_cap": soft_cap, "dropout": dropout}
        expected, expected_scores = slow_attention(
            query, key, value, **full, causal=causal, scale=scale, soft_cap=soft_cap,
            kept=np.ones_like(some) if kept is None else kept,
        )  # fmt: skip
        tensors = [ops.convert_to_tensor(x) for x in (query, key, value)]
        alone = kernel.attention(*tensors, mask, bias, **arguments, zero_empty_rows=True)
        output, scores = kernel.attention(*tensors, mask, bias, **arguments, zero_empty_rows=True, return_scores=True)
        drawing.assert_same(output, expected)
        drawing.assert_same(alone, expected)
        drawing.assert_same(scores, expected_scores)
        cheap = drawing.array(kernel.attention(*tensors, mask, bias, **arguments))
        rows = expected_scores.any(-1).swapaxes(1, 2)
        drawing.assert_same(cheap[rows], expected[rows])
        assert np.isfinite(cheap).all()


@pytest.mark.parametrize("bias_kind", [None, "by head"])
@pytest.mark.parametrize("mask_kind", ["no mask", "by head", "causal"])
def test_gradients_are_finite_and_the_same_on_both_paths(mask_kind, bias_kind):
    """Also of a bias, which T5 learns, and of a query that sees no key."""
    mask, keys = MASKS.get(mask_kind, AttentionMask(causal=True)), T if mask_kind == "causal" else S
    arrays = [drawing.normal(B, length, heads, H, seed=heads) for length, heads in ((T, N), (keys, 1), (keys, 2))]
    arrays[2] = arrays[2][:, :, :1]
    if bias_kind:
        arrays.append(BIASES[bias_kind][..., :keys])

    def total(tensor, place, scores):
        tensors = [ops.convert_to_tensor(x) for x in arrays[:place] + [tensor] + arrays[place + 1 :]]
        query, key, value, *bias = tensors
        result = kernel.attention(query, key, value, mask, *bias, return_scores=scores, zero_empty_rows=True)
        return ops.sum((result[0] if scores else result) ** 2)

    for place, x in enumerate(arrays):
        plain, fused = (
            drawing.gradient(lambda tensor, scores=scores, place=place: total(tensor, place, scores), x)
            for scores in (True, False)
        )
        assert np.isfinite(plain).all() and np.abs(plain).max() > 0.1
        drawing.assert_same(fused, plain, 1e-4)  # of gradients up to about 10
        if place == 0 and mask_kind == "by head":
            assert not plain[-1, 1, -1].any()  # the query that sees nothing


def test_what_is_hidden_does_not_leak_however_large():
    query, key, value = (drawing.normal(B, T, N, H, seed=seed) for seed in range(3))
    mask = np.ones((B, 1, T, T), "bool")
    mask[..., 2:4] = False
    other_key, other_value = key.copy(), value.copy()
    other_key[:, 2:4] = 3e4 * np.sign(query[:, :1])
    other_value[:, 2:4] = 1e4
    for bias in (None, BIASES["by head"][..., :T]):
        for scores in (False, True):
            outputs = [
                kernel.attention(*map(ops.convert_to_tensor, tensors), mask, bias, return_scores=scores)
                for tensors in ((query, key, value), (query, other_key, other_value))
            ]
            before, after = (output[0] if scores else output for output in outputs)
            drawing.assert_same(after, before)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_softmaxes_in_float32(dtype):
    """2,048 equal keys: a sum of weights in bfloat16 or float16 would be off by percents."""
    query, key = ops.zeros((1, 1, 1, 2), dtype), ops.zeros((1, 2048, 1, 2), dtype)
    value = ops.ones((1, 2048, 1, 2), dtype)
    output, scores = kernel.attention(query, key, value, return_scores=True)
    assert ops.dtype(output) == ops.dtype(scores) == dtype
    np.testing.assert_allclose(drawing.array(scores), 1 / 2048, rtol=1e-6)
    np.testing.assert_allclose(drawing.array(output), 1.0, rtol=1e-2)
    logits = drawing.normal(1, 300, 1, 1).astype(ops.convert_to_numpy(key).dtype)
    tensors = ops.ones((1, 1, 1, 1), dtype), ops.convert_to_tensor(logits), value[:, :300, :, :1]
    _, scores = kernel.attention(*tensors, scale=1.0, return_scores=True)
    weights = np.exp(logits.astype("float64").ravel())
    rounding = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]  # of the result alone
    np.testing.assert_allclose(drawing.array(scores).ravel(), weights / weights.sum(), rtol=1.01 * rounding, atol=1e-7)


def test_fused_path_runs_only_where_it_can(monkeypatch):
    taken = []
    original = kernel._fused
    monkeypatch.setattr(kernel, "_fused", lambda *args: taken.append(1) or original(*args))
    tensors = [ops.convert_to_tensor(drawing.normal(B, T, N, H))] * 3
    refused = [{"return_scores": True}, {"logit_soft_cap": 2.0}, {"dropout": lambda weights: weights}]
    for arguments in refused:
        kernel.attention(*tensors, **arguments)
    assert not taken
    accepted = [{}, {"mask": MASKS["key padding"][..., :T]}, {"mask": AttentionMask(causal=True)}, {"scale": 0.3}]
    for arguments in accepted:
        kernel.attention(*tensors, **arguments)
    assert len(taken) == (len(accepted) if drawing.fused_backend() else 0)


def test_a_single_key_is_no_cause_for_a_warning():
    """Keras takes a softmax over one number for a mistake; here it is the first token of a prompt."""
    query, key, value = (ops.convert_to_tensor(drawing.normal(B, 1, N, H, seed=seed)) for seed in range(3))
    for arguments in ({}, {"return_scores": True}, {"mask": np.ones((B, 1, 1, 1), "bool"), "logit_soft_cap": 2.0}):
        result = kernel.attention(query, key, value, **arguments)
        drawing.assert_same(result[0] if isinstance(result, tuple) else result, value, 1e-6)

        def total(x, arguments=arguments):
            return ops.sum(kernel.attention(x, key, value, **{**arguments, "return_scores": True})[0] ** 2)

        found = drawing.gradient(total, drawing.array(query))
        np.testing.assert_array_equal(found, 0.0)  # not none: its weights are trained by other batches
