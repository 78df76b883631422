"""Positions that embeddings add, by name, and positions in attention by a bias. Rotations are in `rotary.py`.

Several blocks may share a position layer of attention. It has two methods. Your own layer with both methods works too:

    rotate(x, positions) -> x, for queries and keys of shape (batch, length, heads, head dim)
    bias(query_positions, key_positions) -> (batch or 1, heads, T, S), added to the logits, or None

The optional method `check_heads(length, head_dim)` raises ValueError for queries and keys that the layer cannot rotate.
Attention also calls it on symbols, for which it does not call `rotate`.

A position layer whose bias also depends on queries and keys, such as `DisentangledPositions`, has three more members:

    added_terms -> the number of terms that it adds to each logit, for the factor on the logits
    build_for(attention, inputs_shape), which makes the projections of one attention layer
    bias_of_content(attention, query, key, query_positions, key_positions, training) -> (batch, heads, T, S)

For long sequences attention computes the bias in blocks. For this, a layer with trained weights needs the methods
`bias_weights`, `bias_of` and `gradient_of_bias` of `RelativeBias`; without them attention computes the whole bias.
"""

import functools
from typing import Unpack

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.rotary import Rotary
from keras_txf.layers.serialization import register
from keras_txf.ops import positions as mathematics
from keras_txf.ops.tensors import wide_dtype

WAVES = {  # position_encoding -> function of positions and a width that computes the vectors
    "sinusoidal": mathematics.sinusoid,
    "sinusoidal_halves": functools.partial(mathematics.sinusoid, interleaved=False),
    "sinusoidal_inclusive_from_2": mathematics.inclusive_sinusoid,
    "sinusoidal_inclusive": functools.partial(mathematics.inclusive_sinusoid, first=0),
}
TABLES = ("learned", "fixed")  # values of position_encoding with a table of `max_length` rows
ENCODINGS = (*WAVES, *TABLES)


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
            initializer=lambda shape, dtype=None: ops.cast(mathematics.sinusoid(np.arange(shape[0]), shape[1]), dtype),
            trainable=False,
        )

    def call(self, positions):
        return ops.take(current_value(self.embeddings), positions, axis=0)


@register
class ALiBi(Layer):
    """Attention with linear biases: each head penalises distance with its own fixed slope. No weights.

    Args:
        num_heads: number of query heads.

    Reference:
        [Train Short, Test Long](https://arxiv.org/abs/2108.12409). Without a causal mask the penalty
        is symmetric.

    Example:

    >>> txf.layers.ALiBi(num_heads=4)(np.arange(3), np.arange(5)).shape
    (1, 4, 3, 5)
    """

    def __init__(self, num_heads: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)

    def rotate(self, x, positions):
        return x

    def bias(self, query_positions, key_positions):
        return self(query_positions, key_positions)

    def call(self, query_positions, key_positions):
        wide = wide_dtype(self.compute_dtype)
        slopes = ops.convert_to_tensor(mathematics.alibi_slopes(self.num_heads).astype(wide))
        distance = ops.cast(ops.abs(key_distance(query_positions, key_positions)), wide)
        return -slopes[None, :, None, None] * distance[:, None]


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


@register
class RelativeBias(TableBias):
    """T5's relative positions: a learned bias for each head and each bucket of distances.

    T5 shares one such layer among all blocks of a stack: pass the same instance to each.

    Args:
        num_heads: number of query heads.
        num_buckets: number of buckets; with `bidirectional` half of them are for later keys.
        max_distance: distance from which on all keys share the last bucket.
        bidirectional: True for encoders, False under a causal mask.

    Reference:
        [T5](https://arxiv.org/abs/1910.10683), section 2.1.

    Example:

    >>> shared = txf.layers.RelativeBias(num_heads=4)
    >>> blocks = [txf.layers.EncoderBlock(num_heads=4, position=shared) for _ in range(2)]
    >>> blocks[1](blocks[0](keras.random.normal((2, 7, 32)))).shape
    (2, 7, 32)
    """

    weight_splits = {"embeddings": "columns"}

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.num_buckets = checks.size("num_buckets", num_buckets)
        self.max_distance = checks.size("max_distance", max_distance)
        self.bidirectional = checks.boolean("bidirectional", bidirectional)
        exact = num_buckets // (4 if bidirectional else 2)
        if exact < 1 or max_distance <= exact:
            raise ValueError(
                f"`max_distance` must exceed the number of distances with their own buckets, {exact}, at least 1; "
                f"received max_distance={max_distance} and num_buckets={num_buckets}."
            )

    def rotate(self, x, positions):
        return x

    def table_size(self):
        return self.num_buckets

    def rows(self, query_positions, key_positions):
        distance = key_distance(query_positions, key_positions)
        return mathematics.relative_buckets(distance, self.bidirectional, self.num_buckets, self.max_distance)


POSITIONS = {
    "rotary": lambda num_heads, causal, **kwargs: Rotary(**kwargs),
    "alibi": lambda num_heads, causal, **kwargs: ALiBi(num_heads, **kwargs),
    "relative": lambda num_heads, causal, **kwargs: RelativeBias(num_heads, bidirectional=not causal, **kwargs),
}


def make_position(position, num_heads, causal, dtype):
    """Returns the position layer of the option `position`: a name, a layer or None."""
    if position is None or isinstance(position, keras.layers.Layer):
        _check_instance(position, num_heads)
        build_named(position)
        return position
    if isinstance(position, str) and position in ENCODINGS:
        raise ValueError(
            f"`position` must be a position in attention, one of {sorted(POSITIONS)}; received "
            f"{short_repr(position)}, which is added to the embeddings: pass position_encoding={short_repr(position)} "
            "to PositionalEmbedding or to the builder."
        )
    checks.one_of("position", position, [*POSITIONS, None], "a layer such as Rotary()")
    return POSITIONS[position](num_heads, causal, dtype=dtype, name="position")


def build_named(position):
    """Builds a position layer with `names_own_weights`: the path of shared weights must not contain the first user."""
    if getattr(position, "names_own_weights", False) and not position.built:
        position.build()


def _check_instance(position, num_heads):
    if position is None:
        return
    if not (hasattr(position, "rotate") and hasattr(position, "bias")):
        raise ValueError(
            f"`position` must be one of {sorted(POSITIONS)}, None, or a layer with the methods "
            f"`rotate` and `bias`; received {short_repr(position)}."
        )
    if getattr(position, "num_heads", num_heads) != num_heads:
        raise ValueError(
            f"`position` must have num_heads={num_heads}, as its attention; received num_heads={position.num_heads}."
        )


def key_distance(query_positions, key_positions):
    """Key position minus query position, (batch or 1, T, S)."""
    checks.integers("query_positions", query_positions)
    checks.integers("key_positions", key_positions)
    checks.rank("query_positions", query_positions, (1, "(length,)"), (2, "(batch, length)"))
    checks.rank("key_positions", key_positions, (len(query_positions.shape), "of the same rank as `query_positions`"))
    checks.broadcasts("key_positions", key_positions, *query_positions.shape[:-1], key_positions.shape[-1])
    if len(query_positions.shape) == 1:
        query_positions, key_positions = query_positions[None], key_positions[None]
    return ops.expand_dims(key_positions, 1) - ops.expand_dims(query_positions, 2)
