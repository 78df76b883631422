"""The losses of pairs that belong together: SoftmaxContrastiveLoss and SigmoidContrastiveLoss."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.serialization import register
from keras_txf.training.losses import is_built_on_means


class _OfPairs(keras.losses.Loss):
    """Makes of an id for each pair the matrix that says which of the pairs match, True where the ids are equal."""

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
            given = tuple(sample_weight.shape)
            if given[1:] not in ((), (1,)) or len({*sizes, *given[:1]} - {None}) > 1:
                raise ValueError(
                    f"`sample_weight` must have a weight for each pair, (B,); received {given} for {shape}."
                )
        ids = ops.reshape(y_true, (-1,))
        return super().__call__(ids[:, None] == ids[None, :], y_pred, sample_weight)

    def get_config(self):
        return {"name": self.name}


@register
class SoftmaxContrastiveLoss(_OfPairs):
    """CLIP's loss: each image has to choose its text among those of the batch, and each text its image.

    Use it with the output `logits` of `txf.models.dual_encoder`. The loss of a pair is the mean of two cross-entropies:
    of the softmax over its row of the logits, and over its column. Large batches help, for the other pairs are what a
    pair is told from. Under `tf.distribute` these are the pairs of the same replica.

    Args:
        name: name of the loss.

    Call arguments:
        y_true: int (B,), an id for each pair, such as `np.arange` of the number of pairs in the data. Pairs with one id
            match each other too: an image of class 3 matches each text of class 3. The probability of a row is then
            spread evenly over all that match.
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
class SigmoidContrastiveLoss(_OfPairs):
    """SigLIP's loss: for each image and each text of the batch, whether they belong together.

    Use it with the output `logits` of `txf.models.dual_encoder(logit_scale=10.0, max_logit_scale=None,
    logit_bias=-10.0)`. Each of the B² pairs is judged by itself, so small batches do as well. Under `tf.distribute` the
    pairs are those of the same replica.

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
