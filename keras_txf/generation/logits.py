"""Arithmetic of logits: bounds, the k largest, filters of unlikely tokens, and a random draw.

Legend: R rows, V vocabulary.
"""

import math

import numpy as np
from keras import ops

from keras_txf.backend.random import uniform
from keras_txf.ops.tensors import LOWEST, minus_infinity_unless

LARGEST_LOGIT = 1e30  # the sum of as many logits as a text has tokens is finite


def bounded(changed, logits):
    """The changed logits, clipped so that their sums are finite in float32. A logit of -inf stays -inf."""
    return ops.where(logits < LOWEST, logits, ops.clip(changed, -LARGEST_LOGIT, LARGEST_LOGIT))


def log_probabilities(logits):
    """The log-softmax of each row, float32. A row of only -inf stays -inf: a softmax would be NaN."""
    forbidden = ops.max(logits, axis=-1, keepdims=True) < LOWEST
    return ops.where(forbidden, logits, ops.log_softmax(ops.where(forbidden, 0.0, logits)))


MISSING = LOWEST / 2  # replaces -inf: above the padding of groups, which is never among the k largest


def top_k(x, k):
    """The k largest numbers of each row, in order, and their indices.

    The rows may be long. XLA on a CPU sorts a whole row, which takes longer than a model for a vocabulary. The k
    largest numbers lie in the k groups with the largest maxima, so only the maxima and the numbers of k groups are
    sorted. Equal numbers may come in any order. Numbers up to `MISSING` count as -inf.

    Args:
        x: float (R, V).
        k: at most V.

    Returns:
        (R, k), and int32 (R, k).
    """
    size = x.shape[1]
    width = 2 ** (math.isqrt(size // k).bit_length() - 1)  # a power of two often leaves nothing to pad
    if width < 8:  # a sort of short rows is cheap
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

    One table of all rows is gathered from: `take_along_axis` would look up each number and takes far more code.
    """
    batch, width = ops.shape(x)[:2]
    first = width * ops.arange(batch, dtype=indices.dtype)[:, None]
    return ops.take(ops.reshape(x, (-1, *ops.shape(x)[2:])), first + indices, axis=0)


def draw(logits, seed):
    """Draws an id from the softmax of each row, (R,): the first whose cumulative weight exceeds a uniform share.

    This needs one random number per row. Noise for every token would take most of the time with a large vocabulary.
    """
    weights = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    cumulative = ops.cumsum(weights, axis=-1)
    share = uniform(ops.shape(logits)[0], seed)
    reached = cumulative > share * cumulative[:, -1:]
    # By rounding, a parallel sum may grow where a weight is 0, or end too low: only tokens with a weight are drawn.
    return ops.argmax(ops.where(weights > 0, ops.where(reached, 2, 1), 0), axis=-1)


def keep_top_k(logits, k):
    """`LOWEST` below the k-th largest logit of a row; logits equal to it stay."""
    surplus = max(logits.shape[-1] - k, 0)
    return ops.where(logits >= threshold(logits, ops.ones_like(logits), surplus), logits, LOWEST)


def keep_top_p(logits, p):
    """`LOWEST` outside the smallest set of a row's tokens whose probability reaches p."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    weights = ops.exp(logits - largest)
    surplus = (1 - p) * ops.sum(weights, axis=-1, keepdims=True)
    lowest = threshold(logits, weights, surplus)
    # Not all logits equal to the threshold may be needed: the last ones may fit into the surplus.
    below = ops.sum(ops.where(logits < lowest, weights, 0.0), axis=-1, keepdims=True)
    equal = logits == lowest
    rank = ops.cumsum(ops.cast(equal, "float32"), axis=-1)
    rank_from_the_end = rank[:, -1:] - rank + 1
    needed = ops.logical_or(rank == 1, below + rank_from_the_end * ops.exp(lowest - largest) > surplus)
    return ops.where(ops.logical_or(logits > lowest, ops.logical_and(equal, needed)), logits, LOWEST)


def keep_min_p(logits, p):
    """`LOWEST` where a token has less than p times the probability of the likeliest token of its row."""
    return ops.where(ops.exp(logits - ops.max(logits, axis=-1, keepdims=True)) >= p, logits, LOWEST)


def threshold(logits, weights, surplus):
    """The largest logit of each row, (R, 1), such that the weights of all logits below it sum to at most `surplus`.

    There are as many ordered float32 numbers as 32-bit integers, so 32 bisections are enough. A sort takes 25 times as
    long if XLA compiles for a CPU.
    """

    def halve(_, bounds):
        low, high = bounds
        # The mean, from the bits that agree and half of the bits that differ: low + high may need 33 bits.
        middle = ops.bitwise_and(low, high) + ops.right_shift(ops.bitwise_xor(low, high), 1)
        below = ops.where(logits < as_float(middle), weights, 0.0)
        fits = ops.sum(below, axis=-1, keepdims=True) <= surplus
        return ops.where(fits, middle, low), ops.where(fits, high, middle)

    low, high = (ops.full_like(logits[:, :1], end, dtype="int32") for end in (OF_MINUS_INFINITY, OF_INFINITY))
    low, _ = ops.fori_loop(0, 32, halve, (low, high))
    largest = ops.max(logits, axis=-1, keepdims=True)
    return ops.min(ops.where(logits < as_float(low), largest, logits), axis=-1, keepdims=True)


def as_float(integer):
    """The float32 number with this index in the order of all float32 numbers; 0 has the index 0."""
    return ops.view(ops.where(integer < 0, ops.bitwise_xor(integer, 0x7FFFFFFF), integer), "float32")


OF_INFINITY = int(np.float32(np.inf).view("int32"))
OF_MINUS_INFINITY = -OF_INFINITY - 1  # -0 has the index -1, before 0
