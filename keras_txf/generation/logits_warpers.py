"""Filters that leave unlikely tokens out, and a draw from the tokens that remain.

Legend: R rows, V vocabulary.
"""

import numpy as np
from keras import ops

from keras_txf.backend.random import uniform
from keras_txf.ops.tensors import LOWEST


def draw(logits, seed):
    """Draws an id from the softmax of each row, (R,): the first whose cumulative weight exceeds a uniform share.

    This needs one random number a row. Noise for every token would take most of the time with a large vocabulary.
    """
    weights = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    cumulative = ops.cumsum(weights, axis=-1)
    share = uniform(ops.shape(logits)[0], seed)
    reached = cumulative > share * cumulative[:, -1:]
    # By rounding, a parallel sum may grow where a weight is 0, or end too low: only tokens with a weight are drawn.
    return ops.argmax(ops.where(weights > 0, ops.where(reached, 2, 1), 0), axis=-1)


def keep_top_k(logits, k):
    """`LOWEST` below the k-th largest logit of a row; its equals stay."""
    surplus = max(logits.shape[-1] - k, 0)
    return ops.where(logits >= threshold(logits, ops.ones_like(logits), surplus), logits, LOWEST)


def keep_top_p(logits, p):
    """`LOWEST` outside the smallest set of a row's tokens whose probability reaches p."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    weights = ops.exp(logits - largest)
    surplus = (1 - p) * ops.sum(weights, axis=-1, keepdims=True)
    lowest = threshold(logits, weights, surplus)
    # Not all equals at the threshold may be needed: the last of them may fit into the surplus.
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

    The float32 numbers in their order are as many as integers of 32 bits, so 32 bisections find it. A sort takes 25
    times as long where XLA compiles for a CPU.
    """

    def halve(_, bounds):
        low, high = bounds
        # The bits that agree and half of those that differ: low + high may need 33 bits.
        middle = ops.bitwise_and(low, high) + ops.right_shift(ops.bitwise_xor(low, high), 1)
        below = ops.where(logits < as_float(middle), weights, 0.0)
        fits = ops.sum(below, axis=-1, keepdims=True) <= surplus
        return ops.where(fits, middle, low), ops.where(fits, high, middle)

    low, high = (ops.full_like(logits[:, :1], end, dtype="int32") for end in (OF_MINUS_INFINITY, OF_INFINITY))
    low, _ = ops.fori_loop(0, 32, halve, (low, high))
    largest = ops.max(logits, axis=-1, keepdims=True)
    return ops.min(ops.where(logits < as_float(low), largest, logits), axis=-1, keepdims=True)


def as_float(integer):
    """The float32 number with this index in the order of all of them; 0 has the index 0."""
    return ops.view(ops.where(integer < 0, ops.bitwise_xor(integer, 0x7FFFFFFF), integer), "float32")


OF_INFINITY = int(np.float32(np.inf).view("int32"))
OF_MINUS_INFINITY = -OF_INFINITY - 1  # -0 has the index -1, before 0
