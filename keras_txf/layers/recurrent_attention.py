"""Attention of a recurrent decoder: Bahdanau's and Luong's, and the cell that attends.

Legend: B batch, T target length, S source length, D model dim.
"""

import contextlib
import contextvars

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.projections import Projection
from keras_txf.layers.serialization import register
from keras_txf.ops.attention import softmax
from keras_txf.ops.tensors import widen

ATTENTIONS = (None, "additive", "multiplicative")
STATES_OF = {keras.layers.LSTMCell: 2, keras.layers.GRUCell: 1}
# The score of padding. It is finite, so that a source that is all padding gives equal weights instead of NaN.
MASKED = -1e9
_memory = contextvars.ContextVar("context, keys and mask of the current loop")


@register
class OrthogonalInFloat32(keras.initializers.Orthogonal):
    """Keras' default for recurrent kernels, drawn in float32: no backend supports it in bfloat16."""

    def __call__(self, shape, dtype=None):
        return ops.cast(super().__call__(shape, dtype="float32"), dtype or keras.config.floatx())


@register
class RecurrentAttention(Layer):
    """Attention with one head and the scores of Bahdanau et al. or of Luong et al.

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

    weight_splits = {"query": "whole", "key": "whole", "score": "whole"}

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
        """The keys of a context, (B, S, D), for all queries."""
        return self.key(context)

    def call(self, query, context, keys, context_mask=None):
        if self.kind == "additive":
            sums = self.query(query)[:, :, None] + keys[:, None]
            scores = self.score(ops.tanh(sums))[..., 0]
        else:
            scores = ops.matmul(query, ops.swapaxes(keys, 1, 2))
        scores = widen(scores)
        if context_mask is not None:
            scores = ops.where(context_mask[:, None], scores, MASKED)
        weights = ops.cast(softmax(scores), context.dtype)
        return ops.matmul(weights, context), weights


class AttentionCell(keras.layers.Layer):
    """A recurrent cell that attends to a context with its last state, and reads the result next to its inputs.

    Bahdanau et al. 2015: the state of step t - 1 is the query for the context c of step t. The cell reads c and the
    token. The output, which is also the first state, is [h; c], with h of the inner cell.

    Args:
        cell: a cell of Keras, of width D.
        attention: a built `RecurrentAttention`.
        context_width: width of the context.

    The cell runs within `attending_to`: the loop of a Keras `RNN` passes only inputs and states.
    """

    def __init__(self, cell, attention, context_width, **kwargs):
        super().__init__(**kwargs)
        self.cell, self.attention = cell, attention
        self.output_size = cell.units + context_width
        self.state_size = [self.output_size, *[cell.units] * (STATES_OF[type(cell)] - 1)]

    def build(self, inputs_shape):
        self.cell.build((None, inputs_shape[-1] + self.output_size - self.cell.units))

    @contextlib.contextmanager
    def attending_to(self, context, keys, mask):
        """A scope of this thread in which the cell attends to a context."""
        token = _memory.set((context, keys, mask))
        try:
            yield
        finally:
            _memory.reset(token)

    def call(self, inputs, states, training=None):
        context, keys, mask = _memory.get()
        hidden = states[0][:, : self.cell.units]
        attended, _ = self.attention(hidden[:, None], context, keys, context_mask=mask)
        inputs = ops.concatenate([inputs, attended[:, 0]], axis=-1)
        output, states = self.cell(inputs, [hidden, *states[1:]], training=training)
        output = ops.concatenate([output, attended[:, 0]], axis=-1)
        return output, [output, *states[1:]]
