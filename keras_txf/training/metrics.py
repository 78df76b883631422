"""Metrics over all real tokens of an epoch."""

from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.serialization import register
from keras_txf.ops.chunked_logits import best_tokens, cross_entropies
from keras_txf.ops.logit_factors import logit_factors
from keras_txf.training.losses import flat_targets, token_cross_entropy, token_weights


@register
class TokenAccuracy(keras.metrics.Mean):
    """The share of real tokens whose largest logit is that of the target.

    Args:
        pad_id: target id that does not count; None counts every position.
        name, dtype: as for Keras' metrics.

    Call arguments:
        y_true: int (B, T), or any shape.
        y_pred: logits (B, T, V).
        sample_weight: weights (B,) of sequences or (B, T) of tokens.

    Raises:
        ValueError: targets that are no integers, logits or weights of another shape.

    Example:

    >>> accuracy = txf.training.TokenAccuracy()
    >>> float(accuracy(np.array([[1, 2, 0]]), np.eye(4)[None, [1, 3, 0]]))
    0.5
    """

    def __init__(self, pad_id: int | None = 0, name: str = "token_accuracy", dtype: Any = None):
        super().__init__(
            name=checks.optional(checks.string, "name", name), dtype=checks.optional(checks.dtype, "dtype", dtype)
        )
        self.pad_id = checks.optional(checks.int32, "pad_id", pad_id)

    def update_state(self, y_true, y_pred, sample_weight=None):
        factors = logit_factors(y_pred)
        y_true, y_pred, weights = token_weights(self, y_true, y_pred, sample_weight)
        if factors is None:
            best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        else:
            best = ops.reshape(best_tokens(factors), ops.shape(y_true))
        hits = best == ops.cast(y_true, "int32")
        _add_tokens(super().update_state, ops.cast(hits, "float32"), weights)

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@register
class Perplexity(keras.metrics.Mean):
    """The exponential of the mean cross-entropy over all real tokens of an epoch.

    Args:
        pad_id: target id that does not count; None counts every position.
        name, dtype: as for Keras' metrics.

    Call arguments:
        y_true: int (B, T), or any shape.
        y_pred: logits (B, T, V).
        sample_weight: weights (B,) of sequences or (B, T) of tokens.

    Raises:
        ValueError: targets that are no integers, logits or weights of another shape.

    Example:

    >>> perplexity = txf.training.Perplexity()
    >>> round(float(perplexity(np.array([[1, 0]]), np.zeros((1, 2, 4)))), 4)
    4.0
    """

    def __init__(self, pad_id: int | None = 0, name: str = "perplexity", dtype: Any = None):
        super().__init__(
            name=checks.optional(checks.string, "name", name), dtype=checks.optional(checks.dtype, "dtype", dtype)
        )
        self.pad_id = checks.optional(checks.int32, "pad_id", pad_id)

    def update_state(self, y_true, y_pred, sample_weight=None):
        factors = logit_factors(y_pred)
        y_true, y_pred, weights = token_weights(self, y_true, y_pred, sample_weight)
        if factors is None:
            losses = token_cross_entropy(y_true, y_pred, self.pad_id)
        else:
            losses = ops.reshape(cross_entropies(factors, flat_targets(y_true, self.pad_id)), ops.shape(y_true))
            losses = losses if self.pad_id is None else ops.where(y_true == self.pad_id, 0.0, losses)
        _add_tokens(super().update_state, losses, weights)

    def result(self):
        return ops.exp(super().result())

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


def _add_tokens(update_state, values, weights):
    """Adds values flat: Keras averages rows first, and a token of a short batch would weigh more than one of a long."""
    update_state(ops.reshape(values, (-1,)), sample_weight=ops.reshape(weights, (-1,)))
