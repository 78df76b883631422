"""The largest numbers of a row, against a sort."""

import numpy as np
import pytest
from keras import ops

from keras_txf.generation.logits import top_k


@pytest.mark.parametrize("size, k", [(5, 5), (300, 3), (1000, 7), (1001, 7), (4097, 20), (64, 1), (65, 1)])
def test_top_k_equals_a_sort(size, k):
    x = np.random.default_rng(size).normal(size=(4, size)).astype("float32")
    x[1, :] = -np.inf
    one = min(512, size - 1)
    x[1, [size - 1, one]] = 0.5, 1.0  # all but two forbidden
    x[3, :] = -np.inf
    values, places = map(ops.convert_to_numpy, top_k(x, k))
    np.testing.assert_array_equal(values, -np.sort(-x, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(x, places, axis=1), values)
    assert places[1, 0] == one and 0 <= places.min() and places.max() < size
    assert all(len(set(row)) == k for row in places.tolist())
