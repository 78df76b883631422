"""Inputs and targets of generative models, on NumPy and inside tf.data."""

import keras
import numpy as np
import pytest

import keras_txf as txf

IDS = np.array([[1, 5, 6, 2, 0], [1, 7, 2, 0, 0]], "int32")
SOURCES = np.array([[9, 8], [7, 0]], "int32")


def test_teacher_forcing_shows_the_earlier_tokens():
    inputs, targets = txf.training.teacher_forcing(SOURCES, IDS)
    assert inputs.keys() == {"source_ids", "target_ids"}
    np.testing.assert_array_equal(inputs["source_ids"], SOURCES)
    np.testing.assert_array_equal(inputs["target_ids"], [[1, 5, 6, 2], [1, 7, 2, 0]])
    np.testing.assert_array_equal(targets, [[5, 6, 2, 0], [7, 2, 0, 0]])


def test_shift_labels_returns_the_next_tokens():
    inputs, targets = txf.training.shift_labels(IDS)
    np.testing.assert_array_equal(inputs, IDS[:, :-1])
    np.testing.assert_array_equal(targets, IDS[:, 1:])
    row, after = txf.training.shift_labels(IDS[0])
    np.testing.assert_array_equal(row, [1, 5, 6, 2])
    np.testing.assert_array_equal(after, [5, 6, 2, 0])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data feeds TensorFlow")
def test_inside_tf_data():
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((SOURCES, IDS)).batch(2).map(txf.training.teacher_forcing)
    inputs, targets = next(iter(pairs))
    expected_inputs, expected_targets = txf.training.teacher_forcing(SOURCES, IDS)
    for name, value in expected_inputs.items():
        np.testing.assert_array_equal(inputs[name], value)
    np.testing.assert_array_equal(targets, expected_targets)
    # Of unknown length, and row by row.
    ragged = tf.data.Dataset.from_generator(
        lambda: (row[row != 0] for row in IDS), output_signature=tf.TensorSpec([None], "int32")
    )
    rows = [tuple(map(np.ndarray.tolist, pair)) for pair in ragged.map(txf.training.shift_labels).as_numpy_iterator()]
    assert rows == [([1, 5, 6], [5, 6, 2]), ([1, 7], [7, 2])]


@pytest.mark.parametrize("length, stride", [(3, None), (3, 1), (3, 2), (4, 5), (9, None)])
def test_windows_cover_the_text(length, stride):
    text = np.arange(10, 20)
    inputs, targets = txf.training.next_token_windows(text, length, stride)
    starts = range(0, len(text) - length, stride or length)
    np.testing.assert_array_equal(inputs, [text[s : s + length] for s in starts])
    np.testing.assert_array_equal(targets, [text[s + 1 : s + 1 + length] for s in starts])
    assert np.shares_memory(inputs, text) and np.shares_memory(targets, text)
    assert txf.training.next_token_windows(list(range(5)), 4)[0].shape == (1, 4)
