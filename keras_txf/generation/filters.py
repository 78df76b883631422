"""Leaving unlikely tokens out, and drawing one of the others.

Legend: R rows, V vocabulary.
"""

import math

import numpy as np
from keras import ops

from keras_txf.generation.compilers import uniform


def draw(logits, seed):
    """Ids (R,), each drawn from the softmax of its row: the first whose cumulative weight exceeds a uniform share.

    One random number a row: noise for every token would take most of the time of a large vocabulary.
    """
    weights = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    cumulative = ops.cumsum(weights, axis=-1)
    share = uniform(ops.shape(logits)[0], seed)
    reached = cumulative > share * cumulative[:, -1:]
    # A parallel sum may grow, by rounding, where a weight is 0, or end too low: without weight no token is drawn.
    return ops.argmax(ops.where(weights > 0, ops.where(reached, 2, 1), 0), axis=-1)


def keep_top_k(logits, k):
    """-inf below the k-th largest of a row; what equals it stays."""
    surplus = max(logits.shape[-1] - k, 0)
    return ops.where(logits >= border(logits, ops.ones_like(logits), surplus), logits, -math.inf)


def keep_top_p(logits, p):
    """-inf outside the smallest set of a row's tokens whose probability reaches p."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    weights = ops.exp(logits - largest)
    surplus = (1 - p) * ops.sum(weights, axis=-1, keepdims=True)
    level = border(logits, weights, surplus)
    # Not all equals at the border may be needed: the surplus leaves room for the last of them.
    below = ops.sum(ops.where(logits < level, weights, 0.0), axis=-1, keepdims=True)
    equal = logits == level
    place = ops.cumsum(ops.cast(equal, "float32"), axis=-1)
    from_the_end = place[:, -1:] - place + 1
    needed = ops.logical_or(place == 1, below + from_the_end * ops.exp(level - largest) > surplus)
    return ops.where(ops.logical_or(logits > level, ops.logical_and(equal, needed)), logits, -math.inf)


def keep_min_p(logits, p):
    """-inf where a token has less than p times the probability of the row's likeliest."""
    return ops.where(ops.exp(logits - ops.max(logits, axis=-1, keepdims=True)) >= p, logits, -math.inf)


def border(logits, weights, surplus):
    """The largest logit of each row, (R, 1), such that the weights of all below it sum to at most `surplus`.

    By bisection of the float32 numbers, which are as many as integers of 32 bits. A sort would do as
    well, but takes 25 times as long where XLA compiles for a CPU.
    """

    def halve(_, bounds):
        low, high = bounds
        # Half of what differs and all of what agrees: the sum of both may need 33 bits.
        middle = ops.bitwise_and(low, high) + ops.right_shift(ops.bitwise_xor(low, high), 1)
        below = ops.where(logits < as_float(middle), weights, 0.0)
        fits = ops.sum(below, axis=-1, keepdims=True) <= surplus
        return ops.where(fits, middle, low), ops.where(fits, high, middle)

    low, high = (ops.full_like(logits[:, :1], end, dtype="int32") for end in (LOWEST, HIGHEST))
    low, _ = ops.fori_loop(0, 32, halve, (low, high))
    largest = ops.max(logits, axis=-1, keepdims=True)
    return ops.min(ops.where(logits < as_float(low), largest, logits), axis=-1, keepdims=True)


def as_float(integer):
    """The float32 number with this place in the order of all of them; 0 is at 0."""
    return ops.view(ops.where(integer < 0, ops.bitwise_xor(integer, 0x7FFFFFFF), integer), "float32")


HIGHEST = int(np.float32(math.inf).view("int32"))
LOWEST = -HIGHEST - 1  # of -inf: as -0 has a place of its own, negative numbers start at -1
