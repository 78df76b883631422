"""AudioEmbedding: spectrogram frames through convolutions, the input of a speech model."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.activations import get_activation
from keras_txf.layers.base import Layer
from keras_txf.layers.embeddings import ENCODINGS
from keras_txf.layers.features import add_positions, make_position_layer, zero_padding
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import get_initializer, own_initializer, register


@register
class AudioEmbedding(Layer):
    """Takes frames through one-dimensional convolutions to the width of a model, and adds positions.

    For log-mel spectrograms (see `LogMelSpectrogram`) and other long sequences of float vectors: a stride shortens the
    sequence that attention sees. Pass the layer as `input_embedding` of a builder. With the defaults it is the input of
    Whisper: two convolutions over 3 frames, the second of stride 2.

    Frames before the first and after the last count as zeros. Padding on the right changes nothing at real frames;
    padding on the left does where its length is no multiple of the strides.

    Args:
        dim: width D of the output.
        kernel_size: number of frames that a convolution reads, odd.
        strides: stride of each convolution; their number is that of the convolutions.
        activation: after each convolution.
        position_encoding: "sinusoidal_whisper", "sinusoidal", "learned" or another one of `PositionalEmbedding`, or
            None.
        max_length: number of positions after the convolutions; longer input is refused.
        use_bias: whether the convolutions have a bias.
        kernel_initializer: of the convolutions.
        embeddings_initializer: of learned positions; default normal with standard deviation 0.02.

    Call arguments:
        inputs: float (B, T, F).
        mask: bool (B, T), True at real frames. Keras fills it from the layer before, such as `keras.layers.Masking`.

    Returns:
        (B, S, D). S is T divided by each stride in turn, rounded up. The mask of the output is that of every frame at
        which a window has its middle.

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
        position_encoding: str | None = "sinusoidal_whisper",
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
    """Takes every n-th column of a mask: a layer, since the mask of a model may be an input that is left out.

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
