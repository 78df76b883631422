"""TokenCrossEntropy: the mean over all real tokens.

Legend: B batch, T length, N tokens, V vocabulary.
"""

import sys
import threading

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.backend.compilers import trains_unfused
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register
from keras_txf.ops.chunked_logits import weighted_cross_entropy
from keras_txf.ops.logit_factors import logit_factors
from keras_txf.ops.tensors import LOWEST, nan_unless


@register
class TokenCrossEntropy(keras.losses.Loss):
    """Mean cross-entropy over all real tokens of the batch, in float32 under every policy.

    For models of this package with a vocabulary of 16,384 or more, a compiled step never holds all logits: the loss
    computes logits in chunks. The loss does so only for the tensor that the model returns; `logits + 0` is another
    tensor. The gradient then goes to hidden states and the output table, not to the logits.

    Keras' own losses average over positions or sequences; here each token has the same weight. Under `tf.distribute`
    each replica averages over its own tokens, and Keras averages over the replicas. Gradient accumulation averages
    over its steps in the same way. With `tokens_per_batch` a token weighs the same in each replica and step: k steps
    of `gradient_accumulation_steps=k` equal one batch of all these rows with a `tokens_per_batch` k times as large.

    Args:
        pad_id: target id that does not count, such as -100 of `txf.text.token_classification`; None counts every
            position.
        label_smoothing: ε, the share of the target's probability that is spread evenly over all V tokens.
        name: name of the loss.
        class_weight: dict of target ids and weights, such as {tag: 9.0} for a rare tag. A token has the weight of its
            target, 1 for targets that are not in the dict. `fit(class_weight=...)` of Keras would weigh whole rows.
        tokens_per_batch: divisor of the sum over tokens, the same for all batches, such as their mean number of real
            tokens. Default: the number of real tokens in the batch.

    Call arguments:
        y_true: int (B, T), or any shape.
        y_pred: logits (B, T, V).
        sample_weight: weights (B,) of sequences or (B, T) of tokens.

    Returns:
        A scalar: the sum of weight times cross-entropy, divided by the sum of weights or by `tokens_per_batch`; 0 for
        a batch without a real token.

    Raises:
        ValueError: label_smoothing outside [0, 1), targets that are not integers, a `class_weight` with ids outside
            the vocabulary, or a `class_weight` of `fit` with targets (B, T).

    Reference:
        [Rethinking the Inception Architecture](https://arxiv.org/abs/1512.00567) for label smoothing.

    Example:

    >>> loss = txf.training.TokenCrossEntropy()
    >>> float(loss(np.array([[1, 0]]), np.zeros((1, 2, 4))))  # ln 4, the padding does not count
    1.3862943649291992
    """

    def __init__(
        self,
        pad_id: int | None = 0,
        label_smoothing: float = 0.0,
        name: str = "token_cross_entropy",
        class_weight: dict[int, float] | None = None,
        tokens_per_batch: float | None = None,
    ):
        super().__init__(
            name=checks.optional(checks.string, "name", name), reduction="mean_with_sample_weight", dtype="float32"
        )
        self.pad_id = checks.optional(checks.int32, "pad_id", pad_id)
        self.label_smoothing = checks.rate("label_smoothing", label_smoothing)
        self.class_weight = check_class_weight(class_weight, self.pad_id)
        self.tokens_per_batch = checks.optional(checks.positive_number, "tokens_per_batch", tokens_per_batch)

    def __call__(self, y_true, y_pred, sample_weight=None):
        factors = logit_factors(y_pred)
        y_true, y_pred, weights = token_weights(self, y_true, y_pred, sample_weight)
        if self.class_weight is not None:
            weights = weights * class_weights(self.class_weight, y_true, y_pred.shape[-1])
        mean = self._mean(factors, y_true, y_pred, weights)
        return mean if self.tokens_per_batch is None else mean * (ops.sum(weights) / self.tokens_per_batch)

    def _mean(self, factors, y_true, y_pred, weights):
        if factors is not None and _supports_chunks(type(self)):
            mean = ops.divide_no_nan(self.total_in_chunks(factors, y_true, weights), ops.sum(weights))
            return _SHARE_OF_REPLICA(mean[None], mean[None])
        # Flat, without the mask that Keras keeps on `y_pred`, whose padding may differ from `pad_id`.
        tokens = ops.reshape(y_pred, (-1, y_pred.shape[-1]))
        loss = super().__call__(ops.reshape(y_true, (-1,)), tokens, ops.reshape(weights, (-1,)))
        return ops.sum(loss) if len(loss.shape) else loss  # without any token Keras returns a vector

    def total_in_chunks(self, factors, y_true, weights):
        """Returns the sum of weight times `call`, without whole logits. A subclass that defines `call` defines both."""
        return weighted_cross_entropy(
            factors, flat_targets(y_true, self.pad_id), ops.reshape(weights, (-1,)), self.label_smoothing
        )

    def call(self, y_true, y_pred):
        return token_cross_entropy(y_true, y_pred, self.pad_id, self.label_smoothing)

    def get_config(self):
        # JSON would turn the ids of a dict into strings.
        pairs = None if self.class_weight is None else [list(pair) for pair in self.class_weight.items()]
        return {
            "name": self.name,
            "pad_id": self.pad_id,
            "label_smoothing": self.label_smoothing,
            "class_weight": pairs,
            "tokens_per_batch": self.tokens_per_batch,
        }

    @classmethod
    def from_config(cls, config):
        pairs = config.get("class_weight")
        return cls(**{**config, "class_weight": None if pairs is None else dict(pairs)})


def flat_targets(y_true, pad_id):
    """Returns the targets as int32 (N,), with 0 for padding: `pad_id` may lie outside the vocabulary."""
    targets = ops.reshape(ops.cast(y_true, "int32"), (-1,))
    return targets if pad_id is None else ops.where(targets == pad_id, 0, targets)


def _supports_chunks(loss_class):
    """Whether the class that defines `call` also defines `total_in_chunks`."""
    owner = next(parent for parent in loss_class.__mro__ if "call" in vars(parent))
    return "total_in_chunks" in vars(owner)


class _Prediction(keras.losses.Loss):
    """A loss that is the prediction itself."""

    def call(self, y_true, y_pred):
        return y_pred


_SHARE_OF_REPLICA = _Prediction(dtype="float32")  # Keras divides a loss by the number of replicas of `tf.distribute`


def token_cross_entropy(y_true, y_pred, pad_id, label_smoothing=0.0):
    """Returns the cross-entropy of each token, float32, of the shape of y_true: 0 at padding."""
    logits = ops.reshape(ops.cast(y_pred, "float32"), (-1, y_pred.shape[-1]))
    targets = ops.reshape(ops.cast(y_true, "int32"), (-1,))
    if pad_id is not None and pad_id < 0:  # outside the vocabulary
        targets = ops.where(targets == pad_id, 0, targets)
    if trains_unfused():
        loss = _with_gradient(targets, label_smoothing)(logits)
    else:
        loss = _cross_entropy(logits, targets, label_smoothing, ops.logsumexp(logits, axis=1))
    loss = ops.reshape(loss, ops.shape(y_true))
    # A weight of 0 would not do: a model may give the padding token a logit of -inf.
    return loss if pad_id is None else ops.where(y_true == pad_id, 0.0, loss)


def _cross_entropy(logits, targets, label_smoothing, logsumexp):
    """Logits (N, V) and targets (N,) -> loss (N,); NaN for a target outside [0, V), where a graph raises no error."""
    valid = ops.logical_and(targets >= 0, targets < logits.shape[-1])
    of_target = ops.take_along_axis(logits, ops.where(valid, targets, logits.shape[-1])[:, None], axis=1)[:, 0]
    loss = logsumexp - (1 - label_smoothing) * of_target
    if label_smoothing:
        loss = loss - label_smoothing * ops.mean(logits, axis=1)
    return ops.where(valid, loss, nan_unless(valid))


def _with_gradient(targets, label_smoothing):
    """The same function in few passes over the logits; its gradient is softmax minus the smoothed targets."""

    @ops.custom_gradient
    def function(logits):
        probabilities = ops.softmax(logits, axis=1)  # the largest is exp(largest logit) / sum of exp(logits)
        logsumexp = _max(logits) - ops.log(_max(probabilities))

        def gradient(upstream):
            share = label_smoothing / logits.shape[-1]
            of_target = ops.take_along_axis(probabilities, targets[:, None], axis=1)[:, 0]
            gradients = (probabilities - share) * upstream[:, None]
            indices = ops.stack([ops.arange(ops.shape(targets)[0], dtype="int32"), targets], axis=1)
            return ops.scatter_update(gradients, indices, (of_target - share - (1 - label_smoothing)) * upstream)

        return _cross_entropy(logits, targets, label_smoothing, logsumexp), gradient

    return function


def _max(rows):
    """Returns the maximum of each row. `initial` allows zero rows, which a replica may have at the end of an epoch."""
    return ops.max(rows, axis=1, initial=LOWEST)


def token_weights(owner, y_true, y_pred, sample_weight):
    """Returns targets and logits as tensors, and float32 weights of the targets' shape: 0 at padding.

    `owner` is the loss or metric that has `pad_id`.
    """
    y_true, y_pred = checks.tensor("y_true", y_true), checks.number_tensor("y_pred", y_pred)
    if not is_built_on_means(y_true):
        checks.integers("y_true", y_true)
    if not y_pred.shape or _differ(y_true.shape, y_pred.shape[:-1]):
        raise ValueError(
            f"`y_pred` must be logits, of the shape of `y_true` and the vocabulary; received targets of shape "
            f"{tuple(y_true.shape)} and logits of shape {tuple(y_pred.shape)}."
        )
    _check_range(y_true, y_pred.shape[-1], owner.pad_id)
    weights = ops.ones_like(y_true, dtype="float32")
    if owner.pad_id is not None:
        weights = ops.cast(y_true != owner.pad_id, "float32")
    if sample_weight is not None:
        sample_weight = ops.cast(checks.number_tensor("sample_weight", sample_weight), "float32")
        shape = tuple(sample_weight.shape)
        # Keras passes weights (B,) of targets (B,) as (B, 1).
        if len(shape) == len(weights.shape) + 1 and shape[-1] == 1:
            sample_weight = ops.squeeze(sample_weight, axis=-1)
        reject_fit_class_weight(owner, y_true, sample_weight)
        while len(sample_weight.shape) < len(weights.shape):
            sample_weight = sample_weight[..., None]
        fits = len(sample_weight.shape) == len(weights.shape) and (shape or not weights.shape)
        if not fits or any(
            None not in pair and 1 not in pair and pair[0] != pair[1] for pair in zip(shape, y_true.shape)
        ):
            raise ValueError(
                f"`sample_weight` must have the targets' shape {tuple(y_true.shape)}, or its first axes; received "
                f"{shape}."
            )
        weights = weights * sample_weight
    return y_true, y_pred, weights


def _check_range(y_true, vocab_size, pad_id):
    """Raises ValueError if targets with values, except padding, lie outside the vocabulary."""
    values = checks.concrete(y_true)
    if values is None:
        return
    outside = values[(values < 0) | (values >= vocab_size)]
    outside = outside if pad_id is None else outside[outside != pad_id]
    if outside.size:
        raise ValueError(
            f"`y_true` must hold ids from 0 to {vocab_size - 1}, or pad_id={pad_id}; received ids from {outside.min()} "
            f"to {outside.max()}."
        )


def is_built_on_means(targets):
    """Whether Keras builds the loss on placeholders: under `tf.distribute` the placeholders are means, so floats."""
    return getattr(getattr(targets, "graph", None), "name", "").startswith("scratch_graph")


def _differ(shape, other):
    """Whether two shapes differ in their known axes."""
    return len(shape) != len(other) or any(None not in pair and pair[0] != pair[1] for pair in zip(shape, other))


def check_class_weight(class_weight, pad_id):
    """Checks a dict of target ids and weights, or None."""
    if class_weight is None:
        return None
    if not isinstance(class_weight, dict) or not class_weight:
        raise ValueError(
            f"`class_weight` must be a dict of target ids and their weights; received {short_repr(class_weight)}."
        )
    weights = {}
    for target, weight in class_weight.items():
        target = checks.id_below("class_weight", target)
        if target == pad_id:
            raise ValueError(
                "`class_weight` must have no weight for `pad_id`, which never counts; received "
                f"{short_repr(class_weight)}."
            )
        weights[target] = checks.finite_number("class_weight", weight)
        if weights[target] < 0:
            raise ValueError(f"`class_weight` must hold weights of 0 or more; received {short_repr(class_weight)}.")
    return weights


def class_weights(class_weight, targets, vocab_size):
    """Returns the weights of targets, float32, of their shape: 1 for a target without a weight."""
    if max(class_weight) >= vocab_size:
        raise ValueError(
            f"`class_weight` must be of targets below the number of logits, {vocab_size}; received "
            f"{short_repr(class_weight)}."
        )
    table = np.ones(vocab_size, "float32")
    table[list(class_weight)] = list(class_weight.values())
    return ops.take(ops.convert_to_tensor(table), ops.clip(ops.cast(targets, "int32"), 0, vocab_size - 1), axis=0)


def reject_fit_class_weight(loss, targets, sample_weight):
    """Raises ValueError if `fit` or `train_on_batch` had a `class_weight`, for targets (B, T).

    Keras turns `class_weight` into weights of rows, by the argmax over the positions of a row. The loss gets only
    these weights, so this function looks for the call of Keras that had `class_weight`.
    """
    if len(sample_weight.shape) < len(targets.shape) and targets.shape[-1] != 1 and _with_class_weight(loss):
        raise ValueError(
            "`class_weight` of `fit` must be left out for targets (batch, length): Keras would weigh whole rows by the "
            "position of their largest target. Give it to the loss, TokenCrossEntropy(class_weight=...), which weighs "
            "each token."
        )


def _with_class_weight(loss):
    """Whether a training with `class_weight` calls this loss, in this thread or in one that waits for this thread."""
    here = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        while frame is not None:
            if "class_weight" in frame.f_code.co_varnames and frame.f_locals.get("class_weight") is not None:
                trainer = frame.f_locals.get("self")
                if isinstance(trainer, keras.Model) and (
                    thread == here or any(one is loss for one in keras.tree.flatten(trainer.loss))
                ):
                    return True
            frame = frame.f_back
    return False
