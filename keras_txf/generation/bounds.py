"""Logits and their log-probabilities within what float32 can hold.

Legend: R rows, V vocabulary.
"""

import math

from keras import ops

LARGEST = 1e30  # of a logit: a sum of as many as a text has tokens is finite


def bounded(changed, logits):
    """The changed logits within bounds whose sums are finite in float32; -inf where the logits are."""
    return ops.where(logits == -math.inf, -math.inf, ops.clip(changed, -LARGEST, LARGEST))


def log_probabilities(logits):
    """The log-softmax of each row, float32; -inf where all of a row is forbidden, of which a softmax is no number."""
    forbidden = ops.max(logits, axis=-1, keepdims=True) == -math.inf
    return ops.where(forbidden, -math.inf, ops.log_softmax(ops.where(forbidden, 0.0, logits)))
