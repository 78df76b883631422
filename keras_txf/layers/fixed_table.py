"""FixedTable: vectors of positions that a file holds and no training changes."""

import numpy as np
from keras import ops

from keras_txf.backend.variables import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register
from keras_txf.ops.positions import sinusoid


@register
class FixedTable(Layer):
    """A table of vectors that is not trained: the paper's sinusoids at first.

    Files of Whisper and Pegasus hold their sinusoids, often rounded to half precision.

    Args:
        rows: number of vectors.
        width: number of features of a vector.
    """

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
