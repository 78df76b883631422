"""Layers for the first and the last tokens of rows: start tokens, positions, shifted rows, masks after end tokens."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.features import AttachMask
from keras_txf.layers.serialization import register
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
