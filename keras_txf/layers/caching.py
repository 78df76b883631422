"""A decoder block that reads a sequence in parts, and keeps the keys and values of what it has read.

The sequences of a batch stand side by side in L columns, padded on the left: all rows write the same
columns at once. A step reads W tokens of each sequence: one, or several that are alternatives to each
other, such as the beams of a search, and take one place in the sequence. After a prompt of P columns the
tokens of the n-th step lie in columns P + n W, ..., P + n W + W - 1.

A cache has C slots, and holds the heads of a batch one after the other, (B · K, C, H): so XLA updates it
in place and multiplies it without a copy. For a width above one the keys lie as (B · K, H, C), as several
queries read them faster. Column c lies in slot c mod C: with a window C need not exceed the window's W
tokens a place.

Legend: B batch, P prompt length, L columns, W width, C slots, S context length, D model dim, K key-value
heads, H head dim.
"""

import keras
from keras import ops

from keras_txf.layers.attention import attend, project_context, project_query
from keras_txf.layers.blocks import decode_block
from keras_txf.layers.options import register, revive
from keras_txf.ops.masks import combine_masks


class Part(keras.layers.Layer):
    """What the four layers here have in common: masks are arguments, and none is left to Keras."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, *arguments, **masks):
        return None


@register
class PromptPlaces(Part):
    """What the blocks with one window need to know of a prompt.

    Args:
        window: of their attention, or None.

    Call arguments:
        ids: int (B, P).
        visible: bool (B, L), True at the real tokens of the prompt; all columns that will be.

    Returns:
        The mask, bool (B, 1, P, P), True where a token may attend, and positions (B, P).
    """

    def __init__(self, window=None, **kwargs):
        super().__init__(**kwargs)
        self.window = window

    def call(self, ids, visible):
        columns = ops.arange(ops.shape(ids)[1])
        mask = combine_masks(columns, columns, True, self.window, visible[:, : ops.shape(ids)[1]])
        return mask, _positions(visible, columns)

    def get_config(self):
        return {**super().get_config(), "window": self.window}


@register
class StepPlaces(Part):
    """What the blocks with one window need to know of a step.

    Args:
        window: of their attention, or None.
        width: how many tokens of each sequence a step reads.

    Call arguments:
        visible: bool (B, L), True at the real tokens up to this step's; for a width above one
            (B, W, L), what each of its tokens may see.
        index: int (1,), the first column that the step writes.
        value: (B · K, C, H), the cache of one of the blocks.
        prompt_length: int (1,), the columns P of the prompt, for a width above one.

    Returns:
        The mask, bool (B, 1, W, C), positions (B, W), and positions of the slots (B, C).
    """

    def __init__(self, window=None, width=1, **kwargs):
        super().__init__(**kwargs)
        self.window, self.width = window, width

    def call(self, visible, index, value, prompt_length=None):
        if self.width == 1:
            visible = visible[:, None]
        own, columns, seen_slots = index[0] + ops.arange(self.width), ops.arange(ops.shape(value)[1]), visible
        if self.window is not None:
            columns = _columns_in_slots(own[-1], ops.shape(value)[1])
            seen_slots = ops.logical_and(ops.take(visible, ops.maximum(columns, 0), axis=2), columns >= 0)
        places, slot_places = self._places(own, prompt_length), self._places(columns, prompt_length)
        mask = ops.logical_or(seen_slots, own[:, None] == columns[None])
        if self.window is not None:
            mask = ops.logical_and(mask, places[:, None] - slot_places[None] < self.window)
        seen = ops.any(visible, axis=1)
        if self.width > 1:  # of alternatives not even the first may have been chosen: a row without a prompt counts from its end
            seen = ops.logical_or(seen, ops.arange(ops.shape(visible)[2]) >= prompt_length)
        return mask[:, None], _positions(seen, places), _positions(seen, slot_places)

    def _places(self, columns, prompt_length):
        """The place in its sequence of each column: the alternatives of a step share one."""
        if self.width == 1:
            return columns
        return ops.where(
            columns < prompt_length, columns, prompt_length + (columns - prompt_length) // self.width
        )

    def get_config(self):
        return {**super().get_config(), "window": self.window, "width": self.width}


@register
class Prefill(Part):
    """Reads a prompt through a `DecoderBlock`, and returns what the steps after it need.

    Args:
        block: a built `DecoderBlock`. The weights are shared with it.
        width: how many tokens of each sequence the steps will read.

    Call arguments:
        inputs: float (B, P, D), the first P columns.
        visible: bool (B, L), as for `PromptPlaces`.
        mask, positions: from `PromptPlaces`.
        context: float (B, S, any width), where the block has cross-attention.
        context_mask: bool (B, S).

    Returns:
        The block's output (B, P, D), then keys and values (B · K, C, H) and, with a context, its keys
        and values (B · K, S, H); for a width above one the keys are (B · K, H, C) and (B · K, H, S).
    """

    def __init__(self, block, width=1, **kwargs):
        super().__init__(**kwargs)
        self.block, self.width = revive(block), width

    def call(self, inputs, visible, mask, positions, context=None, context_mask=None):
        attention = self.block.attention
        slots = cache_slots(self.block, self.width, ops.shape(visible)[1])
        slots = _columns_in_slots(ops.shape(inputs)[1] - 1, slots)
        cache = []

        def attend_to_self(x):
            query, key, value = attention.project(x, positions)
            for tensor, turned in ((key, self.width > 1), (value, False)):
                cache.append(_as_cache(ops.take(tensor, ops.maximum(slots, 0), axis=1), turned))
            return attend(attention, query, key, value, mask, _bias(attention, positions, positions))

        def attend_to_context(x):
            layer = self.block.cross_attention_layer
            key, value = project_context(layer, context)
            cache.extend([_as_cache(key, self.width > 1), _as_cache(value)])
            return _attend_to_context(layer, x, _as_cache(key), cache[-1], context_mask)

        x, *_ = decode_block(self.block, inputs, attend_to_self, attend_to_context)
        return x, *cache

    def compute_output_spec(self, inputs, visible, mask, positions, context=None, context_mask=None):
        # Said here, as Keras would trace each block to find it out.
        shapes = cache_shapes(self.block, self.width)
        specs = [keras.KerasTensor((None, *shape), self.compute_dtype) for shape in shapes]
        return keras.KerasTensor(inputs.shape, self.compute_dtype), *specs

    def get_config(self):
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block, "width": self.width}


@register
class Step(Part):
    """Reads the next W tokens through a `DecoderBlock`, and writes their keys and values into the cache.

    Args:
        block: a built `DecoderBlock`. The weights are shared with it.

    Call arguments:
        inputs: float (B, W, D).
        index: int (1,), the first column that is written.
        mask, positions, slot_positions: from `StepPlaces`.
        key, value: the cache, as from `Prefill`.
        context_key, context_value: the same, where the block has cross-attention.
        context_mask: bool (B, S).

    Returns:
        The block's output (B, W, D), and the cache with the new columns.
    """

    def __init__(self, block, **kwargs):
        super().__init__(**kwargs)
        self.block = revive(block)

    def call(
        self, inputs, index, mask, positions, slot_positions, key, value,
        context_key=None, context_value=None, context_mask=None,
    ):
        attention = self.block.attention
        slot = index[0] if attention.window is None else ops.mod(index[0], ops.shape(value)[1])
        turned = inputs.shape[1] > 1
        cache = []

        def attend_to_self(x):
            query, new_key, new_value = attention.project(x, positions)
            place = (0, 0, slot) if turned else (0, slot, 0)
            cache.append(ops.slice_update(key, place, _as_cache(new_key, turned)))
            cache.append(ops.slice_update(value, (0, slot, 0), _as_cache(new_value)))
            keys = ops.swapaxes(cache[0], 1, 2) if turned else cache[0]
            bias = _bias(attention, positions, slot_positions)
            return attend(attention, query, keys, cache[1], mask, bias, cached=True)

        def attend_to_context(x):
            layer = self.block.cross_attention_layer
            keys = ops.swapaxes(context_key, 1, 2) if turned else context_key
            return _attend_to_context(layer, x, keys, context_value, context_mask)

        x, *_ = decode_block(self.block, inputs, attend_to_self, attend_to_context)
        return x, *cache

    def compute_output_spec(self, inputs, index, mask, positions, slot_positions, key, value, *context, **contexts):
        # Said here, as B and B · K are both unknown, and where Keras infers shapes they would not fit.
        output = keras.KerasTensor(inputs.shape, self.compute_dtype)
        return output, *(keras.KerasTensor(cache.shape, cache.dtype) for cache in (key, value))

    def get_config(self):
        return {**super().get_config(), "block": keras.saving.serialize_keras_object(self.block)}


def cache_shapes(block, width):
    """Of the keys and values, and those of the context, without the first axis."""
    shapes = []
    for layer in [block.attention, block.cross_attention_layer] if block.cross_attention else [block.attention]:
        head_dim = layer.key.units // (layer.num_key_value_heads or layer.num_heads)
        shapes += [(head_dim, None) if width > 1 else (None, head_dim), (None, head_dim)]
    return shapes


def cache_slots(block, width, columns):
    """How many the cache of a block has."""
    if block.attention.window is None:
        return columns
    window = block.attention.window * width
    if isinstance(columns, int):
        return min(window, columns)
    return ops.minimum(window, columns) if ops.is_tensor(columns) else window  # unknown while JAX infers shapes


def _attend_to_context(layer, x, key, value, context_mask):
    mask = combine_masks(None, None, key_padding=context_mask)
    return attend(layer, project_query(layer, x), key, value, mask, zero_empty_rows=True, cached=True)


def _bias(attention, query_positions, key_positions):
    layer = attention.position_layer
    return None if layer is None else layer.bias(query_positions, key_positions)


def _positions(visible, places):
    """(B, number of places): each row counts from its first real token."""
    start = ops.cast(ops.argmax(ops.cast(visible, "int32"), axis=1), "int32")
    return ops.maximum(places[None] - start[:, None], 0)


def _columns_in_slots(last, slots):
    """The latest column up to `last` that each slot holds, (C,); negative where it holds none."""
    # What `mod` takes is never negative: ONNX rounds the other way.
    return last - ops.mod(last + slots - ops.arange(slots), slots)


def _as_cache(x, turned=False):
    """(B, any length, K, H) -> (B · K, any length, H), or `turned` (B · K, H, any length)."""
    x = ops.transpose(x, (0, 2, 3, 1) if turned else (0, 2, 1, 3))
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))
