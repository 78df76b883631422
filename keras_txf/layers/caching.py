"""A decoder block that reads a sequence in parts, and keeps the keys and values of what it has read.

The sequences of a batch stand side by side in L columns, padded on the left: all rows write the same
column at once. A cache has C slots. Column c lies in slot c mod C: with a window C need not exceed it.

Legend: B batch, P prompt length, L columns, C slots, S context length, D model dim, K key-value heads,
H head dim.
"""

import keras
from keras import ops

from keras_txf.layers.attention import attend, project_context, project_query
from keras_txf.layers.blocks import decode_block
from keras_txf.layers.options import register
from keras_txf.ops.masks import combine_masks


@register
class Prefill(keras.layers.Layer):
    """Reads a prompt through a `DecoderBlock`, and returns what the steps after it need.

    Args:
        block: a built `DecoderBlock`. The weights are shared with it.

    Call arguments:
        inputs: float (B, P, D), the first P columns.
        visible: bool (B, L), True at the real tokens of the prompt; all columns that will be.
        context: float (B, S, any width), where the block has cross-attention.
        context_mask: bool (B, S).

    Returns:
        The block's output (B, P, D), then keys and values (B, K, C, H) and, with a context, its keys
        and values (B, K, S, H).
    """

    def __init__(self, block, **kwargs):
        super().__init__(**kwargs)
        self.block = block
        self.supports_masking = True  # the mask that Keras keeps on the embedding is `visible`

    def call(self, inputs, visible, context=None, context_mask=None):
        attention = self.block.attention
        columns = ops.arange(ops.shape(inputs)[1])
        positions = _positions(visible, columns)
        own = combine_masks(columns, columns, True, attention.window, visible[:, : ops.shape(inputs)[1]])
        slots = _columns_in_slots(columns[-1], _slots(attention.window, ops.shape(visible)[1]))
        cache = []

        def attend_to_self(x):
            query, key, value = attention.project(x, positions)
            for tensor in (key, value):
                cache.append(_heads_first(ops.take(tensor, ops.maximum(slots, 0), axis=1)))
            return attend(attention, query, key, value, own, _bias(attention, positions, positions))

        def attend_to_context(x):
            layer = self.block.cross_attention_layer
            cache.extend(map(_heads_first, project_context(layer, context)))
            return _attend_to_context(layer, x, *cache[2:], context_mask)

        x, *_ = decode_block(self.block, inputs, attend_to_self, attend_to_context)
        return x, *cache

    def compute_mask(self, *arguments, **masks):
        return None

    def get_config(self):
        return {**super().get_config(), "block": keras.saving.serialize_keras_object(self.block)}


@register
class Step(keras.layers.Layer):
    """Reads one more column through a `DecoderBlock`, and writes its keys and values into the cache.

    Args:
        block: a built `DecoderBlock`. The weights are shared with it.

    Call arguments:
        inputs: float (B, 1, D).
        visible: bool (B, L), True at the real tokens up to this column.
        index: int (1,), the column.
        key, value: (B, K, C, H), the cache.
        context_key, context_value: (B, K, S, H), where the block has cross-attention.
        context_mask: bool (B, S).

    Returns:
        The block's output (B, 1, D), and the cache with the new column.
    """

    def __init__(self, block, **kwargs):
        super().__init__(**kwargs)
        self.block = block
        self.supports_masking = True  # the mask that Keras keeps on the embedding is `visible`

    def call(self, inputs, visible, index, key, value, context_key=None, context_value=None, context_mask=None):
        attention = self.block.attention
        slots = ops.shape(key)[2]
        columns = _columns_in_slots(index[0], slots)
        seen = ops.take(visible, ops.maximum(columns, 0), axis=1)
        allowed = combine_masks(index, columns, True, attention.window, ops.logical_and(seen, columns >= 0))
        place = ops.mod(index[0], slots)
        cache = []

        def attend_to_self(x):
            position = _positions(visible, index)
            query, *new = attention.project(x, position)
            for old, column in zip((key, value), new, strict=True):
                cache.append(ops.slice_update(old, (0, 0, place, 0), _heads_first(column)))
            bias = _bias(attention, position, _positions(visible, columns))
            return attend(attention, query, *cache, allowed, bias, heads_first=True)

        def attend_to_context(x):
            layer = self.block.cross_attention_layer
            return _attend_to_context(layer, x, context_key, context_value, context_mask)

        x, *_ = decode_block(self.block, inputs, attend_to_self, attend_to_context)
        return x, *cache

    def compute_mask(self, *arguments, **masks):
        return None

    def get_config(self):
        return {**super().get_config(), "block": keras.saving.serialize_keras_object(self.block)}


def _attend_to_context(layer, x, key, value, context_mask):
    mask = combine_masks(None, None, key_padding=context_mask)
    return attend(layer, project_query(layer, x), key, value, mask, zero_empty_rows=True, heads_first=True)


def _bias(attention, query_positions, key_positions):
    layer = attention.position_layer
    return None if layer is None else layer.bias(query_positions, key_positions)


def _positions(visible, columns):
    """(B, number of columns): each row counts from its first real token."""
    start = ops.cast(ops.argmax(ops.cast(visible, "int32"), axis=1), "int32")
    return ops.maximum(columns[None] - start[:, None], 0)


def _slots(window, columns):
    if window is None:
        return columns
    if isinstance(columns, int):
        return min(window, columns)
    return ops.minimum(window, columns) if ops.is_tensor(columns) else window  # unknown while JAX infers shapes


def _columns_in_slots(last, slots):
    """The latest column up to `last` that each slot holds, (C,); negative where it holds none."""
    return last - ops.mod(last - ops.arange(slots), slots)


def _heads_first(x):
    return ops.transpose(x, (0, 2, 1, 3))
