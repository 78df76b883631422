"""Logits and log-probabilities within the range of float32.

Legend: R rows, V vocabulary.
"""

from keras import ops

from keras_txf.ops.tensors import LOWEST

LARGEST_LOGIT = 1e30  # the sum of as many logits as a text has tokens is finite


def bounded(changed, logits):
    """The changed logits, clipped so that their sums are finite in float32; -inf where `logits` are -inf."""
    return ops.where(logits < LOWEST, logits, ops.clip(changed, -LARGEST_LOGIT, LARGEST_LOGIT))


def log_probabilities(logits):
    """The log-softmax of each row, float32; -inf in a row of -inf alone, where a softmax would be NaN."""
    forbidden = ops.max(logits, axis=-1, keepdims=True) < LOWEST
    return ops.where(forbidden, logits, ops.log_softmax(ops.where(forbidden, 0.0, logits)))
