"""Masks that say where a text ends: MaskAfterEnd by its first end token, MaskAfterLastEnd by its last one."""

from keras import ops

from keras_txf import checks
from keras_txf.layers.features import AttachMask
from keras_txf.layers.serialization import register
from keras_txf.ops.masks import real_tokens


@register
class MaskAfterEnd(AttachMask):
    """Hides what follows the first end token of each text, whatever it is: it is padding.

    CLIP's tokenizer pads with the end token itself, so no padding token can say where a text ends. A text without end
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
        before = ops.cumsum(is_end, axis=1) - is_end  # how many end tokens stand before each token
        mask = ops.equal(before, 0)
        known = None if previous_mask is None else previous_mask[0]
        return mask if known is None else ops.logical_and(mask, ops.cast(known, "bool"))


@register
class MaskAfterLastEnd(AttachMask):
    """Gives a tensor a mask of the tokens up to the last end token of each text, which `Pooling("last")` then takes.

    Args:
        end_id: the end token, or None. A text without it keeps all its real tokens.
        pad_id: the token of padding, or None.

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
