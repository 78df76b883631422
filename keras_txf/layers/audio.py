"""LogMelSpectrogram and AudioEmbedding: from waveforms to frames, and from frames to the input of a speech model."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.features import add_positions, make_position_layer, zero_padding
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.positions import ENCODINGS
from keras_txf.layers.serialization import get_initializer, own_initializer, register


@register
class AudioEmbedding(Layer):
    """Embeds frames in the width of a model by one-dimensional convolutions, and adds positions.

    For log-mel spectrograms (see `LogMelSpectrogram`) and other long sequences of float vectors: strides shorten the
    sequence for attention. Pass the layer as `embedding` to a builder with `input_dim`. With the defaults the layer is
    the input of Whisper: two convolutions over 3 frames, the second with stride 2.

    Zeros stand for frames before the first and after the last. Padding on the right does not change the output at real
    frames. Padding on the left changes it if the product of the strides does not divide the length of the padding.

    Args:
        dim: width D of the output.
        kernel_size: number of frames that a convolution reads, odd.
        strides: list with the stride of each convolution.
        activation: activation after each convolution.
        position_encoding: "sinusoidal_inclusive", "sinusoidal", "learned" or another value of `PositionalEmbedding`,
            or None.
        max_length: number of positions after the convolutions; longer input raises ValueError.
        use_bias: whether the convolutions have a bias.
        kernel_initializer: initializer of the convolutions.
        embeddings_initializer: initializer of learned positions; default normal with standard deviation 0.02.

    Call arguments:
        inputs: float (B, T, F).
        mask: bool (B, T), True at real frames. Keras fills it from the layer before, such as `keras.layers.Masking`.

    Returns:
        (B, S, D). S is T divided by each stride in turn, rounded up. The mask of the output has the values of the
        frames in the middle of each window.

    Raises:
        ValueError: an even `kernel_size`, no strides, an unknown `position_encoding`, learned positions without
            `max_length`, input longer than `max_length`.

    Reference:
        [Robust Speech Recognition via Large-Scale Weak Supervision](https://arxiv.org/abs/2212.04356), section 2.2.

    Example:

    >>> layer = txf.layers.AudioEmbedding(dim=32)
    >>> layer(keras.random.normal((2, 100, 80))).shape
    (2, 50, 32)
    """

    def __init__(
        self,
        dim: int,
        kernel_size: int = 3,
        strides: Sequence[int] = (1, 2),
        activation: Any = "gelu",
        position_encoding: str | None = "sinusoidal_inclusive",
        max_length: int | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        embeddings_initializer: Any = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.dim = checks.size("dim", dim)
        self.kernel_size = checks.size("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd, so that a window has a middle; received {kernel_size}.")
        if not isinstance(strides, (list, tuple)) or not strides:
            raise ValueError(
                f"`strides` must be a list with the stride of each convolution; received {short_repr(strides)}."
            )
        self.strides = tuple(checks.size("strides", stride) for stride in strides)
        self.activation = activation
        self.activation_function = get_activation("activation", activation)
        self.position_encoding = checks.one_of("position_encoding", position_encoding, (*ENCODINGS, None))
        self.max_length = checks.optional(checks.size, "max_length", max_length)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.embeddings_initializer = get_initializer("embeddings_initializer", embeddings_initializer)
        self.supports_masking = True
        self.position_layer = make_position_layer(self)

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(f"`inputs` must have shape (batch, frames, features); received {tuple(inputs_shape)}.")
        self.convolutions, width = [], inputs_shape[-1]
        for number, stride in enumerate(self.strides):
            name = f"convolution_{number}"
            convolution = keras.layers.Conv1D(
                self.dim,
                self.kernel_size,
                stride,
                data_format="channels_last",
                use_bias=self.use_bias,
                kernel_initializer=own_initializer(self.kernel_initializer, self, name),
                dtype=self.dtype_policy,
                name=name,
            )
            convolution.build((None, None, width))
            self.convolutions.append(convolution)
            width = self.dim
        if isinstance(self.activation_function, keras.layers.Layer):
            self.activation_function.build((None, None, self.dim))
        if self.position_layer is not None:
            self.position_layer.build(inputs_shape[:-1])

    def call(self, inputs, mask=None):
        checks.rank("inputs", inputs, (3, "(batch, frames, features)"))
        self._check_length(inputs)
        x, side = inputs, self.kernel_size // 2
        for convolution, stride in zip(self.convolutions, self.strides):
            x = x if mask is None else zero_padding(x, mask)
            x = self.activation_function(convolution(ops.pad(x, ((0, 0), (side, side), (0, 0)))))
            mask = None if mask is None else mask[:, ::stride]
        return x if self.position_layer is None else add_positions(self.position_layer, x, mask)

    def _check_length(self, inputs):
        length = checks.known_length(inputs)
        if None not in (length, self.max_length) and length > self.max_length * math.prod(self.strides):
            raise ValueError(
                f"`inputs` must have at most {self.max_length * math.prod(self.strides)} frames: strides "
                f"{self.strides} make max_length={self.max_length} positions of them; received {length}."
            )

    def compute_mask(self, inputs, previous_mask=None):
        if previous_mask is None:
            return None
        shorten = ShortenMask(math.prod(self.strides), name=f"{self.name}_mask")
        return shorten(previous_mask) if isinstance(previous_mask, keras.KerasTensor) else shorten.call(previous_mask)

    def compute_output_shape(self, inputs_shape):
        length = inputs_shape[1]
        return (inputs_shape[0], None if length is None else -(-length // math.prod(self.strides)), self.dim)


@register
class ShortenMask(Layer):
    """Takes every n-th column of a mask. It is a layer because the mask may be an optional input of a model.

    Call arguments:
        inputs: bool (B, T), or None.

    Returns:
        bool (B, T / n), rounded up, or None.
    """

    def __init__(self, stride, **kwargs):
        super().__init__(**kwargs)
        self.stride = stride

    def call(self, inputs):
        return None if inputs is None else inputs[:, :: self.stride]

    def compute_output_spec(self, inputs):
        length = None if inputs.shape[1] is None else -(-inputs.shape[1] // self.stride)
        return keras.KerasTensor((inputs.shape[0], length), inputs.dtype)


FLOOR = 1e-10  # least power, so that silence has a logarithm
RANGE = 8.0  # dynamic range, in powers of 10 below the loudest point of a sound


@register
class LogMelSpectrogram(Layer):
    """Computes the log-mel spectrograms of waveforms, in the form that Whisper reads.

    Use it before an `AudioEmbedding`, in a `tf.data` pipeline of TensorFlow or as the first layer of a model. The layer
    has no weights, and computes in float32 under every policy. The loudest point of a sound sets the scale of its
    spectrogram.

    Args:
        num_mel_bins: number F of bands: 80, or 128 for Whisper large v3.
        sampling_rate: samples a second of the waveforms. Whisper needs 16,000: resample other waveforms.
        frame_length: number of samples that a frame reads.
        hop_length: number of samples from one frame to the next.
        num_samples: length to which waveforms are cut, or padded with silence; 480,000 for Whisper, which reads 30
            seconds. Default: the length of the waveforms.

    Call arguments:
        inputs: float (B, samples), from -1 to 1, more than half a frame and at least a hop long.

    Returns:
        (B, T, F), T the number of samples divided by `hop_length`, rounded down.

    Raises:
        ValueError: sizes that are not positive integers, waveforms of integers, a waveform that is too short.

    Reference:
        [Robust Speech Recognition via Large-Scale Weak Supervision](https://arxiv.org/abs/2212.04356), section 2.2.

    Example:

    >>> layer = txf.layers.LogMelSpectrogram(num_mel_bins=80)
    >>> layer(np.sin(np.arange(16000, dtype="float32") / 8)[None]).shape  # a second of a tone
    (1, 100, 80)
    """

    def __init__(
        self,
        num_mel_bins: int = 80,
        sampling_rate: int = 16000,
        frame_length: int = 400,
        hop_length: int = 160,
        num_samples: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_mel_bins = checks.size("num_mel_bins", num_mel_bins)
        self.sampling_rate = checks.size("sampling_rate", sampling_rate)
        self.frame_length = checks.size("frame_length", frame_length)
        self.hop_length = checks.size("hop_length", hop_length)
        self.num_samples = checks.optional(checks.size, "num_samples", num_samples)
        self.autocast = False  # half precision would lose the quiet parts
        if num_samples is not None:
            self._check_length("num_samples", num_samples)
        self._filters = mel_filters(frame_length // 2 + 1, num_mel_bins, sampling_rate).astype("float32")

    def call(self, inputs):
        checks.rank("inputs", inputs, (2, "(batch, samples)"))
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise ValueError(
                f"`inputs` must be floats from -1 to 1, such as 16-bit samples divided by 32768; received {dtype}."
            )
        x = ops.cast(inputs, "float32")
        if self.num_samples is not None:
            x = ops.pad(x[:, : self.num_samples], ((0, 0), (0, self.num_samples)))[:, : self.num_samples]
        else:
            self._check_length("inputs", checks.known_length(x))
        real, imaginary = ops.stft(x, self.frame_length, self.hop_length, self.frame_length)
        power = (ops.square(real) + ops.square(imaginary))[:, :-1]  # Whisper leaves out the last frame
        logs = ops.log10(ops.maximum(ops.matmul(power, self._filters), FLOOR))
        logs = ops.maximum(logs, ops.max(logs, axis=(1, 2), keepdims=True) - RANGE)
        return ops.cast((logs + 4.0) / 4.0, self.compute_dtype)

    def _check_length(self, name, length):
        least = max(self.frame_length // 2 + 1, self.hop_length)
        if length is not None and length < least:
            raise ValueError(
                f"`{name}` must be at least {least} samples: more than half of frame_length={self.frame_length}, and "
                f"hop_length={self.hop_length}; received {length}."
            )

    def compute_output_shape(self, inputs_shape):
        samples = self.num_samples or inputs_shape[1]
        return (inputs_shape[0], None if samples is None else samples // self.hop_length, self.num_mel_bins)


LINEAR = 200 / 3  # Hz for each mel below 1,000 Hz
BREAK = 1000.0  # Hz; the scale is logarithmic above
STEP = math.log(6.4) / 27  # logarithm of the ratio of two frequencies one mel apart, above 1,000 Hz


def mel_filters(num_frequencies, num_bands, sampling_rate):
    """Triangles between neighbouring bands of Slaney's mel scale, each of area 2, from 0 Hz to half the sampling rate.

    Args:
        num_frequencies: number of frequencies of the Fourier transform, from 0 Hz to half the sampling rate.
        num_bands: number of bands.
        sampling_rate: samples a second.

    Returns:
        NumPy float64 (num_frequencies, num_bands).

    Reference:
        [Auditory Toolbox](https://engineering.purdue.edu/~malcolm/interval/1998-010/), the source of the scale of
        librosa and Whisper.
    """
    highest = sampling_rate / 2
    frequencies = np.linspace(0, highest, num_frequencies)
    corners = to_hertz(np.linspace(0, to_mel(highest), num_bands + 2))
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - low) / (middle - low)
    falling = (high - frequencies[:, None]) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


def to_mel(hertz):
    """A frequency on the mel scale."""
    return hertz / LINEAR if hertz < BREAK else BREAK / LINEAR + math.log(hertz / BREAK) / STEP


def to_hertz(mels):
    """The frequencies of an array of mels."""
    above = np.maximum(mels - BREAK / LINEAR, 0)
    return np.where(above > 0, BREAK * np.exp(STEP * above), LINEAR * mels)
