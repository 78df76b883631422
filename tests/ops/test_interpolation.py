"""Bicubic interpolation against its formula, number by number. PyTorch's is in parity/test_transformers_vision.py."""

import math

import drawing
import numpy as np
import pytest

from keras_txf.ops.positions import interpolate_grid


def cubic(distance):
    a, x = -0.75, abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def interpolated(grid, rows, columns):
    height, width, dim = grid.shape
    result = np.zeros((rows, columns, dim))
    for i, j in np.ndindex(rows, columns):
        y, x = (i + 0.5) * height / rows - 0.5, (j + 0.5) * width / columns - 0.5
        for k in range(math.floor(y) - 1, math.floor(y) + 3):
            for m in range(math.floor(x) - 1, math.floor(x) + 3):
                nearest = grid[min(max(k, 0), height - 1), min(max(m, 0), width - 1)]
                result[i, j] += cubic(y - k) * cubic(x - m) * nearest
    return result


@pytest.mark.parametrize("size", [(5, 7), (2, 3), (1, 1), (6, 2)])
def test_is_the_formula(size):
    grid = drawing.normal(3, 4, 6)
    drawing.assert_same(interpolate_grid(grid, *size), interpolated(grid, *size))
    np.testing.assert_array_equal(drawing.array(interpolate_grid(grid, 3, 4)), grid)  # stays as it is
