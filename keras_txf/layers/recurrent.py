"""RecurrentDecoder: Keras' recurrent layers over the target, with Bahdanau's or Luong's attention.

Legend: B batch, T target length, S source length, D model dim, U width of all states.
"""

import contextlib
from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import Dropout, Projection
from keras_txf.layers.recurrent_attention import ATTENTIONS, AttentionCell, OrthogonalInFloat32, RecurrentAttention
from keras_txf.layers.serialization import register

LAYERS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
CELLS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}
STATES = {"lstm": 2, "gru": 1}


@register
class RecurrentDecoder(Layer):
    """The decoder of a recurrent encoder-decoder: recurrent layers of Keras, attention to the source, and a readout.

    Use it through `txf.models.recurrent_encoder_decoder`. Without attention the outputs are those of the last layer,
    and the first states contain all information about the source (Sutskever et al. 2014). With attention they are
    tanh(W [h; c]) of the last layer's outputs h and the context c, as in Luong et al. With "multiplicative" the query
    for c is h, for all tokens at once. With "additive" the query is the first layer's state of the step before, in the
    loop, and the first layer reads c next to its token.

    Args:
        dim: width D of the layers.
        num_layers: number of recurrent layers.
        cell: "lstm" or "gru", for Keras' LSTM or GRU.
        attention: None, "additive" or "multiplicative".
        dropout: dropout rate of the inputs of each layer and of the outputs.

    Call arguments:
        inputs: float (B, T, any width), embedded tokens.
        states: float (B, U), the first states of the layers, concatenated: h and c of each LSTM, h of each GRU.
        context: float (B, S, any width), only with attention.
        inputs_mask: bool (B, T), True at real tokens. Padding does not change the states. Keras fills the mask.
        context_mask: bool (B, S). Keras fills it from the context.
        return_attention_scores: also return the weights (B, 1, T, S).
        cache, context_cache: a `Cache` of the states and one of the context, which decoding passes.

    Returns:
        (B, T, D), and the scores if asked for.

    Raises:
        ValueError: an unknown option, a context without attention or attention without a context.

    Reference:
        [Neural Machine Translation by Jointly Learning to Align and Translate](https://arxiv.org/abs/1409.0473);
        [Effective Approaches to Attention-based Neural Machine Translation](https://arxiv.org/abs/1508.04025).

    Example:

    >>> layer = txf.layers.RecurrentDecoder(dim=32, cell="gru", attention="multiplicative")
    >>> states, context = keras.ops.zeros((2, 32)), keras.random.normal((2, 5, 48))
    >>> layer(keras.random.normal((2, 7, 32)), states, context).shape
    (2, 7, 32)
    """

    weight_splits = {"readout": "whole"}

    def __init__(
        self,
        dim: int,
        num_layers: int = 1,
        cell: str = "lstm",
        attention: str | None = None,
        dropout: float = 0.0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.dim = checks.size("dim", dim)
        self.num_layers = checks.size("num_layers", num_layers)
        self.cell = checks.one_of("cell", cell, tuple(LAYERS))
        self.attention = checks.one_of("attention", attention, ATTENTIONS)
        self.dropout = checks.rate("dropout", dropout)
        self.states_width = self.dim * self.num_layers * STATES[cell]
        self.supports_masking = True

    def build(self, inputs_shape, states_shape, context_shape=None):
        for name, shape, rank in (
            ("inputs", inputs_shape, 3),
            ("states", states_shape, 2),
            ("context", context_shape, 3),
        ):
            if shape is not None and len(shape) != rank:
                raise ValueError(f"`{name}` must have {rank} axes; received shape {tuple(shape)}.")
        if states_shape[-1] != self.states_width:
            raise ValueError(
                f"`states` must be {self.states_width} wide, for dim={self.dim} and num_layers={self.num_layers}; "
                f"received shape {tuple(states_shape)}."
            )
        self._check_context(context_shape)
        options = {"return_sequences": True, "return_state": True, "dtype": self.dtype_policy}
        self.inputs_width, self.context_width = inputs_shape[-1], None if context_shape is None else context_shape[-1]
        width, attended_width = inputs_shape[-1], 0 if self.attention is None else context_shape[-1]
        if self.attention is not None:
            self.cross_attention_layer = RecurrentAttention(
                self.attention, dtype=self.dtype_policy, name="cross_attention"
            )
            self.cross_attention_layer.build((None, None, self.dim), context_shape)
        self.recurrent_layers = []
        for index in range(self.num_layers):
            if self.attention == "additive" and index == 0:
                cell = CELLS[self.cell](
                    self.dim, recurrent_initializer=OrthogonalInFloat32(), dtype=self.dtype_policy, name="cell"
                )
                cell = AttentionCell(
                    cell, self.cross_attention_layer, attended_width, dtype=self.dtype_policy, name="attention_cell"
                )
                layer = keras.layers.RNN(cell, **options, name="layer_0")
            else:
                layer = LAYERS[self.cell](
                    self.dim, recurrent_initializer=OrthogonalInFloat32(), **options, name=f"layer_{index}"
                )
            layer.build((None, None, width))
            self.recurrent_layers.append(layer)
            width = self.dim + (attended_width if self.attention == "additive" and index == 0 else 0)
        if self.attention is not None:
            self.readout = Projection(self.dim, dtype=self.dtype_policy, name="readout")
            self.readout.build((None, None, self.dim + context_shape[-1]))
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(
        self,
        inputs,
        states,
        context=None,
        inputs_mask=None,
        context_mask=None,
        return_attention_scores=False,
        training=None,
        cache=None,
        context_cache=None,
    ):
        if cache is not None:
            return self._decode(inputs, states, cache, context_cache)
        self._check(inputs, states, context, inputs_mask, context_mask, return_attention_scores)
        keys = None if context is None else self.cross_attention_layer.project(context)
        outputs, _, scores = self.run(
            inputs, states, context, keys, inputs_mask, context_mask, return_attention_scores, training
        )
        return (outputs, scores[:, None]) if return_attention_scores else outputs

    def project_context(self, context):
        """Keys and values (B, S, 1, width) of a context (B, S, any width), which `Cache` keeps."""
        return self.cross_attention_layer.project(context)[:, :, None], context[:, :, None]

    def _decode(self, inputs, states, cache, context_cache):
        """Runs the layers on a prompt or on one token of each row, from the states in the cache."""
        keys = context = context_mask = None
        if context_cache is not None:
            keys, context = (cache.repeat(x[:, :, 0]) for x in context_cache.read())
            context_mask = None if context_cache.mask is None else cache.repeat(context_cache.mask)
        mask = None if cache.mask is None else cache.split(cache.mask)
        states = cache.read_state("states", states)
        outputs, states, _ = self.run(cache.split(inputs), states, context, keys, mask, context_mask)
        cache.write_state("states", states)
        return cache.join(outputs)

    def _check_context(self, shape):
        if (self.attention is None) != (shape is None):
            expected = "be None" if self.attention is None else "be a tensor"
            received = "None" if shape is None else f"one of shape {tuple(shape)}"
            raise ValueError(f"`context` must {expected} with attention={self.attention!s}; received {received}.")

    def _check(self, inputs, states, context, inputs_mask, context_mask, return_attention_scores):
        if context is not None:
            context = checks.dense_tensor("context", context)
            checks.rank("context", context, (3, "(batch, length, width)"))
        self._check_context(None if context is None else context.shape)
        if return_attention_scores and self.attention is None:
            raise ValueError("`return_attention_scores` needs `attention`; received attention=None.")
        if context_mask is not None and context is None:
            raise ValueError("`context_mask` was passed, but no `context`: it would not be used.")
        checks.rank("inputs", inputs, (3, "(batch, length, width)"))
        batch, length, _ = inputs.shape
        _check_shape("states", states, (batch, self.states_width))
        _check_shape("inputs", inputs, (batch, length, self.inputs_width))
        if context is not None:
            _check_shape("context", context, (batch, context.shape[1], self.context_width))
        for name, mask, size in (
            ("inputs_mask", inputs_mask, length),
            ("context_mask", context_mask, context is not None and context.shape[1]),
        ):
            if mask is not None:
                checks.mask(name, mask, (2, "(batch, length)"))
                _check_shape(name, mask, (batch, size))

    def run(self, inputs, states, context, keys, mask, context_mask, return_attention_scores=False, training=None):
        """Runs the layers from their first states: outputs (B, T, D), last states (B, U) and scores (B, T, S)."""
        x, last, first_outputs, attended = inputs, [], None, None
        number = STATES[self.cell]
        states = ops.split(states, number * self.num_layers, axis=-1)
        for index, layer in enumerate(self.recurrent_layers):
            layer_states = list(states[index * number : (index + 1) * number])
            additive = self.attention == "additive" and index == 0
            scope = contextlib.nullcontext()
            if additive:
                scope = layer.cell.attending_to(context, keys, context_mask)
                layer_states[0] = ops.pad(layer_states[0], ((0, 0), (0, context.shape[-1])))
            x = self.dropout_layer(x, training=training)
            with scope:
                x, *layer_states = _run_layer(layer, x, layer_states, mask, training)
            if additive:
                first_outputs, attended = x[..., : self.dim], x[..., self.dim :]
            last += [layer_states[0][:, : self.dim], *layer_states[1:]]
        last = ops.concatenate(last, axis=-1)
        if self.attention is None:
            return self.dropout_layer(x, training=training), last, None
        scores = None
        if self.attention == "multiplicative":
            attended, scores = self.cross_attention_layer(x, context, keys, context_mask=context_mask)
        elif return_attention_scores:
            # The scores are computed again, for all steps at once: the query of a step is the state before it.
            before = ops.concatenate([states[0][:, None], first_outputs[:, :-1]], axis=1)
            if mask is not None:  # padding on the left does not change the first state, but Keras' output there is 0
                begun = ops.cumsum(ops.cast(mask, "int32"), axis=1) - ops.cast(mask, "int32") > 0
                before = ops.where(ops.expand_dims(begun, -1), before, states[0][:, None])
            _, scores = self.cross_attention_layer(before, context, keys, context_mask=context_mask)
        x = ops.concatenate([x[..., : self.dim], attended], axis=-1)
        return self.dropout_layer(ops.tanh(self.readout(x)), training=training), last, scores

    def compute_output_spec(
        self,
        inputs,
        states,
        context=None,
        inputs_mask=None,
        context_mask=None,
        return_attention_scores=False,
        training=None,
        cache=None,
        context_cache=None,
    ):
        self._check(inputs, states, context, inputs_mask, context_mask, return_attention_scores)
        output = keras.KerasTensor((*inputs.shape[:2], self.dim), self.compute_dtype)
        if not return_attention_scores:
            return output
        return output, keras.KerasTensor((inputs.shape[0], 1, inputs.shape[1], context.shape[1]), self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask


def _check_shape(name, tensor, expected):
    """Raises ValueError if a known axis of a tensor differs from `expected`, where None accepts any size."""
    shape = tuple(tensor.shape)
    if len(shape) != len(expected) or any(
        isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape, expected)
    ):
        raise ValueError(f"`{name}` must have shape {expected}; received shape {shape}.")


def _run_layer(layer, x, states, mask, training):
    """Runs a recurrent layer over (B, T, width); for one token only its cell, without a loop."""
    if x.shape[1] != 1 or mask is not None:
        return layer(x, initial_state=states, mask=mask, training=training)
    outputs, states = layer.cell(x[:, 0], states, training=training)
    return outputs[:, None], *states
