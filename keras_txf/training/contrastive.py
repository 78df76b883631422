"""Losses that compare outputs: of pairs that belong together, and of two draws of dropout."""

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.layers.serialization import register
from keras_txf.ops.chunked_logits import divergences, halves, twice, weighted_cross_entropy
from keras_txf.ops.tensors import nan_unless
from keras_txf.training.losses import TokenCrossEntropy, flat_targets, is_built_on_means


class _ContrastiveLoss(keras.losses.Loss):
    """The base of losses of pairs: turns the ids of pairs into a matrix of matches, True where two ids are equal."""

    def __init__(self, name):
        super().__init__(name=checks.optional(checks.string, "name", name), dtype="float32")

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = checks.tensor("y_true", y_true), checks.number_tensor("y_pred", y_pred)
        if not is_built_on_means(y_true):
            checks.integers("y_true", y_true)
        shape, known = tuple(y_pred.shape), len(y_true.shape) in (1, 2) and y_true.shape[1:] in ((), (1,))
        sizes = {size for size in (*shape, *y_true.shape[:1]) if size is not None}
        if len(shape) != 2 or not known or len(sizes) > 1:
            raise ValueError(
                "`y_pred` must be logits (B, B) of each image with each text, and `y_true` an id for each pair, int "
                f"(B,); received logits of shape {shape} and ids of shape {tuple(y_true.shape)}."
            )
        if sample_weight is not None:
            sample_weight = checks.number_tensor("sample_weight", sample_weight)
            weights = tuple(sample_weight.shape)
            if weights[1:] not in ((), (1,)) or len({*sizes, *weights[:1]} - {None}) > 1:
                raise ValueError(
                    f"`sample_weight` must have a weight for each pair, (B,); received {weights} for {shape}."
                )
        ids = ops.reshape(y_true, (-1,))
        return super().__call__(ids[:, None] == ids[None, :], y_pred, sample_weight)

    def get_config(self):
        return {"name": self.name}


@register
class SoftmaxContrastiveLoss(_ContrastiveLoss):
    """CLIP's loss: each image has to choose its text among the texts of the batch, and each text its image.

    Use this loss with the output `logits` of `txf.models.dual_encoder`. The loss of a pair is the mean of two
    cross-entropies: of the softmax over its row of the logits, and of the softmax over its column. Large batches help,
    because the other pairs of the batch are the negatives. Under `tf.distribute` the negatives are the pairs of the
    same replica.

    Args:
        name: name of the loss.

    Call arguments:
        y_true: int (B,), an id for each pair, such as `np.arange` of the number of pairs in the data. Pairs with the
            same id match each other too: an image of class 3 matches each text of class 3. The target probability of
            a row is then spread evenly over all its matches.
        y_pred: logits (B, B), of each image with each text.
        sample_weight: weights (B,) of the pairs.

    Returns:
        A scalar: the mean over the pairs.

    Raises:
        ValueError: logits that are not square, ids that are not integers or not as many.

    Reference:
        [CLIP](https://arxiv.org/abs/2103.00020), figure 3; [UniCL](https://arxiv.org/abs/2204.03610) for equal ids.

    Example:

    >>> loss = txf.training.SoftmaxContrastiveLoss()
    >>> round(float(loss(np.array([7, 8]), np.zeros((2, 2)))), 4)  # ln 2: it guesses among two
    0.6931
    """

    def __init__(self, name: str = "softmax_contrastive_loss"):
        super().__init__(name)

    def call(self, y_true, y_pred):
        rows = y_true / ops.sum(y_true, axis=1, keepdims=True)
        columns = y_true / ops.sum(y_true, axis=0, keepdims=True)
        of_images = ops.sum(rows * ops.log_softmax(y_pred, axis=1), axis=1)
        of_texts = ops.sum(columns * ops.log_softmax(y_pred, axis=0), axis=0)
        return -(of_images + of_texts) / 2


@register
class SigmoidContrastiveLoss(_ContrastiveLoss):
    """SigLIP's loss: for each image and each text of the batch, whether they belong together.

    Use this loss with the output `logits` of `txf.models.dual_encoder(logit_scale=10.0, max_logit_scale=None,
    logit_bias=-10.0)`. Each of the B² pairs is judged independently, so small batches work too. Under `tf.distribute`
    an image is compared with the texts of the same replica.

    Args:
        name: name of the loss.

    Call arguments:
        y_true: int (B,), an id for each pair, see `SoftmaxContrastiveLoss`.
        y_pred: logits (B, B), of each image with each text.
        sample_weight: weights (B,) of the images.

    Returns:
        A scalar: the sum of the cross-entropies over the texts, its mean over the images.

    Raises:
        ValueError: logits that are not square, ids that are not integers or not as many.

    Reference:
        [Sigmoid Loss for Language Image Pre-Training](https://arxiv.org/abs/2303.15343), section 3.2.

    Example:

    >>> loss = txf.training.SigmoidContrastiveLoss()
    >>> round(float(loss(np.array([7, 8]), np.zeros((2, 2)))), 4)  # 2 ln 2: it guesses yes or no of two texts
    1.3863
    """

    def __init__(self, name: str = "sigmoid_contrastive_loss"):
        super().__init__(name)

    def call(self, y_true, y_pred):
        return ops.sum(ops.softplus((1 - 2 * y_true) * y_pred), axis=1)


@register
class RDrop(TokenCrossEntropy):
    """Adds the divergence of two draws of dropout to their cross-entropy, in chunks as `TokenCrossEntropy` does.

    Each batch must hold its examples twice, the second half repeating the first, in validation too. Under
    `tf.distribute` this holds for the batch of each replica. The loss is the mean cross-entropy of both draws, p and q,
    plus strength / 4 (KL(p ‖ q) + KL(q ‖ p)): the paper's loss, divided by 2.

    Args:
        pad_id: target id that does not count; None counts every position.
        label_smoothing: see `TokenCrossEntropy`.
        strength: α of the paper: 5 for translation, 1 for classification.
        name: name of the loss.
        class_weight: dict of target ids and weights, as for `TokenCrossEntropy`; the divergence has these weights too.
        tokens_per_batch: see `TokenCrossEntropy`; the tokens of both draws count.

    Call arguments:
        y_true: int (2B, T), or any shape; the second half repeats the first.
        y_pred: logits (2B, T, V).
        sample_weight: weights (2B,) of sequences or (2B, T) of tokens.

    Returns:
        A scalar; in a graph, which hides the values, NaN if the targets of the two halves differ.

    Raises:
        ValueError: see `TokenCrossEntropy`; a strength that is not positive; a known, odd number of tokens; in eager
            code, targets whose halves differ, such as targets of a shuffled array.

    Reference:
        [R-Drop](https://arxiv.org/abs/2106.14448)

    Example:

    >>> ids, targets = txf.training.shift_labels(np.array([[5, 6, 7, 2], [8, 9, 2, 0]]))
    >>> ids, targets = (np.concatenate([half, half]) for half in (ids, targets))  # in `tf.data` after `batch`
    >>> model = txf.models.decoder_generator(vocab_size=10, num_layers=1, dim=8, num_heads=2, dropout=0.3)
    >>> model.compile("adam", txf.training.RDrop(label_smoothing=0.1))
    >>> sorted(model.fit(ids, targets, shuffle=False, verbose=0).history)
    ['loss']
    """

    def __init__(
        self,
        pad_id: int | None = 0,
        label_smoothing: float = 0.0,
        strength: float = 5.0,
        name: str = "r_drop",
        class_weight: dict[int, float] | None = None,
        tokens_per_batch: float | None = None,
    ):
        super().__init__(pad_id, label_smoothing, name, class_weight, tokens_per_batch)
        self.strength = checks.positive_number("strength", strength)

    def call(self, y_true, y_pred):
        targets, repeated = _draws(y_true)
        divergence = divergences(ops.cast(y_pred, "float32"))
        if self.pad_id is not None:
            divergence = ops.where(targets == self.pad_id, 0.0, divergence)
        divergence = ops.where(targets == repeated, divergence, nan_unless(targets == repeated))
        return super().call(y_true, y_pred) + self.strength / 4 * twice(divergence)

    def total_in_chunks(self, factors, y_true, weights):
        targets, repeated = _draws(ops.reshape(y_true, (-1,)))
        same = twice(targets == repeated)
        weights = ops.where(same, ops.reshape(weights, (-1,)), nan_unless(same))
        targets = flat_targets(y_true, self.pad_id)
        return weighted_cross_entropy(factors, targets, weights, self.label_smoothing, self.strength)

    def get_config(self):
        return {**super().get_config(), "strength": self.strength}


def _draws(y_true):
    """The targets (N,) of the first draw, and the targets of the second."""
    count = y_true.shape[0]
    if count is not None and count % 2:
        raise ValueError(f"`y_true` must hold each example twice; received {count} tokens.")
    first, second = halves(y_true)
    values = checks.concrete(first), checks.concrete(second)
    if all(value is not None for value in values) and not np.array_equal(*values):
        raise ValueError(
            f"`y_true` must hold each example twice, one half after the other; received two halves with "
            f"{np.sum(values[0] != values[1])} targets that differ."
        )
    return first, second
