"""R-Drop: a model says the same under two draws of dropout."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.options import register
from keras_txf.training.losses import TokenCrossEntropy


@register
class RDrop(TokenCrossEntropy):
    """Cross-entropy of two draws of dropout, and how far they are from each other.

    Every batch holds its N tokens twice, one half after the other, validation's too; under `tf.distribute` each replica's
    part of it does. To the mean cross-entropy of both, p and q, comes strength / 4 (KL(p ‖ q) + KL(q ‖ p)): the paper's loss,
    divided by 2.

    Args:
        pad_id: target id that does not count; None counts every position.
        label_smoothing: of the cross-entropy.
        strength: α of the paper, which takes 5 for translation and 1 for classification.
        name: of the loss.
        class_weight: dict of target ids and weights, as of `TokenCrossEntropy`; what the two draws are apart by is weighed alike.

    Call arguments:
        y_true: int (2B, T), or any shape; the second half repeats the first.
        y_pred: logits (2B, T, V).
        sample_weight: weights (2B,) of sequences or (2B, T) of tokens.

    Returns:
        A scalar; NaN where a half is not the other's targets.

    Raises:
        ValueError: as of `TokenCrossEntropy`; a strength that is not positive, an odd number of tokens where it is known.

    Reference:
        [R-Drop](https://arxiv.org/abs/2106.14448)

    Example:

    >>> ids, targets = txf.training.next_token(np.array([[5, 6, 7, 2], [8, 9, 2, 0]]))
    >>> ids, targets = (np.concatenate([half, half]) for half in (ids, targets))  # in `tf.data` after `batch`
    >>> model = txf.models.decoder_generator(vocab_size=10, num_layers=1, dim=8, num_heads=2, dropout=0.3)
    >>> model.compile("adam", txf.training.RDrop(label_smoothing=0.1))
    >>> sorted(model.fit(ids, targets, shuffle=False, verbose=0).history)
    ['loss']
    """

    def __init__(self, pad_id=0, label_smoothing=0.0, strength=5.0, name="r_drop", class_weight=None):
        super().__init__(pad_id, label_smoothing, name, class_weight)
        self.strength = checks.positive_number("strength", strength)

    def call(self, y_true, y_pred):
        count = y_true.shape[0]
        if count is not None and count % 2:
            raise ValueError(f"`y_true` must hold each example twice; received {count} tokens.")
        # Without XLA TensorFlow's own gradient takes 1.7 times as long.
        divergence = _with_gradient if keras.backend.backend() == "tensorflow" else _divergence
        apart = divergence(ops.cast(y_pred, "float32"))
        targets, repeated = _halves(y_true)
        if self.pad_id is not None:
            apart = ops.where(targets == self.pad_id, 0.0, apart)
        apart = ops.where(targets == repeated, apart, float("nan"))
        return super().call(y_true, y_pred) + self.strength / 4 * ops.concatenate([apart, apart])

    def get_config(self):
        return {**super().get_config(), "strength": self.strength}


def _divergence(logits):
    """KL(p ‖ q) + KL(q ‖ p) of logits (2N, V), first those of all p: (N,)."""
    first, second = _halves(ops.softmax(logits, axis=1))
    return ops.sum((first - second) * _difference(logits), axis=1)


@ops.custom_gradient
def _with_gradient(logits):
    """The same, in few passes over the logits."""
    first, second = _halves(ops.softmax(logits, axis=1))
    apart, difference = first - second, _difference(logits)

    def gradient(upstream):
        def slope(probabilities):
            mean = ops.sum(probabilities * difference, axis=1, keepdims=True)
            return upstream[:, None] * (probabilities * (difference - mean) + apart)

        return ops.concatenate([slope(first), -slope(second)])

    return ops.sum(apart * difference, axis=1), gradient


def _difference(logits):
    """That of the log-probabilities but for a constant, which p - q, of sum 0, cancels."""
    first, second = _halves(logits)
    return ops.where(first == second, 0.0, first - second)  # both may be -inf


def _halves(x):
    half = ops.shape(x)[0] // 2
    return x[:half], x[half:]
