"""The layers of a decoding graph: masks of the slots of a cache, and layers that are called with a cache.

Legend: see `kv_cache`.
"""

import keras
from keras import ops

from keras_txf.layers.arguments import call_parameters
from keras_txf.layers.kv_cache import SLOT_AXES, KVCache, columns_in_slots, positions_of, prompt_mask, prompt_slots
from keras_txf.layers.serialization import register, revive, serialize_layer
from keras_txf.ops.heads import swap_heads
from keras_txf.ops.masks import combine_masks, window_mask
from keras_txf.ops.numbers import at_least


class DecodingLayer(keras.layers.Layer):
    """The base of the layers in prefill and step models: they take masks as arguments, and pass no Keras mask on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, *arguments, **masks):
        return None


@register
class PromptMask(DecodingLayer):
    """Where the tokens of a prompt may attend, and their positions.

    Args:
        window: of the attention, or None.

    Call arguments:
        inputs: any (B, P, ...).
        attention_mask: bool (B, L), True at the real tokens of the prompt.

    Returns:
        The mask, bool (B, 1, P, P), True where a token may attend, and positions, int (B, P).
    """

    def __init__(self, window=None, **kwargs):
        super().__init__(**kwargs)
        self.window = window

    def call(self, inputs, attention_mask):
        return prompt_mask(attention_mask, ops.shape(inputs)[1], self.window)

    def get_config(self):
        return {**super().get_config(), "window": self.window}


@register
class StepMask(DecodingLayer):
    """Where the tokens of a step may attend, their positions, and those of the keys.

    Args:
        window: of the attention, or None.
        width: how many tokens of each sequence a step reads.

    Call arguments:
        attention_mask: bool (B, L), True at the real tokens up to this step's; for a width above one
            (B, W, L), what each of its tokens may attend to.
        cache_position: int (1,), the first column that the step writes.
        value: (B, K, C, H), of one of the caches.
        prompt_length: int (1,), the columns P of the prompt, for a width above one.

    Returns:
        The mask, bool (B, 1, W, C), positions (B, W), and positions of the keys (B, C).
    """

    def __init__(self, window=None, width=1, **kwargs):
        super().__init__(**kwargs)
        self.window, self.width = window, width

    def call(self, attention_mask, cache_position, value, prompt_length=None):
        if self.width == 1:
            attention_mask = attention_mask[:, None]
        own = cache_position[0] + ops.arange(self.width, dtype="int32")
        columns = ops.arange(ops.shape(value)[2], dtype="int32")
        allowed = attention_mask
        if self.window is not None:
            columns = columns_in_slots(own[-1], ops.shape(value)[2])
            allowed = ops.logical_and(ops.take(attention_mask, at_least(columns, 0), axis=2), columns >= 0)
        steps, key_steps = self._steps(own, prompt_length), self._steps(columns, prompt_length)
        mask = ops.logical_or(allowed, own[:, None] == columns[None])
        if self.window is not None:
            mask = ops.logical_and(mask, window_mask(steps, key_steps, self.window, causal=True))
        real = ops.any(attention_mask, axis=1)
        if self.width > 1:
            # Even the first alternative may not have been chosen: a row without a prompt counts from the prompt's end.
            real = ops.logical_or(real, ops.arange(ops.shape(attention_mask)[2], dtype="int32") >= prompt_length)
        return mask[:, None], positions_of(real, steps), positions_of(real, key_steps)

    def _steps(self, columns, prompt_length):
        """Columns, counted so that the alternatives of a step share one number."""
        if self.width == 1:
            return columns
        return ops.where(columns < prompt_length, columns, prompt_length + (columns - prompt_length) // self.width)

    def get_config(self):
        return {**super().get_config(), "window": self.window, "width": self.width}


@register
class CachedLayer(DecodingLayer):
    """Calls a layer with a cache whose keys and values are tensors of a functional model.

    Args:
        layer: a built layer whose `call` takes `cache`, or `cache` and `context_cache`. The weights are shared with it.
        width: how many tokens of each sequence a step reads.

    Call arguments:
        inputs: float (B, T, any width).
        attention_mask, positions, key_positions: from `PromptMask` or `StepMask`.
        columns: bool (B, L), of a prompt: its columns and those that will follow.
        cache_position: int (1,), the first column that a step writes.
        key, value: the cache, in a step.
        context_key, context_value: from `CachedContext`, where the layer attends to a context.
        context_mask: bool (B, S), True at the real tokens of the context.

    Returns:
        What the layer returns, and the cache (B, K, C, H) with the new tokens: key and value, unless the layer
        attends to a context alone.
    """

    def __init__(self, layer, width=1, **kwargs):
        super().__init__(autocast=False, **kwargs)  # an attention may have another dtype than its block
        self.layer, self.width = revive(layer), width
        self.window = window_of(self.layer)

    def call(
        self,
        inputs,
        attention_mask=None,
        positions=None,
        key_positions=None,
        columns=None,
        cache_position=None,
        key=None,
        value=None,
        context_key=None,
        context_value=None,
        context_mask=None,
    ):
        caches, cache = {}, None
        if context_key is not None:
            mask = combine_masks(None, None, key_padding=context_mask)
            name = "context_cache" if attends_to_itself(self.layer) else "cache"
            caches[name] = KVCache(mask, key=context_key, value=context_value)
        if attends_to_itself(self.layer):
            if key is None:
                slots = prompt_slots(self.window, self.width, columns, ops.shape(inputs)[1])
                cache = KVCache(attention_mask, positions, positions, slots)
            else:
                slot = cache_position[0] if self.window is None else cache_position[0] % ops.shape(value)[2]
                cache = KVCache(attention_mask, positions, key_positions, slot, key, value)
            caches["cache"] = cache
        outputs = self.layer(inputs, **caches)
        if cache is None:
            return outputs
        if cache.key is None:
            raise ValueError(
                f"{self.layer.name!s}: a layer whose `call` takes `cache` must call `cache.update(key, value)`."
            )
        return outputs, cache.key, cache.value

    def compute_output_spec(self, inputs, *args, **kwargs):
        spec = getattr(self.layer, "cache_spec", lambda shape: None)(inputs.shape)
        if spec is not None:  # known without a trace of the layer, which takes a tenth of a second
            shape, *caches = spec
            dtype = attention_of(self.layer).compute_dtype
            caches = [keras.KerasTensor((None, heads, None, width), dtype) for heads, width in caches]
            return keras.KerasTensor(shape, self.compute_dtype), *caches
        if (
            kwargs.get("key") is not None
        ):  # of a step: a cache of unknown length may be shorter than what is written, says JAX
            kwargs = {name: _with_slots(x, 64 * self.width, SLOT_AXES.get(name)) for name, x in kwargs.items()}
        specs = super().compute_output_spec(inputs, *args, **kwargs)
        if not attends_to_itself(self.layer):
            return specs
        outputs, *caches = specs  # of which the number of slots follows from L alone
        return outputs, *(keras.KerasTensor((None, x.shape[1], None, *x.shape[3:]), x.dtype) for x in caches)

    def get_config(self):
        return {**super().get_config(), "layer": serialize_layer(self.layer), "width": self.width}


@register
class CachedContext(DecodingLayer):
    """The keys and values of a context, (B, K, S, H), for the steps that attend to it.

    Args:
        layer: a built layer with a method `project_context`. The weights are shared with it.

    Call arguments:
        context: float (B, S, any width).
    """

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = revive(layer)

    def call(self, context):
        return tuple(swap_heads(x) for x in self.layer.project_context(context))

    def get_config(self):
        return {**super().get_config(), "layer": serialize_layer(self.layer)}


def _with_slots(symbol, slots, axis):
    """The symbol with a known number of slots."""
    if axis is None:
        return symbol
    return keras.KerasTensor((*symbol.shape[:axis], slots, *symbol.shape[axis + 1 :]), symbol.dtype)


def attends_to_itself(layer):
    """Whether the layer's `cache` holds its own tokens; with `context` and no `context_cache` it holds the context."""
    parameters = call_parameters(type(layer))
    return "context" not in parameters or "context_cache" in parameters


def window_of(layer):
    """The window of an attention layer, or of the attention within a block."""
    return getattr(attention_of(layer), "window", None)


def attention_of(layer):
    """The attention within a block, or the layer itself."""
    return getattr(layer, "attention", layer)
