"""The norms by name. They compute at least in float32 under every policy."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.parts import Pattern, build_part, copy_layer, is_layer, take_layer
from keras_txf.layers.serialization import register
from keras_txf.ops.tensors import widen


@register
class RMSNormalization(keras.layers.RMSNormalization, Layer):
    """Keras' RMS norm, which passes the padding mask on; Keras' own drops the mask."""

    weight_splits = {"scale": "whole"}

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True


@register
class ZeroCenteredRMSNormalization(RMSNormalization):
    """RMS norm that multiplies by 1 + scale, where `scale` is initially 0 (Gemma).

    bfloat16 stores a scale near 0 with more digits than 1 + scale.
    """

    def build(self, inputs_shape):
        self.scale = self.add_weight(name="scale", shape=inputs_shape[-1:], initializer="zeros", autocast=False)

    def call(self, inputs):
        scale = 1.0 + widen(self.scale)
        return ops.rms_normalization(inputs, scale=scale, axis=-1, epsilon=self.epsilon)


NORMS = {
    "layer": lambda use_bias, **kwargs: keras.layers.LayerNormalization(center=use_bias, **kwargs),
    "rms": lambda use_bias, **kwargs: RMSNormalization(**kwargs),
    "rms_zero_centered": lambda use_bias, **kwargs: ZeroCenteredRMSNormalization(**kwargs),
}


def check_norm(norm):
    """Returns the name of a norm, or a `Pattern` of a layer; raises ValueError for another value."""
    if isinstance(norm, Pattern):
        return norm
    return Pattern(take_layer("norm", norm)) if is_layer(norm) else checks.one_of("norm", norm, NORMS, "a layer")


def make_norm(norm, epsilon, dtype, name, use_bias=True):
    """Makes a norm by its name, or copies a layer. `use_bias` applies to the layer norm; an RMS norm has no bias."""
    checks.positive_number("norm_epsilon", epsilon)
    norm = check_norm(norm)
    if isinstance(norm, Pattern):
        return copy_layer(norm.layer, name, dtype=dtype)
    return NORMS[norm](use_bias, epsilon=epsilon, dtype=dtype, name=name)


TINY = 1e-24  # the square of Keras' epsilon


@register
class UnitNormalization(keras.layers.UnitNormalization, Layer):
    """Keras' unit norm with a gradient of zeros at a zero vector, such as the mean of a text that is all padding.

    Keras' own divides by zero there: the gradient is NaN on JAX and PyTorch, and the output is NaN in float16.
    """

    def call(self, inputs):
        wide = widen(inputs)
        squares = ops.sum(ops.square(wide), axis=self.axis, keepdims=True)
        factors = ops.where(squares > TINY, ops.rsqrt(ops.maximum(squares, TINY)), 0.0)
        return ops.cast(wide * factors, inputs.dtype)


@register
class KeepMask(Layer):
    """Wraps a user's norm that would drop the padding mask. A block needs no wrapper, since it keeps the mask itself.

    Args:
        norm: a layer called on (B, T, D).
    """

    def __init__(self, norm, **kwargs):
        super().__init__(**kwargs)
        self.norm = take_layer("norm", norm)
        self.supports_masking = True

    def build(self, shape):
        build_part(self.norm, shape)

    def call(self, inputs):
        return self.norm(inputs)
