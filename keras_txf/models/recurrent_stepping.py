"""The prefill and the step model of a recurrent encoder-decoder: its states are the cache.

Every column keeps the states after its token, and a token begins with the states of the last column that its attention
mask allows. So each beam of a search continues its own sequence, as with a cache of keys and values, and nothing is
reordered.

A column also keeps the outputs after its token. A padding token repeats them, as in Keras' recurrent layers.

Legend: B batch, P prompt length, L columns, W tokens of a step, U width of all states, S source length, D model dim.
"""

import keras
from keras import ops

from keras_txf.layers import PositionalEmbedding, RecurrentDecoder
from keras_txf.layers.cached_layers import DecodingLayer
from keras_txf.layers.serialization import register, revive
from keras_txf.layers.token_input import token_input
from keras_txf.models.stack import given
from keras_txf.ops.masks import put_slice


def find_decoder(model):
    """The model's RecurrentDecoder, or None."""
    return next((layer for layer in model.layers if isinstance(layer, RecurrentDecoder)), None)


def recurrent_prefill(model, return_hidden_states):
    """Inputs and outputs of the model that reads prompts: see `prefill_model`."""
    decoder = find_decoder(model)
    inputs = {
        "target_ids": keras.Input((None,), dtype="int32", name="target_ids"),
        "attention_mask": keras.Input((None,), dtype="bool", name="attention_mask"),
        "source_ids": keras.Input((None,), dtype="int32", name="source_ids"),
    }
    _, *encoded = decoder.input  # the first states, and the context where there is attention
    encoder = keras.Model(model.input["source_ids"], encoded, name="encoder")
    states, *context = keras.tree.flatten(encoder.call(inputs["source_ids"]))
    arguments = given(**dict(zip(("context", "context_mask"), [*context, _context_mask(model, inputs)])))
    prefill = RecurrentPrefill(decoder, name="decoder_prefill", dtype=decoder.dtype_policy)
    x = _embedding(model)(inputs["target_ids"])
    hidden, states, *context = keras.tree.flatten(prefill(x, inputs["attention_mask"], states, **arguments))
    outputs = {"decoder_states": states, **dict(zip(("context", "context_keys"), context))}
    outputs |= {"hidden_states": hidden} if return_hidden_states else {}
    return inputs, {"logits": _logits(model, hidden[:, -1:])[:, 0], **outputs}


def recurrent_step(model, width, return_hidden_states):
    """Inputs and outputs of the model that reads W tokens more: see `step_model`."""
    decoder = find_decoder(model)
    inputs = {
        "target_ids": keras.Input((width,), dtype="int32", name="target_ids"),
        "attention_mask": keras.Input((None,) if width == 1 else (width, None), dtype="bool", name="attention_mask"),
        "cache_position": keras.Input(batch_shape=(1,), dtype="int32", name="cache_position"),
    }
    dtype = decoder.compute_dtype
    states = inputs["decoder_states"] = keras.Input(
        (None, decoder.states_width + decoder.dim), dtype=dtype, name="decoder_states"
    )
    arguments = {}
    if decoder.attention is not None:
        inputs["source_ids"] = keras.Input((None,), dtype="int32", name="source_ids")
        context = decoder.input[-1]
        for name, units in (("context", context.shape[-1]), ("context_keys", decoder.dim)):
            arguments[name] = inputs[name] = keras.Input((None, units), dtype=dtype, name=name)
        arguments["context_mask"] = _context_mask(model, inputs)
    step = RecurrentStep(decoder, name="decoder_step", dtype=decoder.dtype_policy)
    x = _embedding(model)(inputs["target_ids"])
    hidden, states = step(x, states, inputs["attention_mask"], inputs["cache_position"], **given(**arguments))
    logits = _logits(model, hidden)
    outputs = {"decoder_states": states, "logits": logits[:, 0] if width == 1 else logits}
    return inputs, outputs | ({"hidden_states": hidden} if return_hidden_states else {})


def _embedding(model):
    """The embedding of the target tokens."""
    embeddings = {layer.name: layer for layer in model.layers if isinstance(layer, PositionalEmbedding)}
    return embeddings.get("target_embedding") or embeddings["embedding"]


def _logits(model, hidden):
    """The model's logits of the decoder's outputs, (B, any length, V)."""
    head = {layer.name: layer for layer in model.layers}.get("logits")
    return _embedding(model)(hidden, reverse=True) if head is None else head(hidden)


def _context_mask(model, inputs):
    pad_id = token_input(model, "source_ids").pad_id
    if pad_id is None or find_decoder(model).attention is None:
        return None
    return ContextMask(pad_id, name="context_mask")(inputs["source_ids"])


class RecurrentPart(DecodingLayer):
    """The base of the two layers here: they share the weights of a decoder."""

    def __init__(self, decoder, **kwargs):
        super().__init__(**kwargs)
        self.decoder = revive(decoder)

    def get_config(self):
        return {**super().get_config(), "decoder": keras.saving.serialize_keras_object(self.decoder)}


@register
class RecurrentPrefill(RecurrentPart):
    """Reads a prompt through a `RecurrentDecoder`.

    Call arguments:
        inputs: float (B, P, width), embedded tokens.
        attention_mask: bool (B, at least P), True at real tokens.
        states: float (B, U), the first ones.
        context: float (B, S, width), and context_mask: bool (B, S), where the decoder has attention.

    Returns:
        The decoder's outputs (B, P, D); its last states and outputs, (B, P, U + D), the same in every column; and with
        attention the context (B, S, width) and the keys of the context (B, S, D), both without a mask.
    """

    def call(self, inputs, attention_mask, states, context=None, context_mask=None):
        decoder = self.decoder
        keys = [] if context is None else [decoder.cross_attention_layer.project(context)]
        mask = attention_mask[:, : ops.shape(inputs)[1]]
        outputs, states, _ = decoder.run(inputs, states, context, *(keys or [None]), mask, context_mask)
        # A step reads the states of the last real column alone. Padding after that column does not change the states.
        states = ops.concatenate([states, outputs[:, -1]], axis=-1)
        context = [] if context is None else map(ops.copy, (context, *keys))  # a copy has no Keras mask
        return outputs, ops.repeat(states[:, None], ops.shape(inputs)[1], axis=1), *context

    def compute_output_spec(self, inputs, attention_mask, states, context=None, context_mask=None):
        shapes = [(*inputs.shape[:2], self.decoder.dim), (*inputs.shape[:2], states.shape[-1] + self.decoder.dim)]
        shapes += [] if context is None else [context.shape, (*context.shape[:2], self.decoder.dim)]
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


@register
class RecurrentStep(RecurrentPart):
    """Reads the next W tokens of each sequence through a `RecurrentDecoder`, as alternatives to each other.

    Call arguments:
        inputs: float (B, W, width), embedded tokens.
        states: float (B, L, U + D), the states and outputs after each column.
        attention_mask: bool (B, L), or (B, W, L) for W above one: the columns that each token may attend to.
        cache_position: int (1,), the first column that the step writes.
        context, context_keys, context_mask: from `RecurrentPrefill`, where the decoder has attention.

    Returns:
        The decoder's outputs (B, W, D), and the states with the new columns.
    """

    def call(self, inputs, states, attention_mask, cache_position, context=None, context_keys=None, context_mask=None):
        decoder, width = self.decoder, inputs.shape[1]
        attention_mask = attention_mask[:, None] if len(attention_mask.shape) == 2 else attention_mask
        columns = ops.arange(ops.shape(states)[1], dtype="int32")
        before = ops.logical_and(attention_mask, columns < cache_position[0])
        last = ops.max(ops.where(before, columns, 0), axis=-1)  # a row without a real token reads the first column
        previous = ops.take_along_axis(states, last[..., None], axis=1)
        previous_states = ops.reshape(previous[..., : decoder.states_width], (-1, decoder.states_width))
        previous_outputs = previous[..., decoder.states_width :]
        context, context_keys, context_mask = (
            None if x is None else ops.repeat(x, width, axis=0) for x in (context, context_keys, context_mask)
        )
        x = ops.reshape(inputs, (-1, 1, inputs.shape[-1]))
        outputs, new_states, _ = decoder.run(x, previous_states, context, context_keys, None, context_mask)
        is_own = columns == cache_position[0] + ops.arange(width, dtype="int32")[:, None]
        is_real = ops.any(ops.logical_and(attention_mask, is_own), axis=-1, keepdims=True)
        outputs = ops.where(is_real, ops.reshape(outputs, (-1, width, decoder.dim)), previous_outputs)
        new = ops.concatenate([ops.reshape(new_states, (-1, width, decoder.states_width)), outputs], axis=-1)
        return outputs, put_slice(states, new, cache_position[0], 1)

    def compute_output_spec(
        self, inputs, states, attention_mask, cache_position, context=None, context_keys=None, context_mask=None
    ):
        outputs = keras.KerasTensor((*inputs.shape[:2], self.decoder.dim), self.compute_dtype)
        return outputs, keras.KerasTensor(states.shape, states.dtype)


@register
class ContextMask(keras.layers.Layer):
    """Which tokens of the source are real, (B, S). A layer: an operation could have the name of one of the encoder."""

    def __init__(self, pad_id, **kwargs):
        super().__init__(**kwargs)
        self.pad_id = pad_id

    def call(self, source_ids):
        return ops.not_equal(source_ids, self.pad_id)

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}
