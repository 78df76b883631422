"""Layers for the beginning and the end of rows: start tokens, learned vectors, shifted rows, masks after end tokens."""

from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.features import AttachMask
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import get_initializer, register
from keras_txf.ops.masks import padding_positions, real_tokens


@register
class StartPositions(Layer):
    """Positions (B, T), int32, of ids (B, T) whose start token is also the padding token.

    Args:
        pad_id: the padding token. The first column is never padding.
    """

    def __init__(self, pad_id, **kwargs):
        super().__init__(**kwargs)
        self.pad_id = pad_id

    def call(self, ids):
        return padding_positions(_real(ids, self.pad_id))


@register
class Start(Layer):
    """Declares the start token of rows, and sets the mask of embedded rows, where a start token is not padding.

    Args:
        start_id: the first token of every row.
        pad_id: the padding token, or None: no mask.

    Call arguments:
        inputs: the embedded rows (B, T, D), and their ids (B, T), in a list.

    Returns:
        (B, T, D), unchanged.
    """

    def __init__(self, start_id, pad_id, **kwargs):
        super().__init__(**kwargs)
        self.start_id, self.pad_id = start_id, pad_id
        self.supports_masking = True

    def check_argument(self, name, value):
        return value  # `inputs` is a list of tensors

    def call(self, inputs):
        return ops.copy(inputs[0])  # without the copy Keras would keep the mask of the input tensor

    def compute_mask(self, inputs, previous_mask=None):
        if self.pad_id is None:
            return None
        return _real(inputs[1], self.pad_id) if self.is_padding else inputs[1] != self.pad_id

    @property
    def is_padding(self):
        """Whether the start token is the padding token."""
        return self.start_id == self.pad_id


@register
class ShiftRight(Layer):
    """Makes the ids of a decoder that reads the text of the encoder: a start token, then all tokens but the last.

    Args:
        start_id: the first token of each row; None: the last real token of the row (mBART).
        pad_id: the padding token, or None.

    Call arguments:
        ids: int (B, T).

    Returns:
        int (B, T).
    """

    def __init__(self, start_id, pad_id, **kwargs):
        super().__init__(**kwargs)
        self.start_id, self.pad_id = start_id, pad_id

    def call(self, ids):
        if self.start_id is not None:
            first = ops.full_like(ids[:, :1], self.start_id)
        else:
            real = real_tokens(ids, self.pad_id)
            count = ops.cumsum(ops.cast(real, "int32"), axis=1)
            is_last = ops.logical_and(real, ops.equal(count, count[:, -1:]))
            first = ops.sum(ops.where(is_last, ids, 0), axis=1, keepdims=True)
        return ops.concatenate([ops.cast(first, ids.dtype), ids[:, :-1]], axis=1)

    def compute_output_spec(self, ids):
        return keras.KerasTensor(ids.shape, ids.dtype)


def _real(ids, pad_id):
    first = ops.cumsum(ops.ones_like(ids), axis=1) == 1  # Keras asks for masks before lengths are known
    return ops.logical_or(ids != pad_id, first)


@register
class MaskAfterEnd(AttachMask):
    """Masks all tokens after the first end token of each text.

    CLIP's tokenizer pads with the end token, so a padding token cannot mark the end of a text. A text without an end
    token keeps all its tokens.

    Args:
        end_id: the end token.

    Call arguments:
        inputs: float (B, T, D), and the token ids, int (B, T), in a list.

    Returns:
        The first of them, with the mask.
    """

    def __init__(self, end_id, **kwargs):
        super().__init__(**kwargs)
        self.end_id = checks.id_below("end_id", end_id)

    def compute_mask(self, inputs, previous_mask=None):
        is_end = ops.cast(ops.equal(inputs[1], self.end_id), "int32")
        before = ops.cumsum(is_end, axis=1) - is_end  # the number of end tokens before each token
        mask = ops.equal(before, 0)
        known = None if previous_mask is None else previous_mask[0]
        return mask if known is None else ops.logical_and(mask, ops.cast(known, "bool"))


@register
class MaskAfterLastEnd(AttachMask):
    """Masks all tokens after the last end token of each text, for `Pooling("last")`.

    Args:
        end_id: the end token, or None. A text without an end token keeps all its real tokens.
        pad_id: the padding token, or None.

    Call arguments:
        inputs: float (B, T, D), and the token ids, int (B, T), in a list.

    Returns:
        The first of them, with the mask.
    """

    def __init__(self, end_id, pad_id, **kwargs):
        super().__init__(**kwargs)
        self.end_id, self.pad_id = end_id, pad_id

    def compute_mask(self, inputs, previous_mask=None):
        ids = inputs[1]
        real = real_tokens(ids, self.pad_id)
        if self.end_id is None:
            return real
        is_end = ops.cast(ops.equal(ids, self.end_id), "int32")
        up_to_end = ops.flip(ops.cumsum(ops.flip(is_end, axis=1), axis=1), axis=1) > 0
        return ops.where(ops.any(up_to_end, axis=1, keepdims=True), up_to_end, real)


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
