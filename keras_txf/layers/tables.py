"""TableBias: a table with a bias for each head, indexed by the positions of a query and a key."""

import keras
import numpy as np
from keras import ops

from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register
from keras_txf.ops.positions import sinusoid


class TableBias(Layer):
    """The table, its bias and its gradient.

    A subclass has the attribute `num_heads` and two more methods:

        table_size() -> the number of rows
        rows(query_positions, key_positions) -> int (batch or 1, T, S), the row for each query and key
    """

    weight_splits = {"embeddings": "whole"}

    names_own_weights = True

    def build(self, *shapes):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.table_size(), self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
        )

    def bias(self, query_positions, key_positions):
        return self(query_positions, key_positions)

    def call(self, query_positions, key_positions):
        return self.bias_of(self.embeddings, query_positions, key_positions)

    def bias_weights(self):
        return ops.copy(self.embeddings)  # a tensor: TensorFlow's custom gradients do not accept variables

    def bias_of(self, weights, query_positions, key_positions):
        """The bias (batch or 1, heads, T, S) with the weights (rows, heads) instead of the layer's own."""
        return ops.transpose(ops.take(weights, self.rows(query_positions, key_positions), axis=0), (0, 3, 1, 2))

    def gradient_of_bias(self, upstream, query_positions, key_positions):
        """The gradient (rows, heads) of the weights, from the gradient of the bias (batch, heads, T, S)."""
        rows = self.rows(query_positions, key_positions)
        if rows.shape[0] == 1:
            upstream = ops.sum(upstream, axis=0, keepdims=True)
        upstream = ops.reshape(ops.transpose(upstream, (0, 2, 3, 1)), (-1, self.num_heads))
        return ops.segment_sum(upstream, ops.reshape(rows, (-1,)), num_segments=self.table_size())


def build_named(position):
    """Builds a position layer with `names_own_weights`: the path of shared weights must not contain the first user."""
    if getattr(position, "names_own_weights", False) and not position.built:
        position.build()


@register
class FixedTable(Layer):
    """A table of vectors that is not trained, initially the paper's sinusoids.

    Files of Whisper and Pegasus contain such tables, often rounded to half precision.

    Args:
        rows: number of vectors.
        width: number of features of a vector.
    """

    weight_splits = {"embeddings": "whole"}

    def __init__(self, rows, width, **kwargs):
        super().__init__(**kwargs)
        self.rows = rows
        self.width = width

    def build(self, *shapes):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.rows, self.width),
            initializer=lambda shape, dtype=None: ops.cast(sinusoid(np.arange(shape[0]), shape[1]), dtype),
            trainable=False,
        )

    def call(self, positions):
        return ops.take(current_value(self.embeddings), positions, axis=0)
