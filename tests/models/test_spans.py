"""Spans of answers: padding has no part in them, and a model learns to find them."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf


def numpy(outputs):
    return {name: ops.convert_to_numpy(value) for name, value in outputs.items()}


def test_no_span_starts_or_ends_at_padding():
    model = txf.models.span_classifier(11, 1, 8, 2)
    ids = np.array([[5, 6, 7], [8, 9, 0]])
    short, long = numpy(model(ids)), numpy(model(np.pad(ids, ((0, 0), (0, 4)))))
    for name in ("start_logits", "end_logits"):
        assert (short[name][1, 2:] == -32768).all() and (long[name][:, 3:] == -32768).all()
        real = ids != 0
        np.testing.assert_allclose(long[name][:, :3][real], short[name][real], atol=1e-5)
        losses = [
            keras.ops.sparse_categorical_crossentropy([2, 1], one[name], from_logits=True) for one in (short, long)
        ]
        np.testing.assert_allclose(*map(ops.convert_to_numpy, losses), atol=1e-5)


def test_start_and_end_are_the_two_columns_of_a_token_classifier():
    spans, tokens = txf.models.span_classifier(11, 1, 8, 2), txf.models.token_classifier(11, 2, 1, 8, 2)
    tokens.set_weights(spans.get_weights())
    ids = np.array([[5, 6, 7, 3]])
    expected, found = ops.convert_to_numpy(tokens(ids)), numpy(spans(ids))
    np.testing.assert_allclose(found["start_logits"], expected[..., 0], atol=1e-6)
    np.testing.assert_allclose(found["end_logits"], expected[..., 1], atol=1e-6)


def test_a_model_learns_the_span_between_two_tokens():
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(3)
    ids = rng.integers(3, 13, (128, 9))
    starts, ends = rng.integers(0, 4, 128), rng.integers(4, 9, 128)
    ids[np.arange(128), starts], ids[np.arange(128), ends] = 1, 2
    model = txf.models.span_classifier(13, 1, 16, 2, dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), {"start_logits": loss, "end_logits": loss})
    model.fit(ids, {"start_logits": starts, "end_logits": ends}, batch_size=32, epochs=12, verbose=0)
    found = numpy(model(ids))
    assert (found["start_logits"].argmax(-1) == starts).mean() > 0.95
    assert (found["end_logits"].argmax(-1) == ends).mean() > 0.95


def test_packed_rows_are_refused():
    with pytest.raises(ValueError, match="packed"):
        txf.models.span_classifier(11, 1, 8, 2, packed=True)
