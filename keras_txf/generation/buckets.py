"""Lengths and tables of few sizes: each size is compiled anew."""

import numpy as np


def stop_table(stops):
    """The stops as rows of one table, see `History`. The table has one of few sizes: each is compiled anew."""
    rows, length = _power_of_two(max(4, len(stops))), _power_of_two(max(map(len, stops), default=1))
    table = np.full((rows, length), -3, "int32")
    for row, stop in enumerate(stops):
        table[row] = [-2] * (length - len(stop)) + list(stop)
    return table


def _power_of_two(number):
    """The smallest power of two that is not below the number."""
    return 2 ** (number - 1).bit_length()


def bucket(length, smallest=32):
    """The next of a few lengths, at most a quarter above: one compiled function serves all lengths up to it."""
    step = max(smallest, 2 ** (int(length).bit_length() - 3))
    return max(1, -(-length // step)) * step
