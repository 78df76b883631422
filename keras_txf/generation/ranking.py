"""The largest of many numbers. XLA on a CPU sorts a row to find them, which for a vocabulary takes longer than the model."""

import math

from keras import ops


def top_k(x, k):
    """The k largest of each row, in order, and their places.

    The k largest lie in the k groups with the largest maxima: so only maxima and the numbers of k groups
    are sorted. Of equal numbers any may come first.

    Args:
        x: float (R, V).
        k: at most V.

    Returns:
        (R, k), and int32 (R, k).
    """
    size = x.shape[1]
    width = 2 ** (math.isqrt(size // k).bit_length() - 1)  # a power of two often leaves nothing to pad
    if width < 8:  # a sort of so few is cheap
        values, places = ops.top_k(x, k)
        return values, ops.cast(places, "int32")
    groups = -(-size // width)
    padded = ops.pad(x, ((0, 0), (0, groups * width - size)), constant_values=-float("inf"))
    # A group is a column, so that all maxima are taken side by side.
    _, best = ops.top_k(ops.max(ops.reshape(padded, (-1, width, groups)), axis=1), k)
    members = ops.cast(best, "int32")[..., None] + groups * ops.arange(width, dtype="int32")
    members = ops.reshape(members, (-1, k * width))
    values, places = ops.top_k(rows(padded, members), k)
    places = rows(members, ops.cast(places, "int32"))
    return values, ops.minimum(places, size - 1)  # where all is -inf, the padding is as large


def rows(x, choice):
    """(B, W, ...) and int (B, F) -> (B, F, ...): of each sequence the chosen rows.

    As rows of one table: `take_along_axis` would look up each number by itself, and takes far more code.
    """
    batch, width = ops.shape(x)[:2]
    first = width * ops.arange(batch, dtype=choice.dtype)[:, None]
    return ops.take(ops.reshape(x, (-1, *ops.shape(x)[2:])), first + choice, axis=0)
