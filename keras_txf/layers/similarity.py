"""SimilarityLogits: how alike two sets of vectors are, times a learned factor."""

import math

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register
from keras_txf.ops.numbers import widen


@register
class SimilarityLogits(Layer):
    """The dot product of each image with each text, times a learned factor: exp(scale) · images textsᵀ + bias.

    With vectors of unit length it is the cosine of their angle. Computes at least in float32 under every policy.

    Args:
        initial_scale: the factor at first, a positive number. Its logarithm is the weight.
        max_scale: training keeps the factor at most as large; None: it has no limit.
        initial_bias: the bias at first; None: there is no bias.

    Call arguments:
        inputs: float (images, D) and float (texts, D), in a list.

    Returns:
        (images, texts).

    Reference:
        [CLIP](https://arxiv.org/abs/2103.00020), section 2.3; [SigLIP](https://arxiv.org/abs/2303.15343) for the bias.
    """

    def __init__(self, initial_scale=1 / 0.07, max_scale=100.0, initial_bias=None, **kwargs):
        super().__init__(**kwargs)
        self.initial_scale = checks.positive_number("initial_scale", initial_scale)
        self.max_scale = checks.optional(checks.positive_number, "max_scale", max_scale)
        self.initial_bias = checks.optional(checks.finite_number, "initial_bias", initial_bias)

    def build(self, inputs_shape):
        self.logit_scale = self.add_weight(
            name="logit_scale",
            shape=(),
            initializer=keras.initializers.Constant(math.log(self.initial_scale)),
            constraint=None if self.max_scale is None else AtMost(math.log(self.max_scale)),
            autocast=False,
        )
        self.logit_bias = None
        if self.initial_bias is not None:
            initializer = keras.initializers.Constant(self.initial_bias)
            self.logit_bias = self.add_weight(name="logit_bias", shape=(), initializer=initializer, autocast=False)

    def check_argument(self, name, value):
        return value  # `inputs` is a list of tensors

    def call(self, inputs):
        images, texts = map(widen, inputs)
        logits = ops.matmul(images, ops.transpose(texts)) * ops.exp(ops.cast(self.logit_scale, images.dtype))
        if self.logit_bias is not None:
            logits = logits + ops.cast(self.logit_bias, images.dtype)
        return ops.cast(logits, self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        images, texts = inputs_shape
        return images[0], texts[0]


@register
class AtMost(keras.constraints.Constraint):
    """Keeps a weight at a limit or below, after each step of training."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, w):
        return ops.minimum(w, ops.cast(self.limit, w.dtype))

    def get_config(self):
        return {"limit": self.limit}
