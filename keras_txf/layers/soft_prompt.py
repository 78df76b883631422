"""SoftPrompt: learned vectors before the tokens of every sequence."""

from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import get_initializer, register


@register
class SoftPrompt(Layer):
    """Learned vectors that a model concatenates before the embedded tokens of every sequence (prompt tuning).

    Use it to adapt a frozen language model: only these vectors are trained. `generate` of a `txf.models.generative`
    model reads them once, with the prompt.

    Args:
        length: number n of vectors.
        initializer: initializer of the vectors.

    Call arguments:
        inputs: float (B, T, D), the embedded tokens. The layer uses only their batch size and width.

    Returns:
        float (B, n, D), without a mask.

    Raises:
        ValueError: a length that is not a positive integer, inputs without a known width.

    Reference:
        [The Power of Scale for Parameter-Efficient Prompt Tuning](https://arxiv.org/abs/2104.08691).

    Example:

    >>> tokens = keras.random.normal((2, 7, 32))
    >>> keras.ops.concatenate([txf.layers.SoftPrompt(5)(tokens), tokens], axis=1).shape
    (2, 12, 32)
    """

    weight_splits = {"vectors": "whole"}

    def __init__(
        self,
        length: int,
        initializer: str | keras.initializers.Initializer = "random_normal",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.length = checks.size("length", length)
        self.initializer = get_initializer("initializer", initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                f"`inputs` must have shape (batch, length, dim) of a known dim; received shape {tuple(inputs_shape)}."
            )
        shape = (self.length, inputs_shape[-1])
        self.vectors = self.add_weight(name="vectors", shape=shape, initializer=self.initializer)

    def call(self, inputs):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        vectors = ops.cast(self.vectors, self.compute_dtype)
        return ops.broadcast_to(vectors, (ops.shape(inputs)[0], *vectors.shape))

    def compute_output_spec(self, inputs):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        return keras.KerasTensor((inputs.shape[0], self.length, inputs.shape[-1]), self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None
