"""Convolution: a convolution over the tokens of a sequence.

Legend: B batch, T length, D width.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.activations import get_activation
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import get_initializer, own_initializer, register


@register
class Convolution(Layer):
    """A convolution over tokens, with an activation: each token sees as many neighbours on either side.

    Pass it as `convolution` to an `EncoderBlock` or an encoder. Padding counts as zeros, as what lies beyond the ends
    does, so a row does not depend on its padding.

    Args:
        kernel_size: number of tokens that one sees, itself in their middle: odd.
        activation: any Keras activation, see `FeedForward`.
        kernel_initializer: of the kernel.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens.

    Returns:
        (B, T, D).

    Raises:
        ValueError: an even `kernel_size`, inputs of another rank or of unknown D.

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), whose version 2 has one beside its first block.

    Example:

    >>> convolution = txf.layers.Convolution(kernel_size=3, activation="gelu")
    >>> model = txf.models.encoder(100, num_layers=2, dim=32, num_heads=4, convolution=[convolution, None])
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 4, 32)
    """

    def __init__(
        self,
        kernel_size: int = 3,
        activation: Any = "tanh",
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.kernel_size = checks.size("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd, with the token in the middle; received {kernel_size}.")
        self.activation = activation
        self.activation_function = get_activation("activation", activation)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        dim = inputs_shape[-1]
        if len(inputs_shape) != 3 or dim is None:
            raise ValueError(
                f"`inputs` must have shape (batch, length, dim) with a known dim; received shape {tuple(inputs_shape)}."
            )
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, dim, dim),
            initializer=own_initializer(self.kernel_initializer, self),
        )
        self.bias = self.add_weight(name="bias", shape=(dim,), initializer="zeros")
        if isinstance(self.activation_function, keras.layers.Layer):
            self.activation_function.build(inputs_shape)

    def compute_output_spec(self, inputs, mask=None):
        self._check_call(inputs, mask)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def _check_call(self, inputs, mask):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        checks.padding_mask(mask, inputs)

    def call(self, inputs, mask=None):
        self._check_call(inputs, mask)
        if mask is not None:
            inputs = inputs * ops.expand_dims(ops.cast(mask, inputs.dtype), -1)
        outputs = ops.conv(inputs, self.kernel, padding="same", data_format="channels_last")
        return self.activation_function(outputs + self.bias)
