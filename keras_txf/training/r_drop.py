"""R-Drop: the loss of two draws of dropout and of their divergence."""

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.layers.serialization import register
from keras_txf.ops.chunked_logits import weighted_cross_entropy
from keras_txf.ops.divergence import divergences, halves, twice
from keras_txf.ops.tensors import nan_unless
from keras_txf.training.losses import TokenCrossEntropy, flat_targets


@register
class RDrop(TokenCrossEntropy):
    """Adds the divergence of two draws of dropout to their cross-entropy, in chunks as `TokenCrossEntropy` does.

    Each batch holds its examples twice, one half after the other, in validation too; under `tf.distribute` the part of
    each replica does. The loss is the mean cross-entropy of both draws, p and q, plus
    strength / 4 (KL(p ‖ q) + KL(q ‖ p)): the paper's loss, divided by 2.

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
        A scalar; NaN where the targets of the two halves differ and a graph hides their values.

    Raises:
        ValueError: see `TokenCrossEntropy`; a strength that is not positive, an odd number of tokens where it is
            known; in eager code, targets whose halves differ, such as those of a shuffled array.

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
        apart = divergences(ops.cast(y_pred, "float32"))
        if self.pad_id is not None:
            apart = ops.where(targets == self.pad_id, 0.0, apart)
        apart = ops.where(targets == repeated, apart, nan_unless(targets == repeated))
        return super().call(y_true, y_pred) + self.strength / 4 * twice(apart)

    def total_in_chunks(self, factors, y_true, weights):
        targets, repeated = _draws(ops.reshape(y_true, (-1,)))
        same = twice(targets == repeated)
        weights = ops.where(same, ops.reshape(weights, (-1,)), nan_unless(same))
        targets = flat_targets(y_true, self.pad_id)
        return weighted_cross_entropy(factors, targets, weights, self.label_smoothing, self.strength)

    def get_config(self):
        return {**super().get_config(), "strength": self.strength}


def _draws(y_true):
    """The targets (N,) of the first draw and those of the second."""
    count = y_true.shape[0]
    if count is not None and count % 2:
        raise ValueError(f"`y_true` must hold each example twice; received {count} tokens.")
    first, second = halves(y_true)
    values = checks.concrete(first), checks.concrete(second)
    if all(value is not None for value in values) and not np.array_equal(*values):
        raise ValueError(
            f"`y_true` must hold each example twice, one half after the other; received targets of which "
            f"{np.sum(values[0] != values[1])} differ."
        )
    return first, second
