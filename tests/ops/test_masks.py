"""combine_masks against its own formula, one pair at a time."""

import itertools

import drawing
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_txf.ops.masks import combine_masks, number_runs, padding_positions

B, T, S, N = 2, 4, 6, 3


def allowed_by_formula(t, s, b, n, query_index, key_index, causal, window, padding, segments, explicit, prefix, runs):
    distance = query_index[t] - key_index[s]
    together = runs is not None and runs[0][b, t] == runs[1][b, s] > 0
    return (
        (
            not causal
            or distance >= 0
            or together
            or (prefix is not None and max(query_index[t], key_index[s]) < prefix[b])
        )
        and (window is None or abs(distance) < window or together)
        and (padding is None or padding[b, s] or (causal and distance == 0))
        and (segments is None or segments[0][b, t] == segments[1][b, s])
        and (explicit is None or np.broadcast_to(explicit, (B, N, T, S))[b, n, t, s])
    )


@drawing.few(25)
@given(
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, 1, 3]),
    st.sampled_from([None, (T, S), (B, T, S), (B, 1, T, S), (B, N, T, S)]), st.integers(0, 3),
    st.sampled_from([None, np.array([3, 5])]), st.booleans(),
)  # fmt: skip
def test_equals_the_formula(causal, padded, packed, window, explicit_shape, offset, prefix, with_runs):
    random = np.random.default_rng(0)
    query_index, key_index = np.arange(T) + offset, np.arange(S)
    padding = np.arange(S) < np.array([[S], [4]]) if padded else None
    segments = [random.integers(0, 2, (B, length)) for length in (T, S)] if packed else None
    explicit = None if explicit_shape is None else random.random(explicit_shape) < 0.7
    runs = [random.integers(0, 3, (B, length)) for length in (T, S)] if with_runs else None
    pairs = *(segments or (None, None)), explicit, prefix, *(runs or (None, None))
    mask = combine_masks(query_index, key_index, causal, window, padding, *pairs)
    if not (causal or window or padded or packed or explicit_shape):
        assert mask is None
        return
    mask = np.broadcast_to(drawing.array(mask), (B, N, T, S))
    full = explicit[:, None] if explicit_shape == (B, T, S) else explicit
    for b, n, t, s in itertools.product(*map(range, (B, N, T, S))):
        conditions = causal, window, padding, segments, full, prefix, runs
        expected = allowed_by_formula(t, s, b, n, query_index, key_index, *conditions)
        assert mask[b, n, t, s] == expected


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_runs_are_numbered(row):
    groups = itertools.groupby(row)
    lengths = [(inside, len(list(group))) for inside, group in groups]
    expected, number = [], 0
    for inside, length in lengths:
        number += inside
        expected += [number * inside] * length
    assert drawing.array(number_runs(np.array([row])))[0].tolist() == expected


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_positions_count_real_tokens(dtype):
    mask = np.array([[1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 1, 1]], dtype)
    expected = [[0, 1, 2, 2], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 2]]
    np.testing.assert_array_equal(drawing.array(padding_positions(mask)), expected)
