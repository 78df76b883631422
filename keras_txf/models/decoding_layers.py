"""Layers that decoding adds to the graph of a model.

Legend: B batch, P prompt length, L columns, W width.
"""

import keras
from keras import ops

from keras_txf.layers.cached_layers import DecodingLayer
from keras_txf.layers.serialization import register
from keras_txf.ops.masks import padding_positions
from keras_txf.ops.numbers import at_least


@register
class NewPositions(keras.layers.Layer):
    """Positions of new tokens among the real ones of their row.

    Args:
        step: whether the tokens are those of a step.
        prefix: the number of vectors before the tokens of each row, which are not counted.

    Call arguments:
        ids: int (B, P) of a prompt, or (B, W) of a step.
        attention_mask: bool (B, L), True at the real tokens; of a step up to this one, (B, W, L) for W above one.

    Returns:
        int (B, P) or (B, W).
    """

    def __init__(self, step=False, prefix=0, **kwargs):
        super().__init__(**kwargs)
        self.step, self.prefix = step, prefix

    def call(self, ids, attention_mask):
        if not self.step:
            return at_least(padding_positions(attention_mask[:, : ops.shape(ids)[1]]) - self.prefix, 0)
        counts = ops.sum(ops.cast(attention_mask, "int32"), axis=-1, keepdims=len(attention_mask.shape) == 2)
        return at_least(counts - 1 - self.prefix, 0)

    def get_config(self):
        return {**super().get_config(), "step": self.step, "prefix": self.prefix}


@register
class LastColumn(DecodingLayer):
    """The last column of a prompt: (B, P, ...) -> (B, 1, ...), or (B, ...) with `keepdims=False`; without a mask."""

    def __init__(self, keepdims=True, **kwargs):
        super().__init__(**kwargs)
        self.keepdims = keepdims

    def call(self, inputs):
        return inputs[:, -1:] if self.keepdims else inputs[:, -1]

    def get_config(self):
        return {**super().get_config(), "keepdims": self.keepdims}
