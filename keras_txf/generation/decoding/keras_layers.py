"""Reads prompts and steps through Keras' own causal layers, with a `Cache`: recurrences, convolutions, attention, sums.

Legend: B batch, T new tokens, D width of the inputs, H earlier columns that a convolution reads.
"""

import keras
from keras import ops

from keras_txf.backend.flat_graph import call_operation, symbols_in
from keras_txf.backend.keras_private import attend_with, read_sequence
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.parts import arguments_of
from keras_txf.layers.base import call_parameters
from keras_txf.ops.masks import slice_axis

KERAS_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
HUB_REFUSED = (
    "decoder_padding_mask", "decoder_attention_mask", "encoder_attention_mask", "self_attention_cache",
    "self_attention_cache_update_index", "cross_attention_cache", "cross_attention_cache_update_index",
)  # fmt: skip


def keras_reader(call, new, padding):
    """Returns the function that reads tokens through a causal layer or operation of Keras, None for any other call.

    Args:
        call: a `GraphCall`.
        new: set of the Symbols that depend on new tokens.
        padding: set of the Symbols of padding masks, which decoding makes itself.

    Raises:
        ValueError: an option with which the layer is not causal, or has no state to continue from.
    """
    layer, arguments = call.operation, arguments_of(call)
    if type(layer).__name__ == "Cumsum":
        return read_sums if layer.axis in (1, 1 - len(call.inputs[0].shape)) else None
    if {"self_attention_cache", "cross_attention_cache"} <= call_parameters(type(layer)).keys():
        _check_absent(layer, arguments, HUB_REFUSED)
        if arguments.get("use_causal_mask", True) is not True or arguments.get("encoder_sequence") in new:
            return None
        return read_hub_block
    if isinstance(layer, keras.layers.RNN):
        _check_options(layer, return_sequences=True, return_state=False, go_backwards=False, stateful=False)
        if any(x in new for x in symbols_in([arguments.get("initial_state")])):
            raise ValueError(
                "`model` must give a recurrent layer an initial state that does not depend on the tokens; its layer "
                f"{short_repr(layer.name)} has one that does."
            )
        return read_recurrence
    if getattr(layer, "padding", None) == "causal" and hasattr(layer, "dilation_rate"):
        _check_options(layer, strides=(1,))
        return read_convolution
    if type(layer) in KERAS_ATTENTION and arguments.get("use_causal_mask") and arguments["value"] in new:
        masks = [x for x in ("query_mask", "value_mask", "key_mask") if not padding.issuperset([arguments.get(x)])]
        _check_absent(layer, arguments, ("attention_mask", "return_attention_scores", *masks))
        return read_attention
    return None


def _check_absent(layer, arguments, names):
    for name in names:
        if arguments.get(name) is not None and arguments[name] is not False:
            raise ValueError(
                f"`model` must not pass `{name}` on to {short_repr(layer.name)}: decoding makes the mask of each "
                "token itself."
            )


def read_sums(operation, arguments, cache):
    """Returns the cumulative sums of `keras.ops.cumsum(x, axis=1)`, (B, T, ...)."""
    x, mask = cache.split(next(iter(arguments.values()))), cache.mask
    if mask is not None:  # padding adds nothing
        mask = ops.reshape(mask, (*ops.shape(mask), *[1] * (len(x.shape) - 2)))
        x = ops.where(mask, x, ops.zeros_like(x))
    sums = operation(x)
    sums = sums + cache.read_state("sum", ops.zeros_like(sums[:, 0]))[:, None]
    cache.write_state("sum", sums[:, -1])
    if mask is not None:  # padding gets the sum of the first token: a count minus 1 must stay in a table of positions
        first = ops.argmax(ops.cast(mask, "int32"), axis=1, keepdims=True)
        sums = ops.where(mask, sums, ops.take_along_axis(sums, first, axis=1))
    return cache.join(sums)


def _check_options(layer, **options):
    for option, value in options.items():
        actual = getattr(layer, option)
        if actual != value:
            raise ValueError(
                f"`model` must have {type(layer).__name__} layers with {option}={value}; its layer "
                f"{short_repr(layer.name)} has {option}={actual}."
            )


def read_recurrence(layer, arguments, cache):
    """Returns the outputs of an LSTM, a GRU, a SimpleRNN or an RNN of any cell, (B, T, width)."""
    x, mask = cache.split(next(iter(arguments.values()))), cache.mask
    initial = arguments.get("initial_state")
    initial = layer.get_initial_state(batch_size=ops.shape(x)[0]) if initial is None else initial
    initial = list(initial) if isinstance(initial, (list, tuple)) else [initial]
    flat = [cache.read_state(f"state_{i}", state) for i, state in enumerate(keras.tree.flatten(initial))]
    states = keras.tree.pack_sequence_as(initial, flat)  # stacked cells have nested states
    mask = None if mask is None else cache.split(mask)
    outputs, new = read_sequence(layer, x, states, mask)
    for i, state in enumerate(keras.tree.flatten(new)):
        cache.write_state(f"state_{i}", state)
    if mask is not None and not layer.zero_output_for_mask:  # a masked token repeats the last output
        last = cache.read_state("outputs", ops.zeros_like(outputs[:, 0]))
        if x.shape[1] == 1:
            outputs = ops.where(mask[..., None], outputs, last[:, None])
        cache.write_state("outputs", outputs[:, -1])
    return cache.join(outputs)


def read_convolution(layer, arguments, cache):
    """Returns the outputs of a convolution. Its state is the last inputs, (B, H, D)."""
    x = cache.split(next(iter(arguments.values())))
    length = (layer.kernel_size[0] - 1) * layer.dilation_rate[0]
    return cache.join(layer(cache.look_back("inputs", x, length))[:, length:])


def read_attention(layer, arguments, cache):
    """Returns the outputs of a MultiHeadAttention or a GroupQueryAttention of the tokens to themselves, (B, T, D)."""
    query, value = arguments["query"], arguments["value"]
    key = arguments.get("key")
    return attend_with(layer, query, value if key is None else key, value, cache.update, cache.attention_mask)


def read_hub_block(layer, arguments, cache):
    """Returns the outputs of a `TransformerDecoder` of KerasHub, (B, T, D), which keeps keys and values in one tensor.

    The block projects the context again at each step: with a self-attention cache it accepts no projected context.
    """
    x = ops.copy(arguments["decoder_sequence"])  # without its Keras mask, which `cache.attention_mask` holds
    (batch, length, dim), context, is_prompt = ops.shape(x), arguments.get("encoder_sequence"), cache.key is None
    heads, slot, allowed = (layer.num_heads, dim // layer.num_heads), cache._slots, cache.attention_mask[:, 0]
    empty = ops.zeros((batch, 2, length, *heads), layer.compute_dtype)
    known = empty if is_prompt else ops.stack(cache.read(), axis=1)
    if is_prompt:
        slot = 0
    elif len(slot.shape) == 2:  # the tokens take scattered slots: the block reads them after the other slots
        taken = slot[..., None] == ops.arange(length, dtype="int32")
        new = ops.any(ops.logical_and(allowed[..., None], taken[:, None]), axis=2)
        allowed = ops.concatenate([ops.logical_and(allowed, (slot < 0)[:, None]), new], axis=2)
        slot, known = ops.shape(known)[2], ops.concatenate([known, empty], axis=2)
    arguments = {
        **arguments, "decoder_sequence": x, "decoder_attention_mask": allowed, "use_causal_mask": False,
        "self_attention_cache_update_index": slot, "self_attention_cache": known,
    }  # fmt: skip
    if context is not None:
        empty = ops.zeros((batch, 2, ops.shape(context)[1], *heads), layer.compute_dtype)
        arguments.update(cross_attention_cache=empty, cross_attention_cache_update_index=0)
    outputs, pairs = call_operation(layer, (), arguments)[:2]
    cache.update(*(slice_axis(pairs[:, i], slot, length, 1) for i in range(2)))
    return outputs
