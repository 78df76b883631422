"""WaveformNormalization, and the layers inside a WaveformEmbedding: a norm over time and a convolution of positions."""

import math
from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import own_initializer, register
from keras_txf.ops.tensors import widen

VARIANCE = 1e-7  # added to the variance of a waveform


@register
class WaveformNormalization(Layer):
    """Scales waveforms to mean 0 and variance 1, in the form that wav2vec 2.0 and HuBERT read.

    Use it before the model, in a `tf.data` pipeline of TensorFlow or as the first layer of a model. The layer has no
    weights, and computes in float32 under every policy. Padding does not count, and becomes 0.

    Call arguments:
        inputs: float (B, samples).
        mask: bool (B, samples), True at real samples; default: all samples are real.

    Returns:
        (B, samples).

    Raises:
        ValueError: waveforms of integers, or of several channels.

    Example:

    >>> sounds = np.array([[1.0, 3.0, 1.0, 3.0, 0.0]], "float32")
    >>> scaled = txf.layers.WaveformNormalization()(sounds, mask=np.array([[True, True, True, True, False]]))
    >>> keras.ops.convert_to_numpy(scaled).round().tolist()
    [[-1.0, 1.0, -1.0, 1.0, 0.0]]
    """

    def __init__(self, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.autocast = False  # half precision would lose the quiet parts
        self.supports_masking = True

    def call(self, inputs, mask=None):
        checks.rank("inputs", inputs, (2, "(batch, samples)"))
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise ValueError(f"`inputs` must be floats, such as 16-bit samples divided by 32768; received {dtype}.")
        x = widen(inputs)
        if mask is None:
            mean, variance = ops.moments(x, axes=1, keepdims=True)
            return ops.cast((x - mean) * ops.rsqrt(variance + VARIANCE), self.compute_dtype)
        mask = ops.cast(checks.dense_tensor("mask", mask), "bool")
        checks.padding_mask(mask, inputs)
        real = ops.cast(mask, x.dtype)
        count = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
        x = ops.where(mask, x, 0.0)
        x = ops.where(mask, x - ops.sum(x, axis=1, keepdims=True) / count, 0.0)
        variance = ops.sum(ops.square(x), axis=1, keepdims=True) / count
        return ops.cast(x * ops.rsqrt(variance + VARIANCE), self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape


@register
class TimeNormalization(Layer):
    """Normalizes each channel over the time of a row: a group norm with one channel in a group.

    Args:
        epsilon: number that is added to the variance.

    Call arguments:
        inputs: float (B, T, F).

    Returns:
        (B, T, F).

    Reference:
        [Group Normalization](https://arxiv.org/abs/1803.08494).
    """

    weight_splits = {"gamma": "whole", "beta": "whole"}

    def __init__(self, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = checks.positive_number("epsilon", epsilon)

    def build(self, inputs_shape):
        self.gamma = self.add_weight(name="gamma", shape=inputs_shape[-1:], initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=inputs_shape[-1:], initializer="zeros", autocast=False)

    def call(self, inputs):
        x = widen(inputs)
        mean, variance = ops.moments(x, axes=1, keepdims=True)
        x = (x - mean) * ops.rsqrt(variance + self.epsilon)
        gamma, beta = (ops.cast(current_value(weight), x.dtype) for weight in (self.gamma, self.beta))
        return ops.cast(x * gamma + beta, self.compute_dtype)


@register
class WeightNormalizedConvolution(Layer):
    """A convolution in groups of features, whose kernel is gain · direction / |direction| for each place in the window.

    The window of an even size reads one step more on the left than on the right.

    Args:
        kernel_size: number K of steps that the convolution reads.
        groups: number of groups.

    Call arguments:
        inputs: float (B, T, D).

    Returns:
        (B, T, D).

    Reference:
        [Weight Normalization](https://arxiv.org/abs/1602.07868).
    """

    weight_splits = {"direction": "whole", "gain": "whole", "bias": "whole"}

    def __init__(self, kernel_size, groups, **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = checks.size("kernel_size", kernel_size)
        self.groups = checks.size("groups", groups)

    def build(self, inputs_shape):
        width, size = inputs_shape[-1], self.kernel_size
        deviation = 2 / math.sqrt(size * width)
        initializer = own_initializer(keras.initializers.RandomNormal(stddev=deviation), self, "direction")
        length = deviation * width / math.sqrt(self.groups)  # the norm of such a direction
        self.direction = self.add_weight(
            name="direction", shape=(size, width // self.groups, width), initializer=initializer, autocast=False
        )
        constant = keras.initializers.Constant(length)
        self.gain = self.add_weight(name="gain", shape=(size,), initializer=constant, autocast=False)
        self.bias = self.add_weight(name="bias", shape=(width,), initializer="zeros")

    def call(self, inputs):
        direction, gain = (widen(current_value(weight)) for weight in (self.direction, self.gain))
        norm = ops.sqrt(ops.sum(ops.square(direction), axis=(1, 2)))
        kernel = ops.cast(direction * ops.reshape(gain / norm, (-1, 1, 1)), self.compute_dtype)
        left = self.kernel_size // 2
        x = ops.pad(inputs, ((0, 0), (left, self.kernel_size - 1 - left), (0, 0)))
        return ops.conv(x, kernel, 1, "valid", "channels_last") + self.bias

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
