"""AttentionPooling against NumPy in float64, with every mask."""

import drawing
import numpy as np
from refusals import refused

import keras_txf as txf

X = drawing.normal(4, 5, 6)
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1]], "bool")
HEADS, EPSILON = 3, 0.1


def made(**options):
    return drawing.built(txf.layers.AttentionPooling(HEADS, 7, "relu", EPSILON, **options), X)


def pooled(layer, rows):
    """One sequence's real rows (T, D) -> (D,), head by head."""
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


def test_equals_numpy_and_padding_does_not_count():
    layer = made()
    drawing.assert_same(layer(X), [pooled(layer, x) for x in X])
    expected = [pooled(layer, x[mask]) for x, mask in zip(X, MASK, strict=True)]
    drawing.assert_same(layer(np.where(MASK[..., None], X, 1e3).astype("float32"), mask=MASK), expected)
    assert np.isfinite(drawing.array(layer(X, mask=MASK & False))).all()


def test_bad_input_is_refused():
    refused(lambda: made()(X[..., :4]), ["axis -1", "value 6", "4)"])
    refused(lambda: made()(X[0]), ["`inputs`", "(batch, length, dim)", "(5, 6)"])
    refused(lambda: txf.layers.AttentionPooling(4)(X), ["`num_heads`", "4"])
    refused(lambda: made()(X, mask=MASK[:, :4]), ["`mask`", "(4, 4)"])
