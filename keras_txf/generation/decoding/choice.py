"""make_part: chooses the class of part for a call of a graph, or says why the call cannot decode.

Legend: see `layout`.
"""

import keras

from keras_txf.backend.flat_graph import Symbol, concatenation_axis, sequence_start
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.cached_part import CachedPart, attends_to_itself
from keras_txf.generation.decoding.keras_layers import keras_reader
from keras_txf.generation.decoding.parts import CutPart, Part, PositionsPart, PrefixPart, PromptPart, arguments_of
from keras_txf.layers.base import call_parameters
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.features import FeatureEmbedding
from keras_txf.layers.placeholders import DropBefore, InsertBefore
from keras_txf.layers.sequence_ends import SoftPrompt, StartPositions

REFUSED = ("segment_ids", "context_attention_mask", "context_segment_ids")
OF_ALL_POSITIONS = ("attention_mask", "attention_bias", "prefix_length")


def make_part(call, name, prefixes, new, padding):
    """The part of a call.

    Args:
        call: a `GraphCall` with a new tensor among its arguments.
        name: unique name of the part.
        prefixes: dict of Symbol -> the number of vectors before the tokens, if it is not 0.
        new: set of the Symbols that depend on new tokens.
        padding: set of the Symbols of padding masks.
    """
    operation, lengths = call.operation, {prefixes.get(x, 0) for x in call.inputs if x in new}
    if _joins_prefix(call, new):
        before = call.args[0][:-1]
        for x in before:
            if x.shape[1] is None:
                raise ValueError(
                    f"`model` must know the length of the prefix that its layer {short_repr(operation.name)} puts "
                    f"before the tokens; received vectors of shape {x.shape}."
                )
        return PrefixPart(call, name, lengths.pop() + sum(x.shape[1] for x in before))
    if len(lengths) > 1:
        raise ValueError(
            f"`model` must not combine tokens with a prefix and tokens without; its layer "
            f"{short_repr(operation.name)} does."
        )
    prefix = lengths.pop()
    if prefix and _cut(call) == prefix:
        return CutPart(call, name, prefix)
    if isinstance(operation, keras.layers.Layer):
        parameters = call_parameters(type(operation))
        if "cache" in parameters:
            _check(call, operation, new)
            return CachedPart(call, name, prefix, _has_new_context(call, operation, new))
        if isinstance(operation, SoftPrompt):
            return PromptPart(call, name, 0)
        if isinstance(operation, StartPositions) or _counts(operation, call):
            return PositionsPart(call, name, prefix)
        if isinstance(operation, PositionalEmbedding):
            _check_of_tokens(operation, "positions", arguments_of(call).get("positions"), new)
    if (read := keras_reader(call, new, padding)) is not None:
        _check_of_tokens(operation, "mask", arguments_of(call).get("mask"), new)
        return CachedPart(call, name, prefix, read=read)
    return Part(call, name, prefix)


def _counts(operation, call):
    """Whether an embedding counts the tokens itself: its call has no `positions`."""
    if arguments_of(call).get("positions") is not None:
        return False
    if isinstance(operation, PositionalEmbedding):
        counts = operation.position_encoding is not None or operation.max_length is not None
        return counts and not call.kwargs.get("reverse")
    if isinstance(operation, FeatureEmbedding):
        return operation.position_encoding is not None
    return "positions" in call_parameters(type(operation))


def _check_of_tokens(layer, argument, value, new):
    if value is not None and not (isinstance(value, Symbol) and value in new):
        raise ValueError(
            f"`model` must compute the `{argument}` of {short_repr(layer.name)} from the new tokens, or leave it out; "
            f"received a value of `{argument}` that does not depend on them."
        )


def _cut(call):
    """The number of vectors before the tokens that a call drops; None for any other call."""
    if isinstance(call.operation, DropBefore):
        return call.operation.number
    return sequence_start(call.operation, call.args, call.kwargs)


def _joins_prefix(call, new):
    """Whether a call concatenates constants and, at the end, tokens along the axis of positions."""
    axis = 1 if isinstance(call.operation, InsertBefore) else concatenation_axis(call.operation)
    if axis is None or not call.args or not isinstance(call.args[0], (list, tuple)):
        return False
    *before, tokens = call.args[0]
    rank = len(tokens.shape) if hasattr(tokens, "shape") else 0
    along = axis in (1, 1 - rank)
    return along and tokens in new and not any(x in new for x in before)


def _check(call, layer, new):
    """Raises ValueError for an attention that decoding cannot call with a cache."""
    arguments = arguments_of(call)
    if attends_to_itself(layer) and getattr(layer, "causal", True) is False:
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
                f"`model` must make `{name}` of {short_repr(layer.name)} without the new tokens: it covers all "
                "positions, future ones too."
            )
    for name in ("mask", "positions", "bidirectional_mask"):
        _check_of_tokens(layer, name, arguments.get(name), new)


def _has_new_context(call, layer, new):
    """Whether a layer attends to a context that is made of the new tokens. Such a layer must be causal."""
    is_new = any(x in new for x in keras.tree.flatten(arguments_of(call).get("context")))
    reader = getattr(layer, "cross_attention_layer", layer)
    causal = getattr(reader, "causal", False)
    if is_new and not causal:
        raise ValueError(
            f"`model` must attend to earlier tokens alone; its layer {short_repr(layer.name)} attends to a context "
            "made of the new tokens, which needs `CrossAttention(causal=True)`."
        )
    if causal and not is_new and not attends_to_itself(reader):
        raise ValueError(
            f"`model` must make the context of {short_repr(layer.name)}, which has causal=True, of the new tokens; "
            "received a context that does not depend on them."
        )
    return is_new
