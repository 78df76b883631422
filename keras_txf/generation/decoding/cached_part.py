"""CachedPart: the call of a layer that mixes positions, which reads a prompt and a step with a `Cache`.

Legend: see `layout`.
"""

import keras
from keras import ops

from keras_txf.backend.functional_graph import call_operation, drop_mask, mask_of, set_mask, symbols_in, with_values
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.keras_layers import KERAS_ATTENTION, read_attention
from keras_txf.generation.decoding.parts import Part
from keras_txf.layers.arguments import call_parameters
from keras_txf.layers.blocks import DecoderBlock, EncoderBlock
from keras_txf.layers.caches import Cache, cache_slots
from keras_txf.ops.heads import swap_heads
from keras_txf.ops.masks import combine_masks


class CachedPart(Part):
    """A call of a layer that mixes positions: it takes a `cache`, a `context_cache` or both, or Keras wrote it.

    Args:
        read: function of the layer, the arguments of its call and a `Cache` that returns the outputs of a layer of
            Keras' own; None: the layer takes the cache itself.
    """

    reads_positions = True

    def __init__(self, call, name, prefix, read=None):
        super().__init__(call, name, prefix)
        self.layer, self.read, self.is_known = call.operation, read, read is not None
        self.arguments = arguments_of(call)
        self.first, self.context = next(iter(self.arguments)), None if read else self.arguments.get("context")
        self.attends_to_itself = read is not None or attends_to_itself(self.layer)
        self.window = window_of(self.layer)
        reader = self.layer.attention if isinstance(self.layer, (EncoderBlock, DecoderBlock)) else self.layer
        self.takes_mask = not {"mask", f"{self.first}_mask"}.isdisjoint(call_parameters(type(reader)))
        self.kind = Cache  # of the layer's own tokens
        self.of_prompts = ("initial_state",) if read else ("context", "context_mask")  # no step reads these arguments

    @property
    def constants(self):
        return symbols_in([x for name, x in self.arguments.items() if name not in self.of_prompts])

    def slots(self, columns, width, tokens=1):
        if not self.attends_to_itself:
            return {}
        slots = cache_slots(self.window, width, columns, tokens) if self.kind.keeps_all else self.kind.slot_count()
        return {**dict.fromkeys(self.kind.names(), (2, slots)), "mask": (1, columns)}

    def run(self, values, layout, memory, known):
        skipped = () if layout.is_prompt else self.of_prompts
        given = with_values({k: v for k, v in self.arguments.items() if k not in skipped}, values)
        inputs, mask = given[self.first], given.pop("mask", None)
        passed_on = mask_of(inputs) if mask is None else mask
        mask = passed_on if self.takes_mask else None
        for name in (f"{self.first}_mask", "context_mask"):
            given.pop(name, None)
        caches, cache = {}, None
        if self.context is not None:
            if layout.is_prompt:
                self._project(given.pop("context"), values, known)
            caches["context_cache" if self.attends_to_itself else "cache"] = _context_cache(known)
        if self.attends_to_itself:
            allowed = None if layout.owns(mask) else mask
            if self.read is read_attention and not all(
                layout.owns(mask_of(x)) for x in given.values() if ops.is_tensor(x)
            ):
                raise ValueError(
                    f"`model` must have no masks by hand before its layer {short_repr(self.layer.name)}: in Keras' own "
                    "attention a token that is masked attends to later ones. `txf.layers.MultiHeadSelfAttention` "
                    "decodes."
                )
            caches["cache"] = cache = layout.cache(memory, self.window, self.prefix, allowed, self.kind)
        outputs = self._call(given, inputs, caches)
        if cache is not None:
            self._remember(cache, memory)
        values.update(zip(self.call.outputs, outputs))
        if passed_on is not None and self.layer.supports_masking:  # as Keras does after a call with the mask
            for x, own in zip(outputs, keras.tree.flatten(self.layer.compute_mask(inputs, passed_on))):
                set_mask(x, own)

    def _call(self, given, inputs, caches):
        if self.read is not None:
            return [self.read(self.layer, given, caches["cache"])]
        drop_mask(inputs)
        return call_operation(self.layer, (), {**given, **caches})

    def _remember(self, cache, memory):
        if not cache.stored and not cache.new_states:
            raise ValueError(
                f"{self.layer.name!s}: a layer whose `call` takes `cache` must call `cache.update(key, value)` or "
                "`cache.write_state(name, state)`."
            )
        memory.update(cache.new_states)
        if not cache.stored:
            memory.pop("mask", None)
        memory.update(cache.stored)

    def _project(self, context, values, known):
        mask = self.arguments.get("context_mask")
        mask = mask_of(context) if mask is None else values[mask]
        key, value = (swap_heads(x) for x in self.layer.project_context(context))
        known.update(context_key=key, context_value=value)
        if mask is not None:
            known["context_mask"] = mask


def _context_cache(known):
    mask = known.get("context_mask")
    return Cache(
        combine_masks(None, None, key_padding=mask),
        stored={"key": known["context_key"], "value": known["context_value"]},
        mask=mask,
    )


def arguments_of(call):
    """The arguments of a call, by their names."""
    return {**dict(zip(call_parameters(type(call.operation)), call.args)), **call.kwargs}


def attends_to_itself(layer):
    """Whether the layer's `cache` holds its own tokens; with `context` and no `context_cache` it holds the context."""
    parameters = call_parameters(type(layer))
    return "context" not in parameters or "context_cache" in parameters


def window_of(layer):
    """The window of an attention layer, or of the attention within a block."""
    if type(layer) in KERAS_ATTENTION:
        return layer.get_config().get("sliding_window")
    return getattr(getattr(layer, "attention", layer), "window", None)
