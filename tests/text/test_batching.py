"""Batches by length lose no example, have little padding, and use the best lengths."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_txf import text
from keras_txf.text.lazy_imports import tf

LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=30)


def examples(sizes):
    """Distinct rows of these sizes, with their numbers."""

    def generate():
        for number, size in enumerate(sizes):
            yield np.full(size, 1 + number, "int32"), number

    return tf.data.Dataset.from_generator(
        generate, output_signature=(tf.TensorSpec([None], "int32"), tf.TensorSpec([], "int32"))
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(LENGTHS, st.booleans(), st.sampled_from([[20], [3, 9, 20], [1, 2, 20, 40], 20]), st.integers(40, 90))
def test_each_example_comes_once_among_its_like(sizes, static, lengths, tokens):
    batches = list(text.batch_by_length(examples(sizes), tokens, lengths, pad_id=-1, static=static).as_numpy_iterator())
    seen = collections.Counter()
    for ids, numbers in batches:
        assert ids.size <= tokens
        longest = max(sizes[number] for number in numbers)
        if isinstance(lengths, list):
            kind = min(length for length in lengths if length >= longest)
            assert ids.shape[1] == (kind if static else longest)
            assert all(min(length for length in lengths if length >= sizes[number]) == kind for number in numbers)
        for row, number in zip(ids, numbers):
            np.testing.assert_array_equal(row, [number + 1] * sizes[number] + [-1] * (len(row) - sizes[number]))
        seen.update(numbers.tolist())
    assert seen == collections.Counter(range(len(sizes)))


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=15), st.integers(1, 4))
def test_lengths_are_the_best_of_all(sizes, count):
    def cost(lengths):
        return sum(min(length for length in lengths if length >= size) for size in sizes)

    found = text.bucket_lengths(examples(sizes), count)
    assert found == sorted(set(found)) and len(found) <= count and found[-1] == max(sizes)
    others = sorted(set(sizes) - {max(sizes)})
    best = min(
        cost([*chosen, max(sizes)])
        for number in range(count)
        for chosen in itertools.combinations(others, min(number, len(others)))
    )
    assert cost(found) == best


def test_very_many_lengths():
    found = text.bucket_lengths(examples(range(1, 3000)), 4)
    np.testing.assert_allclose(found, [750, 1500, 2250, 3000], atol=6)
    assert found[-1] == 2999
    assert text.bucket_lengths(examples([2, 5, 3]), 10**30) == [2, 3, 5]


@pytest.mark.parametrize("static, kinds", [(True, {(8, 5), (2, 20)}), (False, {(8, 5), (2, 17)})])
def test_shapes(static, kinds):
    batches = text.batch_by_length(examples([5] * 8 + [17] * 2), 40, [5, 20], static=static)
    assert {tuple(ids.shape) for ids, _ in batches} == kinds
    ids, numbers = batches.element_spec
    assert ids.shape.as_list() == [None, None] and numbers.shape.as_list() == [None]


def test_what_is_left_over():
    batches = text.batch_by_length(examples([5] * 7), 10, [5], drop_remainder=True)
    assert [tuple(ids.shape) for ids, _ in batches] == [(2, 5)] * 3


def test_lengths_of_their_own_grow_by_a_quarter():
    batches = text.batch_by_length(examples(range(1, 101)), 100, 100)
    lengths = sorted({ids.shape[1] for ids, _ in batches})
    assert lengths == [8, 12, 16, 20, 25, 31, 38, 47, 58, 72, 90, 100]
    again = text.batch_by_length(examples(range(1, 101)), 100, np.int64(100))
    assert [ids.shape for ids, _ in again] == [ids.shape for ids, _ in batches]


def test_counted():
    batches = text.batch_by_length(examples([5] * 7 + [2]), 10, [3, 5])
    known = text.counted(batches)
    assert int(batches.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert len(known) == 5 == len(list(known)) and len(known.prefetch(1).batch(2)) == 3
    rows, expected = ([ids.tolist() for ids, _ in one.as_numpy_iterator()] for one in (known, batches))
    assert rows == expected


@pytest.mark.parametrize("then", [4, 6])
def test_a_pass_of_another_number_than_counted(then):
    sizes = [2] * 5
    known = text.counted(examples(sizes))
    sizes[:] = [2] * then
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 5"):
        list(known)
