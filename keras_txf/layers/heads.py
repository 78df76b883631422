"""Layers of heads: pooling of a sequence to one vector, and adjustments of logits."""

import math
from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import Projection
from keras_txf.layers.serialization import register
from keras_txf.ops.logit_factors import adjust_logits, note_adjustment
from keras_txf.ops.tensors import widen


@register
class Pooling(Layer):
    """One vector for each sequence, from its real tokens only.

    Args:
        kind: "mean", "max", "first" or "last" real token, or "attention": a weighted mean with weights from a
            learned query. If the first token is a class token: "others", the mean of the other tokens (BEiT), or
            "first_and_others", the class token and this mean concatenated, 2 D wide (DINOv2).

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. Keras fills it from the layer before.

    Returns:
        (B, D), or (B, 2 D). The vector of a sequence without real tokens is zero.

    Raises:
        ValueError: an unknown kind.

    Reference:
        [Hierarchical Attention Networks](https://aclanthology.org/N16-1174) for "attention".

    Example:

    >>> txf.layers.Pooling("last")(keras.random.normal((2, 7, 32))).shape
    (2, 32)
    """

    weight_splits = {"score": "whole"}

    def __init__(self, kind: str = "mean", **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.kind = checks.one_of("kind", kind, POOLINGS)
        self.supports_masking = True

    def build(self, inputs_shape):
        if len(inputs_shape) != 3:
            raise ValueError(f"`inputs` must have shape (batch, length, dim); received {tuple(inputs_shape)}.")
        if self.kind == "attention":
            self.score = Projection(1, use_bias=False, dtype=self.dtype_policy, name="score")
            self.score.build(inputs_shape)

    def call(self, inputs, mask=None):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        if mask is None:
            mask = ops.ones_like(inputs[..., 0], dtype="bool")
        checks.padding_mask(mask, inputs)
        if 0 in inputs.shape:  # PyTorch has no maximum of an empty axis; `initial` is for sizes that are known later
            width = inputs.shape[-1] * (2 if self.kind == "first_and_others" else 1)
            return ops.zeros((ops.shape(inputs)[0], width), self.compute_dtype)
        mask = ops.expand_dims(ops.cast(mask, "bool"), -1)  # LiteRT has no `[..., None]`
        pooled = POOLINGS[self.kind](self, widen(inputs), mask)
        pooled = ops.where(ops.any(mask, axis=1), pooled, 0.0)
        return ops.cast(pooled, self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@register
class LogitAdjustment(Layer):
    """Scale, bias and soft cap of logits over a vocabulary: c · tanh((scale · logits + bias) / c).

    Pass it as `logit_adjustment` to a builder. It computes in float32 or wider.

    Args:
        scale: factor on the logits (T5's 1 / sqrt(dim)), or None.
        use_bias: whether each token of the vocabulary has a bias (BERT, Marian).
        soft_cap: the c above (Gemma 2), or None.

    Call arguments:
        inputs: float (..., V).

    Returns:
        (..., V).

    Raises:
        ValueError: a scale or cap that is not a positive number.

    Example:

    >>> txf.layers.LogitAdjustment(soft_cap=30.0)(np.array([[-1000.0, 0.0, 1000.0]])).numpy().tolist()
    [[-30.0, 0.0, 30.0]]
    """

    weight_splits = {"bias": "columns"}

    def __init__(
        self,
        scale: float | None = None,
        use_bias: bool = False,
        soft_cap: float | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.scale = checks.optional(checks.positive_number, "scale", scale)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.soft_cap = checks.optional(checks.positive_number, "soft_cap", soft_cap)
        self.supports_masking = True

    def build(self, inputs_shape):
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(inputs_shape[-1],), initializer="zeros")

    def call(self, inputs):
        if self.scale is None and not self.use_bias and self.soft_cap is None:
            return inputs
        bias = current_value(self.bias) if self.use_bias else None
        logits = ops.cast(adjust_logits(inputs, self.scale, bias, self.soft_cap), inputs.dtype)
        note_adjustment(inputs, logits, self.scale, bias, self.soft_cap)
        return logits


@register
class SpanLogits(Layer):
    """Splits the two logits of each token into those of the start and of the end of an answer.

    Call arguments:
        inputs: float (B, T, 2).
        mask: bool (B, T), True at real tokens. Keras fills it from the layer before.

    Returns:
        Dict of `start_logits` and `end_logits`, (B, T) each, -32,768 at padding.

    Example:

    >>> {name: logits.shape for name, logits in SpanLogits()(np.zeros((2, 7, 2))).items()}
    {'start_logits': (2, 7), 'end_logits': (2, 7)}
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        logits = {"start_logits": inputs[..., 0], "end_logits": inputs[..., 1]}
        if mask is None:
            return logits
        return {name: ops.where(mask, x, ops.cast(_NO_SPAN, x.dtype)) for name, x in logits.items()}

    def compute_mask(self, inputs, previous_mask=None):
        return None


def _weighted_mean(x, weights):
    weights = ops.cast(weights, x.dtype)
    return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1e-9)


def _mean(layer, x, mask):
    return _weighted_mean(x, mask)


def _max(layer, x, mask):
    return ops.max(ops.where(mask, x, _LOW), axis=1, initial=_LOW)


def _first(layer, x, mask):
    count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    return _weighted_mean(x, ops.logical_and(mask, count == 1))


def _others(layer, x, mask):
    count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    return _weighted_mean(x, ops.logical_and(mask, count > 1))


def _first_and_others(layer, x, mask):
    return ops.concatenate([_first(layer, x, mask), _others(layer, x, mask)], axis=-1)


def _last(layer, x, mask):
    count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
    return _weighted_mean(x, ops.logical_and(mask, count == count[:, -1:]))


def _attention(layer, x, mask):
    scores = ops.where(mask, ops.cast(layer.score(x), x.dtype), _LOW)
    # The weighted mean divides by the sum, which completes the softmax. Keras' softmax warns of a single token.
    return _weighted_mean(x, ops.exp(scores - ops.max(scores, axis=1, keepdims=True, initial=_LOW)))


_LOW = -1e30
_NO_SPAN = -(2.0**15)  # exact in float16 and bfloat16

POOLINGS = {
    "mean": _mean,
    "max": _max,
    "first": _first,
    "last": _last,
    "attention": _attention,
    "others": _others,
    "first_and_others": _first_and_others,
}


@register
class SimilarityLogits(Layer):
    """The dot product of each image with each text, times a learned factor: exp(scale) · images textsᵀ + bias.

    With vectors of unit length the dot product is the cosine of their angle. Computes in float32 or wider.

    Args:
        initial_scale: initial value of the factor, a positive number. The weight is its logarithm.
        max_scale: limit of the factor in training; None: no limit.
        initial_bias: initial value of the bias; None: no bias.

    Call arguments:
        inputs: float (images, D) and float (texts, D), in a list.

    Returns:
        (images, texts).

    Reference:
        [CLIP](https://arxiv.org/abs/2103.00020), section 2.3; [SigLIP](https://arxiv.org/abs/2303.15343) for the bias.
    """

    weight_splits = {"logit_scale": "whole", "logit_bias": "whole"}

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
    """Limits a weight to a maximum after each step of training."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, w):
        return ops.minimum(w, ops.cast(self.limit, w.dtype))

    def get_config(self):
        return {"limit": self.limit}
