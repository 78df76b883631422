"""RecurrentDecoder: Keras' recurrent layers over the target, with the attention of Bahdanau or of Luong.

Legend: B batch, T target length, S source length, D model dim, U width of all states.
"""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.arguments import named_arguments
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.options import get_config, register
from keras_txf.layers.projections import Projection

LAYERS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
CELLS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}
STATES = {"lstm": 2, "gru": 1}
STATES_OF = {CELLS[name]: number for name, number in STATES.items()}
ATTENTIONS = (None, "additive", "multiplicative")
MASKED = -1e9  # the score of padding. It is finite: where the whole source is padding, all weights are equal and none is NaN


@register
class RecurrentAttention(keras.layers.Layer):
    """Attention with one head, whose scores are those of Bahdanau et al. or of Luong et al.

    Args:
        kind: "additive", v tanh(W q + U k), or "multiplicative", q W k ("general" in the paper).

    Call arguments:
        query: float (B, T, D).
        context: float (B, S, any width).
        keys: float (B, S, D), from `project`.
        context_mask: bool (B, S), True at real tokens, or None.

    Returns:
        The weighted mean of `context` for each query, (B, T, width), and the weights (B, T, S).
    """

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = checks.one_of("kind", kind, ATTENTIONS[1:])
        self.supports_masking = True

    def build(self, query_shape, context_shape, keys_shape=None):
        dim = query_shape[-1]
        self.key = Projection(dim, use_bias=False, dtype=self.dtype_policy, name="key")
        self.key.build(context_shape)
        if self.kind == "additive":
            self.query = Projection(dim, use_bias=False, dtype=self.dtype_policy, name="query")
            self.query.build(query_shape)
            self.score = Projection(1, use_bias=False, dtype=self.dtype_policy, name="score")
            self.score.build(query_shape)

    def project(self, context):
        """The keys of a context, (B, S, D): they are the same for every query."""
        return self.key(context)

    def call(self, query, context, keys, context_mask=None):
        if self.kind == "additive":
            sums = self.query(query)[:, :, None] + keys[:, None]
            scores = self.score(ops.tanh(sums))[..., 0]
        else:
            scores = ops.matmul(query, ops.swapaxes(keys, 1, 2))
        scores = ops.cast(scores, "float32")
        if context_mask is not None:
            scores = ops.where(context_mask[:, None], scores, MASKED)
        weights = ops.cast(ops.softmax(scores), context.dtype)
        return ops.matmul(weights, context), weights

    def get_config(self):
        return get_config(self, super().get_config())


class AttentionCell(keras.layers.Layer):
    """A recurrent cell that attends to a context with its last state, and reads what it finds beside its inputs.

    Bahdanau et al. 2015: the state of step t - 1 looks for the context of step t, which the cell then takes with the token.
    The output and first state is [h; c]: the cell's h, and the context c that it found.

    Args:
        cell: a cell of Keras, of width D.
        attention: a built `RecurrentAttention`.
        context_width: width of the context.

    The context must be set by `attend_to` before the cell runs: the loop of a Keras `RNN` hands over only inputs and states.
    """

    def __init__(self, cell, attention, context_width, **kwargs):
        super().__init__(**kwargs)
        self.cell, self.attention = cell, attention
        self.output_size = cell.units + context_width
        self.state_size = [self.output_size, *[cell.units] * (STATES_OF[type(cell)] - 1)]

    def build(self, inputs_shape):
        self.cell.build((None, inputs_shape[-1] + self.output_size - self.cell.units))

    def attend_to(self, context, keys, mask):
        self._memory = context, keys, mask

    def call(self, inputs, states, training=None):
        context, keys, mask = self._memory
        hidden = states[0][:, : self.cell.units]
        found, _ = self.attention(hidden[:, None], context, keys, context_mask=mask)
        inputs = ops.concatenate([inputs, found[:, 0]], axis=-1)
        output, states = self.cell(inputs, [hidden, *states[1:]], training=training)
        output = ops.concatenate([output, found[:, 0]], axis=-1)
        return output, [output, *states[1:]]


@register
@named_arguments
class RecurrentDecoder(keras.layers.Layer):
    """The decoder of a recurrent encoder-decoder: recurrent layers of Keras, attention to the source, and a readout.

    Use it through `txf.models.recurrent_encoder_decoder`. Without attention the outputs are those of the last layer, and
    all that is known of the source is in the first states (Sutskever et al. 2014). With attention the outputs are
    tanh(W [h; c]) of the last layer's outputs h and the context c, as in Luong et al. "multiplicative" looks for c with
    h itself, for all tokens at once. "additive" looks for it with the first layer's state of the step before, in the
    loop, and that layer reads c beside its token.

    Args:
        dim: width D of the layers.
        num_layers: number of recurrent layers.
        cell: "lstm" or "gru", as Keras has them.
        attention: None, "additive" or "multiplicative".
        dropout: rate on the inputs of each layer and on the outputs.

    Call arguments:
        inputs: float (B, T, any width), embedded tokens.
        states: float (B, U), the first states of the layers side by side: h and c of each LSTM, h of each GRU.
        context: float (B, S, any width), with attention alone.
        inputs_mask: bool (B, T), True at real tokens: others leave the states as they are. Keras fills it.
        context_mask: bool (B, S). Keras fills it from the context.
        return_attention_scores: also return the weights (B, 1, T, S).

    Returns:
        (B, T, D), and the scores if asked for.

    Raises:
        ValueError: an option that is not known, a context without attention or attention without a context.

    Reference:
        [Neural Machine Translation by Jointly Learning to Align and Translate](https://arxiv.org/abs/1409.0473);
        [Effective Approaches to Attention-based Neural Machine Translation](https://arxiv.org/abs/1508.04025).

    Example:

    >>> layer = txf.layers.RecurrentDecoder(dim=32, cell="gru", attention="multiplicative")
    >>> states, context = keras.ops.zeros((2, 32)), keras.random.normal((2, 5, 48))
    >>> layer(keras.random.normal((2, 7, 32)), states, context).shape
    (2, 7, 32)
    """

    def __init__(self, dim, num_layers=1, cell="lstm", attention=None, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dim = checks.size("dim", dim)
        self.num_layers = checks.size("num_layers", num_layers)
        self.cell = checks.one_of("cell", cell, tuple(LAYERS))
        self.attention = checks.one_of("attention", attention, ATTENTIONS)
        self.dropout = checks.rate("dropout", dropout)
        self.states_width = self.dim * self.num_layers * STATES[cell]
        self.supports_masking = True

    def build(self, inputs_shape, states_shape, context_shape=None):
        for name, shape, rank in (("inputs", inputs_shape, 3), ("states", states_shape, 2), ("context", context_shape, 3)):
            if shape is not None and len(shape) != rank:
                raise ValueError(f"`{name}` must have {rank} axes; received shape {tuple(shape)}.")
        if states_shape[-1] != self.states_width:
            raise ValueError(
                f"`states` must be {self.states_width} wide, for dim={self.dim} and num_layers={self.num_layers}; received "
                f"shape {tuple(states_shape)}."
            )
        self._check_context(context_shape)
        options = {"return_sequences": True, "return_state": True, "dtype": self.dtype_policy}
        self.inputs_width = inputs_shape[-1]
        width, found = inputs_shape[-1], 0 if self.attention is None else context_shape[-1]
        if self.attention is not None:
            self.cross_attention_layer = RecurrentAttention(self.attention, dtype=self.dtype_policy, name="cross_attention")
            self.cross_attention_layer.build((None, None, self.dim), context_shape)
        self.recurrent_layers = []
        for index in range(self.num_layers):
            if self.attention == "additive" and index == 0:
                cell = CELLS[self.cell](self.dim, dtype=self.dtype_policy, name="cell")
                cell = AttentionCell(cell, self.cross_attention_layer, found, dtype=self.dtype_policy, name="attention_cell")
                layer = keras.layers.RNN(cell, **options, name="layer_0")
            else:
                layer = LAYERS[self.cell](self.dim, **options, name=f"layer_{index}")
            layer.build((None, None, width))
            self.recurrent_layers.append(layer)
            width = self.dim + (found if self.attention == "additive" else 0)
        if self.attention is not None:
            self.readout = Projection(self.dim, dtype=self.dtype_policy, name="readout")
            self.readout.build((None, None, self.dim + context_shape[-1]))
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(
        self, inputs, states, context=None, inputs_mask=None, context_mask=None, return_attention_scores=False, training=None
    ):
        self._check(inputs, states, context, inputs_mask, context_mask)
        keys = None if context is None else self.cross_attention_layer.project(context)
        outputs, _, scores = self.run(
            inputs, states, context, keys, inputs_mask, context_mask, return_attention_scores, training
        )
        return (outputs, scores[:, None]) if return_attention_scores else outputs

    def _check_context(self, shape):
        if (self.attention is None) != (shape is None):
            received = "none" if shape is None else f"one of shape {tuple(shape)}"
            raise ValueError(f"`context` must come with `attention` and only then: attention={self.attention!s}; received {received}.")

    def _check(self, inputs, states, context, inputs_mask, context_mask):
        self._check_context(None if context is None else context.shape)
        checks.rank("inputs", inputs, (3, "(batch, length, width)"))
        checks.rank("states", states, (2, "(batch, width of all states)"))
        checks.broadcasts("states", states, inputs.shape[0], self.states_width)
        if inputs.shape[-1] != self.inputs_width:
            raise ValueError(f"`inputs` must be {self.inputs_width} wide; received shape {tuple(inputs.shape)}.")
        for name, mask, tensor in (("inputs_mask", inputs_mask, inputs), ("context_mask", context_mask, context)):
            if mask is not None:
                checks.mask(name, mask, (2, "(batch, length)"))
                checks.broadcasts(name, mask, *tensor.shape[:2])

    def run(self, inputs, states, context, keys, mask, context_mask, return_attention_scores=False, training=None):
        """Runs the layers over inputs from their first states: outputs (B, T, D), last states (B, U), and scores (B, T, S)."""
        if return_attention_scores and self.attention is None:
            raise ValueError("`return_attention_scores` needs `attention`; received attention=None.")
        x, last, first_outputs, found = inputs, [], None, None
        number = STATES[self.cell]
        states = ops.split(states, number * self.num_layers, axis=-1)
        for index, layer in enumerate(self.recurrent_layers):
            own = states[index * number : (index + 1) * number]
            additive = self.attention == "additive" and index == 0
            if additive:
                layer.cell.attend_to(context, keys, context_mask)
                own = [ops.pad(own[0], ((0, 0), (0, context.shape[-1]))), *own[1:]]
            x, *own = _run_layer(layer, self.dropout_layer(x, training=training), own, mask, training)
            if additive:
                first_outputs, found = x[..., : self.dim], x[..., self.dim :]
            last += [own[0][:, : self.dim], *own[1:]]
        last = ops.concatenate(last, axis=-1)
        if self.attention is None:
            return self.dropout_layer(x, training=training), last, None
        scores = None
        if self.attention == "multiplicative":
            found, scores = self.cross_attention_layer(x, context, keys, context_mask=context_mask)
        elif return_attention_scores:  # computed again, for all steps at once: each step looked with the state before it
            before = ops.concatenate([states[0][:, None], first_outputs[:, :-1]], axis=1)
            _, scores = self.cross_attention_layer(before, context, keys, context_mask=context_mask)
        x = ops.concatenate([x[..., : self.dim], found], axis=-1)
        return self.dropout_layer(ops.tanh(self.readout(x)), training=training), last, scores

    def compute_output_spec(self, inputs, states, context=None, return_attention_scores=False, **others):
        output = keras.KerasTensor((*inputs.shape[:2], self.dim), self.compute_dtype)
        if not return_attention_scores:
            return output
        return output, keras.KerasTensor((inputs.shape[0], 1, inputs.shape[1], context.shape[1]), self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def get_config(self):
        return get_config(self, super().get_config())


def _run_layer(layer, x, states, mask, training):
    """A recurrent layer over (B, T, width); of one token its cell alone, without a loop."""
    if x.shape[1] != 1 or mask is not None:
        return layer(x, initial_state=states, mask=mask, training=training)
    outputs, states = layer.cell(x[:, 0], states, training=training)
    return outputs[:, None], *states
