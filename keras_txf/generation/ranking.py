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
    width = math.isqrt(size // k)
    if width < 8:  # a sort of so few is cheap
        values, places = ops.top_k(x, k)
        return values, ops.cast(places, "int32")
    groups = -(-size // width)
    padded = ops.pad(x, ((0, 0), (0, groups * width - size)), constant_values=-float("inf"))
    padded = ops.reshape(padded, (-1, groups, width))
    _, best = ops.top_k(ops.max(padded, axis=2), k)
    candidates = ops.take_along_axis(padded, best[..., None], axis=1)
    values, places = ops.top_k(ops.reshape(candidates, (-1, k * width)), k)
    group = ops.take_along_axis(ops.cast(best, "int32"), places // width, axis=1)
    places = group * width + ops.cast(places % width, "int32")
    return values, ops.minimum(places, size - 1)  # where all is -inf, the padding is as large
