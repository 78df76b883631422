"""The largest numbers of long rows. XLA on a CPU sorts a whole row: that of a vocabulary takes longer than a model."""

import math

from keras import ops

from keras_txf.ops.tensors import LOWEST, minus_infinity_unless

MISSING = LOWEST / 2  # stands for -inf: above the padding of groups, which is never among the k largest


def top_k(x, k):
    """The k largest numbers of each row, in order, and their indices.

    The k largest numbers lie in the k groups with the largest maxima: only the maxima and the numbers of k groups are
    sorted. Equal numbers may come in any order. Numbers up to `MISSING` count as -inf.

    Args:
        x: float (R, V).
        k: at most V.

    Returns:
        (R, k), and int32 (R, k).
    """
    size = x.shape[1]
    width = 2 ** (math.isqrt(size // k).bit_length() - 1)  # a power of two often leaves nothing to pad
    if width < 8:  # a sort of so few is cheap
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    groups = -(-size // width)
    padded = ops.pad(ops.maximum(x, MISSING), ((0, 0), (0, groups * width - size)), constant_values=LOWEST)
    # A group is a column, so that all maxima are taken side by side.
    _, best = ops.top_k(ops.max(ops.reshape(padded, (-1, width, groups)), axis=1), k)
    members = ops.cast(best, "int32")[..., None] + groups * ops.arange(width, dtype="int32")
    members = ops.reshape(members, (-1, k * width))
    values, indices = ops.top_k(gather_rows(padded, members), k)
    indices = gather_rows(members, ops.cast(indices, "int32"))
    is_number = values > MISSING
    return ops.where(is_number, values, minus_infinity_unless(is_number)), indices


def gather_rows(x, indices):
    """(B, W, ...) and int (B, F) -> (B, F, ...): from each batch entry the rows with these indices.

    They are gathered from one table of all rows: `take_along_axis` would look up each number and takes far more code.
    """
    batch, width = ops.shape(x)[:2]
    first = width * ops.arange(batch, dtype=indices.dtype)[:, None]
    return ops.take(ops.reshape(x, (-1, *ops.shape(x)[2:])), first + indices, axis=0)
