"""Parts: the calls of a graph on new tokens, and how each reads a prompt and a step.

Legend: see `layout`.
"""

import keras
from keras import ops

from keras_txf.backend.functional_graph import (
    call_operation,
    concatenation_axis,
    drop_mask,
    mask_of,
    sequence_start,
    set_mask,
    symbols_in,
    with_values,
)
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.keras_layers import KERAS_ATTENTION, keras_reader, read_attention
from keras_txf.generation.decoding.layout import move_slots
from keras_txf.layers.arguments import call_parameters
from keras_txf.layers.blocks import DecoderBlock, EncoderBlock
from keras_txf.layers.caches import Cache, cache_slots
from keras_txf.layers.decoder_start import Start, StartPositions
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.soft_prompt import SoftPrompt
from keras_txf.ops.heads import swap_heads
from keras_txf.ops.masks import combine_masks

EMBEDDINGS = (PositionalEmbedding, keras.layers.Embedding, Start)  # whose masks say which tokens are padding
REFUSED = ("segment_ids", "context_attention_mask", "context_segment_ids")
OF_ALL_POSITIONS = ("attention_mask", "attention_bias", "prefix_length")


class Part:
    """A call that treats each position alone: it runs as the graph says.

    Args:
        call: a `GraphCall`.
        name: of its own among the parts.
        prefix: the number of vectors before the tokens in the outputs.
    """

    reads_positions = False
    is_known = False  # whether no trial is needed

    def __init__(self, call, name, prefix):
        self.call, self.name, self.prefix = call, name, prefix

    @property
    def constants(self):
        """The Symbols of what a step reads and does not change; the caller drops those of new tokens."""
        return self.call.inputs

    def slots(self, columns, width, tokens=1):
        """The axis of columns in each tensor of the memory, and its length for L columns: dict of name -> pair.

        Args:
            tokens: how many tokens in order a step reads at once.
        """
        return {}

    def move(self, memory, shift, last, columns, width, tokens):
        """The memory with slots for L columns, in which the tokens of each row stand further to the right.

        Args:
            shift: int (B,), by how many columns.
            last: int scalar, the last of the columns that are read next.
            columns, width, tokens: see `slots`.
        """
        moved = dict(memory)
        for name, (axis, slots) in self.slots(columns, width, tokens).items():
            if name in memory:
                moved[name] = move_slots(memory[name], axis, slots, shift, last, self.window is not None and axis == 2)
        return moved

    def run(self, values, layout, memory, known):
        """Reads the tokens of a layout.

        Args:
            values: tensors by their Symbols; the outputs are added.
            layout: a `PromptLayout` or a `StepLayout`.
            memory: dict of the tensors that the part keeps from step to step, which the call changes.
            known: dict of the tensors that a prompt gives to all steps, which a prompt fills.
        """
        outputs = self.call.run(values)
        if isinstance(self.call.operation, EMBEDDINGS):  # the layout knows better: what was generated is no padding
            for x in outputs:
                if mask_of(x) is not None:
                    set_mask(x, layout.real(0))
        values.update(zip(self.call.outputs, outputs))


class PositionsPart(Part):
    """A call of an embedding that counts tokens, whose `call` takes `positions`."""

    reads_positions = True

    def run(self, values, layout, memory, known):
        if isinstance(self.call.operation, StartPositions):
            values[self.call.outputs[0]] = layout.positions
            return
        self.call.kwargs["positions"] = None
        kwargs, self.call.kwargs = self.call.kwargs, {**self.call.kwargs, "positions": layout.positions}
        super().run(values, layout, memory, known)
        self.call.kwargs = kwargs


class PaddingPart(Part):
    """`ids != pad_id`: the layout says which tokens are real, and what was generated is."""

    is_known = True

    def run(self, values, layout, memory, known):
        values[self.call.outputs[0]] = layout.real(0)


class PromptPart(Part):
    """A call of a `SoftPrompt`, or on its vectors, which stand before the prompt: no step runs it."""

    is_known = True
    reads_positions = True  # the part must see the prompt, not its last column

    def run(self, values, layout, memory, known):
        if layout.is_prompt:
            super().run(values, layout, memory, known)


class PrefixPart(Part):
    """A concatenation of vectors and tokens along the axis of positions."""

    is_known = True

    def run(self, values, layout, memory, known):
        tokens = values[self.tokens]
        mask = mask_of(tokens)
        for vectors in reversed(with_values(self.call.args[0][:-1], values)) if layout.is_prompt else ():
            if not layout.owns(mask):
                mask = layout.insert(ops.ones_like(vectors[..., 0], "bool"), mask)
            tokens = layout.insert(vectors, tokens)
        values[self.call.outputs[0]] = tokens
        if mask is not None and isinstance(self.call.operation, keras.layers.Layer):
            set_mask(tokens, layout.real(self.prefix) if layout.owns(mask) else mask)

    @property
    def tokens(self):
        return self.call.args[0][-1]

    @property
    def constants(self):
        return []


class CutPart(Part):
    """`x[:, n:]` of n vectors before the tokens: later columns are those of the tokens, as they are."""

    is_known = True

    def run(self, values, layout, memory, known):
        x = values[self.call.inputs[0]]
        cut = layout.is_prompt and not layout.is_last
        x = x[:, layout.columns_of(self.prefix) :] if cut else ops.copy(x)
        drop_mask(x)
        values[self.call.outputs[0]] = x


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


def make_part(call, name, prefixes, new):
    """The part of a call.

    Args:
        call: a `GraphCall` with a new tensor among its arguments.
        name: of its own.
        prefixes: dict of Symbol -> the number of vectors before the tokens, where it is not 0.
        new: set of the Symbols that depend on new tokens.
    """
    operation, found = call.operation, {prefixes.get(x, 0) for x in call.inputs if x in new}
    if _joins_prefix(call, new):
        before = call.args[0][:-1]
        for x in before:
            if x.shape[1] is None:
                raise ValueError(
                    f"`model` must know the length of the prefix that its layer {short_repr(operation.name)} puts "
                    f"before the tokens; received vectors of shape {x.shape}."
                )
        return PrefixPart(call, name, found.pop() + sum(x.shape[1] for x in before))
    if len(found) > 1:
        raise ValueError(
            f"`model` must not bring together tokens with a prefix and tokens without; its layer "
            f"{short_repr(operation.name)} does."
        )
    prefix = found.pop()
    if prefix and sequence_start(operation, call.args, call.kwargs) == prefix:
        return CutPart(call, name, prefix)
    if isinstance(operation, keras.layers.Layer):
        parameters = call_parameters(type(operation))
        if "cache" in parameters:
            _check(call, operation, new)
            return CachedPart(call, name, prefix)
        if isinstance(operation, SoftPrompt):
            return PromptPart(call, name, 0)
        if isinstance(operation, StartPositions) or _counts(operation, call):
            return PositionsPart(call, name, prefix)
        if (read := keras_reader(call, new)) is not None:
            return CachedPart(call, name, prefix, read)
    return Part(call, name, prefix)


def _counts(operation, call):
    if isinstance(operation, PositionalEmbedding):
        counts = operation.position_encoding is not None or operation.max_length is not None
        return counts and not call.kwargs.get("reverse")
    return "positions" in call_parameters(type(operation)) and call.kwargs.get("positions") is None


def _joins_prefix(call, new):
    """Whether a call concatenates constants and, at the end, tokens along the axis of positions."""
    operation = call.operation
    if concatenation_axis(operation) is None or not call.args or not isinstance(call.args[0], (list, tuple)):
        return False
    *before, tokens = call.args[0]
    rank = len(tokens.shape) if hasattr(tokens, "shape") else 0
    along = concatenation_axis(operation) in (1, 1 - rank)
    return along and tokens in new and not any(x in new for x in before)


def _check(call, layer, new):
    """Refuses an attention that decoding cannot call with a cache."""
    arguments = arguments_of(call)
    if getattr(layer, "causal", True) is False:
        raise ValueError(
            f"`model` must attend to earlier tokens alone; its layer {short_repr(layer.name)} has causal=False."
        )
    for name in REFUSED:
        if arguments.get(name) is not None:
            raise ValueError(
                f"`model` must not pass `{name}` on to {short_repr(layer.name)}: decoding makes the mask of each "
                "token itself."
            )
    for name in OF_ALL_POSITIONS:
        if arguments.get(name) in new:
            raise ValueError(
                f"`model` must make `{name}` of {short_repr(layer.name)} without the new tokens: it is that of "
                "all positions, those to come too."
            )
    if arguments.get("positions") is not None:
        raise ValueError(
            "`model` must leave `positions` to decoding, which counts the real tokens; its layer "
            f"{short_repr(layer.name)} is given others."
        )
    if any(x in new for x in keras.tree.flatten(arguments.get("context"))):
        raise ValueError(
            f"`model` must not attend to a context made of the new tokens; its layer {short_repr(layer.name)} does."
        )
