"""FeatureEmbedding: sequences of float vectors, such as sensor data or audio frames, instead of tokens."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import layers_called_on
from keras_txf.layers.base import Layer
from keras_txf.layers.embeddings import PositionalEmbedding, check_length
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.positions import ENCODINGS
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import get_initializer, register
from keras_txf.layers.token_input import inputs_by_name


@register
class FeatureEmbedding(Layer):
    """Projects float vectors to the width of a model, and adds positions.

    Positions count real vectors only, so padding on the left does not shift them.

    Args:
        dim: width D of the output.
        position_encoding: "sinusoidal", "sinusoidal_halves", "learned", or None, see `PositionalEmbedding`.
        max_length: number of learned positions; longer input without `positions` raises ValueError.
        use_bias: whether the projection has a bias.
        kernel_initializer: initializer of the projection.
        embeddings_initializer: initializer of learned positions; default normal with standard deviation 0.02.

    Call arguments:
        inputs: float (B, T, F).
        mask: bool (B, T), True at real vectors. Keras fills it from the layer before, such as `keras.layers.Masking`.
        positions: int (T,) or (B, T); default 0, 1, 2, ... over the real vectors.

    Returns:
        (B, T, D).

    Raises:
        ValueError: an unknown `position_encoding`, learned positions without `max_length`, input longer than
            `max_length`, `positions` with position_encoding=None.

    Reference:
        [wav2vec 2.0](https://arxiv.org/abs/2006.11477) for the projection of audio frames;
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.5, for the positions.

    Example:

    >>> layer = txf.layers.FeatureEmbedding(dim=32)
    >>> layer(keras.random.normal((2, 7, 12))).shape
    (2, 7, 32)
    """

    weight_splits = {"projection": "whole"}

    def __init__(
        self,
        dim: int,
        position_encoding: str | None = "sinusoidal",
        max_length: int | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        embeddings_initializer: Any = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.dim = checks.size("dim", dim)
        self.position_encoding = checks.one_of("position_encoding", position_encoding, (*ENCODINGS, None))
        self.max_length = checks.optional(checks.size, "max_length", max_length)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.embeddings_initializer = get_initializer("embeddings_initializer", embeddings_initializer)
        self.supports_masking = True
        self.position_layer = make_position_layer(self)

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                f"`inputs` must have shape (batch, length, features); received shape {tuple(inputs_shape)}."
            )
        self.projection = make_projection(self, "projection", self.dim, inputs_shape)
        if self.position_layer is not None:
            self.position_layer.build(inputs_shape[:-1])

    def compute_output_spec(self, inputs, mask=None, positions=None):
        self._check_call(inputs, positions)
        checks.padding_mask(mask, inputs)
        if positions is not None:
            checks.positions(positions, *inputs.shape[:2])
        return keras.KerasTensor(self.projection(inputs).shape, self.compute_dtype)

    def _check_call(self, inputs, positions):
        checks.rank("inputs", inputs, (3, "(batch, length, features)"))
        if positions is None:
            check_length(inputs, self.max_length)
        elif self.position_layer is None:
            raise ValueError("`positions` was passed, but position_encoding=None: it would not be used.")

    def call(self, inputs, mask=None, positions=None):
        self._check_call(inputs, positions)
        x = self.projection(inputs if mask is None else zero_padding(inputs, mask))
        if self.position_layer is None:
            return x
        return add_positions(self.position_layer, x, mask, positions)


def make_position_layer(layer):
    """The position layer of a layer that embeds vectors, or None if its `position_encoding` is None."""
    if layer.position_encoding is None:
        return None
    return PositionalEmbedding(
        None,
        layer.dim,
        layer.position_encoding,
        layer.max_length,
        embeddings_initializer=layer.embeddings_initializer,
        dtype=layer.dtype_policy,
        name="position",
    )


def add_positions(position_layer, x, mask, positions=None):
    """Adds positions to x (B, T, D). Default positions count the vectors where the mask (B, T) is True."""
    # The mask serves as ids: a PositionalEmbedding counts the ids that are not its `pad_id`, 0.
    ids = ops.ones(ops.shape(x)[:2], "int32") if mask is None else ops.cast(mask, "int32")
    return x + (position_layer(ids) if positions is None else position_layer(ids, positions=positions))


def zero_padding(inputs, mask):
    """Replaces the vectors (B, T, F) at padding by zeros, since they may be NaN; checks the mask (B, T)."""
    mask = checks.dense_tensor("mask", mask)
    checks.padding_mask(mask, inputs)
    return ops.where(ops.expand_dims(ops.cast(mask, "bool"), -1), inputs, 0)


@register
class MaskedVectors(keras.layers.Identity, Layer):
    """Marks an input whose Keras mask the model reads. Callers may also pass the mask as `{input}_mask` in a dict.

    The mask is not an input of the graph. With a second input the model would not work where Keras passes one tensor,
    such as in a `Sequential` model.

    Call arguments:
        inputs: float (B, T, F).

    Returns:
        The inputs.
    """


def masks_of_inputs(model):
    """Names of masks and of their inputs in a functional model, such as `features_mask` -> `features`."""
    return {
        f"{name}_mask": name
        for name, tensor in inputs_by_name(model).items()
        if any(isinstance(layer, MaskedVectors) for layer in layers_called_on(model, tensor))
    }


@register
class AttachMask(Layer):
    """Sets a second input as the mask of a tensor.

    Call arguments:
        inputs: a tensor (B, T, ...), and bool (B, T) or None, in a list.

    Returns:
        The tensor.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def check_argument(self, name, value):
        return value  # `inputs` is a list of tensors

    def call(self, inputs):
        return ops.copy(inputs[0])  # without the copy Keras would keep the mask of the input tensor

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs[0].shape, inputs[0].dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[1]
