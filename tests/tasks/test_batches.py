"""Batches hold each example once per epoch, with little padding and few shapes."""

import keras
import numpy as np

from keras_txf.tasks.fitting import Batches, in_batches

RNG = np.random.default_rng(0)
ROWS = [np.arange(1, length + 1, dtype="int32") for length in RNG.integers(1, 60, 301)]


def example(index):
    return {"token_ids": ROWS[index]}, np.int32(index)


def epoch(batches):
    return [batches[i] for i in range(len(batches))]


def test_an_epoch_holds_each_example_once_with_little_padding_and_few_shapes():
    batches = Batches(lambda: list(map(example, range(301))), ({"token_ids": -1}, 0), 8, 64, shuffle=True, seed=1)
    orders = []
    for _ in range(2):
        seen, shapes, padding = [], set(), []
        for inputs, indices in epoch(batches):
            ids = inputs["token_ids"]
            shapes.add(ids.shape[1])
            padding += (ids == -1).ravel().tolist()
            assert len(ids) == len(indices) <= 8 and ids.shape[1] <= 64
            for row, index in zip(ids, indices):
                np.testing.assert_array_equal(row[: len(ROWS[index])], ROWS[index])
                assert (row[len(ROWS[index]) :] == -1).all()
            seen += indices.tolist()
        assert sorted(seen) == list(range(301))
        assert np.mean(padding) < 0.25 and len(shapes) <= 10
        orders.append(seen)
        batches.on_epoch_end()
    assert orders[0] != orders[1]


def test_a_row_as_long_as_the_limit_is_not_padded_beyond():
    [(inputs, _)] = epoch(Batches(lambda: [({"token_ids": ROWS[0][:1].repeat(50)}, 0)], ({"token_ids": 0}, 0), 4, 50))
    assert inputs["token_ids"].shape == (1, 50)


def test_renewed_examples_are_made_for_each_epoch():
    made = []
    batches = Batches(lambda: made.append(1) or [example(0)], ({"token_ids": 0}, 0), 2, None, renew=True)
    batches.on_epoch_end()
    assert len(made) == 2


def test_answers_come_in_the_order_of_the_examples():
    found = in_batches(lambda rows: rows.max(axis=1), ROWS, 0, 7, 64, verbose=0)
    assert found == [len(row) for row in ROWS]


def is_evaluated(batches):
    """On TensorFlow, Keras infers the shapes of all batches from the first two."""
    model = keras.Sequential([keras.layers.Embedding(2, 3), keras.layers.GlobalAveragePooling1D()])
    model.compile(loss=lambda y, logits: keras.ops.mean(logits), run_eagerly=True)
    return np.isfinite(model.evaluate(batches, verbose=0))


def test_the_first_batches_differ_in_every_axis_that_others_do():
    rows = [np.ones(length, "int32") for length in [7] * 20 + [30] * 4 + [60] * 3]
    for shuffle in (False, True):
        batches = Batches(lambda: [(row, row[:6]) for row in rows], (0, -1), 4, 64, shuffle=shuffle, seed=3)
        assert is_evaluated(batches)
        first, second = epoch(batches)[:2]
        assert first[0].shape[1] < second[0].shape[1] and first[1].shape[1] < second[1].shape[1]
        assert sum(int((ids == 1).sum()) for ids, _ in epoch(batches)) == sum(map(len, rows))


def test_a_side_that_begins_at_the_limit_may_be_short_later():
    """In the first batches all sources have the largest length, in the last batches all targets."""
    long, short = np.ones(12, "int32"), np.ones(3, "int32")
    assert is_evaluated(Batches(lambda: [(long, short)] * 8 + [(short, long)] * 8, (0, -1), 4, 12))
