"""Each kind of pooling, and AttentionPooling, against NumPy, with every mask."""

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

KINDS = ["mean", "max", "first", "last", "attention", "others", "first_and_others"]
X = drawing.normal(4, 5, 6)
# Padded on the right, on the left, on both sides with a hole, and everywhere.
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], "bool")
HEADS, EPSILON = 3, 0.1


def pooled(kind, rows, score):
    """One sequence's real rows (T, D) -> (D,)."""
    if not len(rows):
        return np.zeros(X.shape[-1] * (2 if kind == "first_and_others" else 1))
    if kind == "attention":
        weights = np.exp(rows @ score)
        return (weights * rows).sum(0) / weights.sum()
    others = rows[1:].mean(0) if len(rows) > 1 else np.zeros(rows.shape[-1])
    return {
        "mean": rows.mean(0), "max": rows.max(0), "first": rows[0], "last": rows[-1], "others": others,
        "first_and_others": np.concatenate([rows[0], others]),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_counts_real_tokens_only(kind):
    layer = drawing.built(txf.layers.Pooling(kind), X)
    score = drawing.array(layer.score.kernel) if kind == "attention" else None
    drawing.assert_same(layer(X), [pooled(kind, x, score) for x in X])
    expected = [pooled(kind, x[mask], score) for x, mask in zip(X, MASK, strict=True)]
    drawing.assert_same(layer(np.where(MASK[..., None], X, 1e6).astype("float32"), mask=MASK), expected)
    assert not drawing.array(layer(X, mask=MASK))[3].any()
    output = layer(keras.layers.Masking()(np.where(MASK[..., None], X, 0).astype("float32")))
    drawing.assert_same(output, expected)
    assert keras.src.backend.get_keras_mask(output) is None  # pooling drops the mask


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_row_has_a_finite_gradient(kind):
    layer = drawing.built(txf.layers.Pooling(kind), X)
    slope = drawing.gradient(lambda x: keras.ops.sum(layer(x, mask=MASK) ** 2), X)
    assert np.isfinite(slope).all() and slope[:3].any()
    assert not slope[~MASK].any()


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_summed_in_float32(kind):
    """1,000 ones and a few more: a sum in bfloat16 stops at 256."""
    layer = txf.layers.Pooling(kind, dtype="mixed_bfloat16")
    output = layer(np.ones((1, 1000, 2), "float32"))
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    np.testing.assert_allclose(drawing.array(output), 1.0, rtol=1e-2)
    x = drawing.array(keras.ops.cast(drawing.normal(1, 1000, 64) + 2, "bfloat16")).astype("float32")
    if kind != "attention":  # a score of bfloat16 moves its weights by more
        expected = pooled(kind, x[0].astype("float64"), None)
        np.testing.assert_allclose(drawing.array(layer(x))[0], expected, rtol=1.01 * 2**-8)


def test_a_single_token_gives_no_warning():
    """Keras takes a softmax over one number for a mistake."""
    x = drawing.normal(2, 1, 3)
    drawing.assert_same(txf.layers.Pooling("attention")(x), x[:, 0])


def made():
    return drawing.built(txf.layers.AttentionPooling(HEADS, 7, "relu", EPSILON), X)


def attended(layer, rows):
    """What AttentionPooling makes of one sequence's real rows (T, D) -> (D,), head by head."""
    value = {weight.path.partition("/")[2]: drawing.array(weight).astype("float64") for weight in layer.weights}

    def dense(name, x):
        return x @ value[f"{name}/kernel"] + value[f"{name}/bias"]

    query = dense("attention/query", value["query"])
    keys, values = (dense(f"attention/{part}", rows.astype("float64")) for part in ("key", "value"))
    heads = []
    for columns in np.split(np.arange(6), HEADS):
        logits = keys[:, columns] @ query[columns] / np.sqrt(len(columns))
        weights = np.exp(logits) / np.exp(logits).sum()
        heads.append(weights @ values[:, columns])
    x = dense("attention/output", np.concatenate(heads))
    normed = (x - x.mean()) / np.sqrt(x.var() + EPSILON) * value["norm/gamma"] + value["norm/beta"]
    return x + dense("feed_forward/output", np.maximum(dense("feed_forward/intermediate", normed), 0))


def test_attention_pooling_equals_numpy_and_padding_does_not_count():
    layer = made()
    drawing.assert_same(layer(X), [attended(layer, x) for x in X])
    found = drawing.array(layer(np.where(MASK[..., None], X, 1e3).astype("float32"), mask=MASK))
    drawing.assert_same(found[:3], [attended(layer, x[mask]) for x, mask in zip(X, MASK[:3])])
    assert np.isfinite(found).all()


def test_wrong_input_raises_value_error():
    refused(lambda: made()(X[..., :4]), ["axis -1", "value 6", "4)"])
    refused(lambda: made()(X[0]), ["`inputs`", "(batch, length, dim)", "(5, 6)"])
    refused(lambda: txf.layers.AttentionPooling(4)(X), ["`num_heads`", "4"])
    refused(lambda: made()(X, mask=MASK[:, :4]), ["`mask`", "(4, 4)"])
