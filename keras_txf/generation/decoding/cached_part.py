"""CachedPart: the call of a layer that mixes positions, which reads a prompt and a step with a `Cache`.

Legend: see `layout`.
"""

import keras
from keras import ops

from keras_txf.backend.flat_graph import call_operation, symbols_in, with_values
from keras_txf.backend.functional_graph import drop_mask, mask_of, set_mask
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.keras_layers import KERAS_ATTENTION, read_attention, read_hub_block
from keras_txf.generation.decoding.layout import move_slots
from keras_txf.generation.decoding.parts import Part, arguments_of
from keras_txf.layers.base import call_parameters
from keras_txf.layers.blocks import DecoderBlock, EncoderBlock
from keras_txf.layers.cache_slots import cache_slots
from keras_txf.layers.caches import Cache
from keras_txf.ops.masks import combine_masks
from keras_txf.ops.tensors import swap_heads

CONTEXT = "context_"  # prefix of the names of the second cache in a memory with two caches


class CachedPart(Part):
    """A call of a layer that mixes positions. The layer takes `cache`, `context_cache` or both, or is a Keras layer.

    Args:
        new_context: whether the layer attends to a context that is made of the new tokens.
        read: function of the layer, the arguments of its call and a `Cache` that returns the outputs of a Keras layer;
            None if the layer takes the cache itself.
    """

    reads_positions = True

    def __init__(self, call, name, prefix, new_context=False, read=None):
        super().__init__(call, name, prefix)
        self.layer, self.new_context, self.read = call.operation, new_context, read
        self.is_known = read not in (None, read_hub_block)
        self.arguments = arguments_of(call)
        self.first, self.context = next(iter(self.arguments)), None if read else self.arguments.get("context")
        self.has_positions = self.arguments.get("positions") is not None
        self.attends_to_itself = read is not None or attends_to_itself(self.layer)
        self.window = window_of(self.layer)
        reader = self.layer.attention if isinstance(self.layer, (EncoderBlock, DecoderBlock)) else self.layer
        self.takes_mask = not {"mask", f"{self.first}_mask"}.isdisjoint(call_parameters(type(reader)))
        self.kind = Cache  # of the layer's own tokens
        self.of_prompts = ("initial_state",) if read else ("context", "context_mask")  # no step reads these arguments
        if new_context:
            self.of_prompts = ()

    @property
    def constants(self):
        return symbols_in([x for name, x in self.arguments.items() if name not in self.of_prompts])

    def slots(self, columns, width, tokens=1):
        axes = {}
        if self.attends_to_itself:
            slots = cache_slots(self.window, width, columns, tokens) if self.kind.keeps_all else self.kind.slot_count()
            axes = {**dict.fromkeys(self.kind.names(), (2, slots)), "mask": (1, columns)}
        if self.new_context:
            slots = columns if self.kind.keeps_all else self.kind.slot_count()
            axes |= dict.fromkeys([CONTEXT + name for name in self.kind.names()], (2, slots))
            axes[CONTEXT + "mask"] = (1, columns)
        return axes

    def move(self, memory, shift, last, columns, width, tokens):
        moved = dict(memory)
        for name, (axis, slots) in self.slots(columns, width, tokens).items():
            if name in memory:
                is_ring = self.window is not None and name in self.kind.names()
                moved[name] = move_slots(memory[name], axis, slots, shift, last, is_ring)
        return moved

    def run(self, values, layout, memory, known):
        skipped = () if layout.is_prompt else self.of_prompts
        arguments = with_values({k: v for k, v in self.arguments.items() if k not in skipped}, values)
        inputs, mask = arguments[self.first], arguments.pop("mask", None)
        passed_on = mask_of(inputs) if mask is None else mask
        mask = passed_on if self.takes_mask else None
        context_mask = arguments.pop("context_mask", None)
        arguments.pop(f"{self.first}_mask", None)
        caches, cache, context_cache = {}, None, None
        if self.new_context:
            context_cache = self._cache_of_new_context(arguments["context"], context_mask, layout, memory)
        elif self.context is not None:
            if layout.is_prompt:
                self._project(arguments.pop("context"), context_mask, known)
            context_cache = _context_cache(known)
        if context_cache is not None:
            caches["context_cache" if self.attends_to_itself else "cache"] = context_cache
        if self.attends_to_itself:
            allowed = None if layout.owns(mask) else mask
            masked = {read_attention: arguments.values(), read_hub_block: [inputs]}.get(self.read, ())
            if not all(layout.owns(mask_of(x)) for x in masked if ops.is_tensor(x)):
                raise ValueError(
                    f"`model` must have no masks by hand before its layer {short_repr(self.layer.name)}: in this "
                    "attention a masked token attends to later tokens. `txf.layers.MultiHeadSelfAttention` decodes."
                )
            stored = {name: x for name, x in memory.items() if not (self.new_context and name.startswith(CONTEXT))}
            caches["cache"] = cache = layout.cache(stored, self.window, self.prefix, allowed, self.kind)
            memory.update(stored)
        outputs = self._call(arguments, inputs, caches)
        if cache is not None:
            self._remember(cache, memory)
        if self.new_context:
            self._remember(context_cache, memory, CONTEXT)
        values.update(zip(self.call.outputs, outputs))
        # As Keras does after a call with the mask.
        if passed_on is not None and getattr(self.layer, "supports_masking", False):
            for x, mask in zip(outputs, keras.tree.flatten(self.layer.compute_mask(inputs, passed_on))):
                set_mask(x, mask)

    def _call(self, arguments, inputs, caches):
        of_tokens = arguments.values() if self.read is read_attention else [inputs]
        if self.new_context:
            of_tokens = [inputs, arguments["context"]]
        masked = {id(x): (x, mask_of(x)) for x in of_tokens if ops.is_tensor(x)}
        for x, _ in masked.values():
            drop_mask(x)
        if self.read is not None:
            outputs = [self.read(self.layer, arguments, caches["cache"])]
        else:
            outputs = call_operation(self.layer, (), {**arguments, **caches})
        for x, mask in masked.values():  # other layers read the same tensor
            set_mask(x, mask)
        return outputs

    def _remember(self, cache, memory, prefix=""):
        if not cache.stored and not cache.new_states:
            raise ValueError(
                f"{self.layer.name!s}: a layer whose `call` takes `cache` must call `cache.update(key, value)` or "
                "`cache.write_state(name, state)`."
            )
        memory.update(cache.new_states)
        if not cache.stored:
            memory.pop(prefix + "mask", None)
        memory.update({prefix + name: x for name, x in cache.stored.items()})

    def _project(self, context, mask, known):
        mask = mask_of(context) if mask is None else mask
        key, value = (swap_heads(x) for x in self.layer.project_context(context))
        known.update(context_key=key, context_value=value)
        if mask is not None:
            known["context_mask"] = mask

    def _cache_of_new_context(self, context, mask, layout, memory):
        """The `Cache` of a context that is made of the new tokens."""
        mask = mask_of(context) if mask is None else mask
        reader = getattr(self.layer, "cross_attention_layer", self.layer)
        allowed = None if layout.owns(mask) or "context_mask" not in call_parameters(type(reader)) else mask
        stored = {name.removeprefix(CONTEXT): x for name, x in memory.items() if name.startswith(CONTEXT)}
        cache = layout.cache(stored, None, self.prefix, allowed, self.kind)
        memory.update({CONTEXT + name: x for name, x in stored.items()})
        return cache


def _context_cache(known):
    mask = known.get("context_mask")
    return Cache(
        combine_masks(None, None, key_padding=mask),
        stored={"key": known["context_key"], "value": known["context_value"]},
        mask=mask,
    )


def attends_to_itself(layer):
    """Whether the layer's `cache` holds its own tokens. With `context` and no `context_cache` it holds the context."""
    parameters = call_parameters(type(layer))
    return "context" not in parameters or "context_cache" in parameters


def window_of(layer):
    """The window of an attention layer, or of the attention within a block."""
    if type(layer) in KERAS_ATTENTION:
        return layer.get_config().get("sliding_window")
    return getattr(getattr(layer, "attention", layer), "window", None)
