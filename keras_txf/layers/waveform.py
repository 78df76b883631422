"""WaveformEmbedding: from waveforms to the input of a speech model, without a spectrogram."""

from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.features import zero_padding
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.norms import make_norm
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import Dropout, make_projection
from keras_txf.layers.serialization import get_initializer, own_initializer, register
from keras_txf.layers.waveform_parts import TimeNormalization, WeightNormalizedConvolution

FILTER_EPSILON = 1e-5  # of the norms between the convolutions


@register
class WaveformEmbedding(Layer):
    """Embeds waveforms by strided convolutions, a projection, and a convolution for positions, as in wav2vec 2.0.

    Pass the layer as `embedding` to a builder with `input_dim=1`. The model then takes waveforms (B, samples). With the
    defaults a frame reads 400 samples, and the next frame begins 320 samples later: 50 frames a second of 16,000
    samples. The convolutions pad nothing, so only whole windows become frames.

    Positions are x + activation(convolution(x)), over `position_kernel_size` frames around each frame, with zeros for
    frames that do not exist. The kernel of this convolution is gain · direction / |direction|, with one norm for each
    place in the window (weight normalization).

    With norm="layer" padding does not change the output at real frames. With norm="group" each channel of the first
    convolution is normalized over the time of the whole row, so padding counts as silence of the recording.

    Args:
        dim: width D of the output.
        filters: list with the width of each convolution.
        kernel_sizes: list with the number of steps that each convolution reads.
        strides: list with the stride of each convolution.
        activation: activation after each convolution, the convolution for positions too.
        norm: "layer", a layer norm after each convolution; "group", a norm over time after the first convolution alone
            (wav2vec 2.0's base model); or None.
        use_bias: whether the convolutions have a bias. The convolution for positions always has one.
        position_kernel_size: number of frames that the convolution for positions reads; None: no such convolution.
        position_groups: number of groups of features in the convolution for positions, a divisor of `dim`.
        projection_norm: whether a layer norm precedes the projection.
        projection_dropout: dropout rate after the projection.
        norm_epsilon: epsilon of the norm before the projection. The norms of convolutions have 1e-5.
        kernel_initializer: initializer of the convolutions and of the projection. The convolution for positions begins
            with a normal distribution, as in the paper's code.

    Call arguments:
        inputs: float (B, samples, F); F is 1 for waveforms of one channel.
        mask: bool (B, samples), True at real samples. Keras fills it from the layer before.

    Returns:
        (B, T, D), T the number of whole windows. A frame is real if all its samples are. A row without a whole window
        of real samples has no real frame.

    Raises:
        ValueError: lists of different lengths, an unknown `norm`, groups that do not divide `dim`, input shorter than
            one window.

    Reference:
        [wav2vec 2.0](https://arxiv.org/abs/2006.11477), section 2 and appendix B;
        [Weight Normalization](https://arxiv.org/abs/1602.07868).

    Example:

    >>> layer = txf.layers.WaveformEmbedding(dim=32, filters=[8, 8], kernel_sizes=[10, 3], strides=[5, 2])
    >>> layer(keras.random.normal((2, 1000, 1))).shape
    (2, 99, 32)
    """

    weight_splits = {"projection": "whole"}

    def __init__(
        self,
        dim: int,
        filters: Sequence[int] = (512, 512, 512, 512, 512, 512, 512),
        kernel_sizes: Sequence[int] = (10, 3, 3, 3, 3, 2, 2),
        strides: Sequence[int] = (5, 2, 2, 2, 2, 2, 2),
        activation: Any = "gelu",
        norm: str | None = "layer",
        use_bias: bool = True,
        position_kernel_size: int | None = 128,
        position_groups: int = 16,
        projection_norm: bool = True,
        projection_dropout: float = 0.0,
        norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.dim = checks.size("dim", dim)
        self.filters = _sizes("filters", filters)
        self.kernel_sizes = _sizes("kernel_sizes", kernel_sizes, len(self.filters))
        self.strides = _sizes("strides", strides, len(self.filters))
        self.activation = activation
        self.activation_function = get_activation("activation", activation)
        self.norm = checks.one_of("norm", norm, ("layer", "group", None))
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.position_kernel_size = checks.optional(checks.size, "position_kernel_size", position_kernel_size)
        self.position_groups = checks.size("position_groups", position_groups)
        if position_kernel_size is not None and dim % position_groups:
            raise ValueError(f"`position_groups` must divide dim={dim}; received {position_groups}.")
        self.projection_norm = checks.boolean("projection_norm", projection_norm)
        self.projection_dropout = checks.rate("projection_dropout", projection_dropout)
        self.norm_epsilon = checks.positive_number("norm_epsilon", norm_epsilon)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.window, self.hop = _window(self.kernel_sizes, self.strides)
        self.supports_masking = True

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(f"`inputs` must have shape (batch, samples, features); received {tuple(inputs_shape)}.")
        self.convolutions, self.norms, shape = [], [], (None, None, inputs_shape[-1])
        for number, options in enumerate(zip(self.filters, self.kernel_sizes, self.strides)):
            convolution = keras.layers.Conv1D(
                *options,
                data_format="channels_last",
                use_bias=self.use_bias,
                kernel_initializer=own_initializer(self.kernel_initializer, self, f"convolution_{number}"),
                dtype=self.dtype_policy,
                name=f"convolution_{number}",
            )
            convolution.build(shape)
            self.convolutions.append(convolution)
            shape = (None, None, options[0])
            self.norms.append(self._make_norm(number))
            if self.norms[-1] is not None:
                self.norms[-1].build(shape)
        if isinstance(self.activation_function, keras.layers.Layer):
            self.activation_function.build((None, None, self.dim))
        self.norm_before = None
        if self.projection_norm:
            self.norm_before = make_norm("layer", self.norm_epsilon, self.dtype_policy, "projection_norm")
            self.norm_before.build(shape)
        self.projection = make_projection(self, "projection", self.dim, shape, use_bias=True)
        self.dropout_layer = Dropout(self.projection_dropout, dtype=self.dtype_policy, name="dropout")
        self.position = self.make_position()
        if self.position is not None:
            self.position.build((None, None, self.dim))

    def make_position(self):
        """Returns the convolution for positions, or None; a subclass may return another layer."""
        if self.position_kernel_size is None:
            return None
        return WeightNormalizedConvolution(
            self.position_kernel_size, self.position_groups, dtype=self.dtype_policy, name="position"
        )

    def _make_norm(self, number):
        """Returns the norm after a convolution, or None."""
        name = f"norm_{number}"
        if self.norm == "group":
            return TimeNormalization(FILTER_EPSILON, dtype=self.dtype_policy, name=name) if number == 0 else None
        return None if self.norm is None else make_norm("layer", FILTER_EPSILON, self.dtype_policy, name)

    def call(self, inputs, mask=None, training=None):
        self._check(inputs)
        x = inputs if mask is None else zero_padding(inputs, mask)
        for convolution, norm in zip(self.convolutions, self.norms):
            x = convolution(x)
            x = self.activation_function(x if norm is None else norm(x))
        x = self.projection(x if self.norm_before is None else self.norm_before(x))  # (B, T, D)
        x = self.dropout_layer(x, training=training)
        x = x if mask is None else zero_padding(x, whole_windows(mask, self.window, self.hop))
        return x if self.position is None else x + self.activation_function(self.position(x))

    def _check(self, inputs):
        checks.rank("inputs", inputs, (3, "(batch, samples, features)"))
        length = checks.known_length(inputs)
        if length is not None and length < self.window:
            raise ValueError(f"`inputs` must have at least {self.window} samples, one window; received {length}.")

    def compute_mask(self, inputs, previous_mask=None):
        if previous_mask is None:
            return None
        windows = WholeWindows(self.window, self.hop, name=f"{self.name}_mask")
        return windows(previous_mask) if isinstance(previous_mask, keras.KerasTensor) else windows.call(previous_mask)

    def compute_output_spec(self, inputs, mask=None, training=None):
        self._check(inputs)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return (inputs_shape[0], _count(inputs_shape[1], self.window, self.hop), self.dim)


def _sizes(name, values, number=None):
    """Returns a tuple of sizes, one for each convolution; raises ValueError for other values or another number."""
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(f"`{name}` must be a list with a size for each convolution; received {short_repr(values)}.")
    if number not in (None, len(values)):
        raise ValueError(f"`{name}` must have as many values as `filters`, {number}; received {short_repr(values)}.")
    return tuple(checks.size(name, value) for value in values)


def _window(kernel_sizes, strides):
    """Returns the number of samples that a frame reads, and the number from one frame to the next."""
    window, hop = 1, 1
    for kernel_size, stride in zip(kernel_sizes, strides):
        window += (kernel_size - 1) * hop
        hop *= stride
    return window, hop


def _count(length, window, hop):
    """Returns the number of whole windows of a length, or None."""
    return None if length is None else (length - window) // hop + 1


def whole_windows(mask, window, hop):
    """The mask of frames, (B, samples) -> (B, T): True where the first and the last sample of a window are real."""
    mask = ops.cast(checks.dense_tensor("mask", mask), "bool")
    last = mask[:, window - 1 :: hop]
    return ops.logical_and(mask[:, ::hop][:, : ops.shape(last)[1]], last)


@register
class WholeWindows(Layer):
    """The mask of frames from the mask of samples. It is a layer because the mask may be an optional input of a model.

    Args:
        window: number of samples that a frame reads.
        hop: number of samples from one frame to the next.

    Call arguments:
        inputs: bool (B, samples), or None.

    Returns:
        bool (B, T), or None.
    """

    def __init__(self, window, hop, **kwargs):
        super().__init__(**kwargs)
        self.window, self.hop = window, hop

    def call(self, inputs):
        return None if inputs is None else whole_windows(inputs, self.window, self.hop)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((inputs.shape[0], _count(inputs.shape[1], self.window, self.hop)), "bool")
