"""The bias that a position layer adds to the logits: as a whole, or for a block of queries and keys.

Legend: B batch, T query length, S key length, N heads.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_txf.ops.masks import pad_to, slice_axis


@dataclasses.dataclass
class PositionBias:
    """The bias of a position layer for queries and keys.

    Attributes:
        layer: has a method `bias(query_positions, key_positions)`. A layer whose bias has weights has `bias_weights()`,
            `bias_of(weights, query_positions, key_positions)` and `gradient_of_bias(upstream, query_positions,
            key_positions)` too, or long sequences hold the whole bias.
        query_positions: int (T,) or (B, T).
        key_positions: int (S,) or (B, S).
    """

    layer: Any
    query_positions: Any
    key_positions: Any

    def __post_init__(self):
        self.weights = self.layer.bias_weights() if hasattr(self.layer, "bias_weights") else None
        self.in_blocks = self.weights is not None or not getattr(self.layer, "trainable_variables", ())

    def whole(self):
        """(B or 1, N, T, S), or None."""
        return self.layer.bias(self.query_positions, self.key_positions)

    def padded(self, queries, keys):
        """The same bias for more queries and keys, up to whole blocks."""
        axis = len(self.query_positions.shape) - 1
        return dataclasses.replace(
            self,
            query_positions=pad_to(self.query_positions, queries, axis),
            key_positions=pad_to(self.key_positions, keys, axis),
        )

    def block(self, weights, first_query, first_key, queries, keys):
        """The bias of so many queries and keys from the first ones on, or None; `weights` are those of the layer."""
        positions = self._positions(first_query, first_key, queries, keys)
        return self.layer.bias(*positions) if weights is None else self.layer.bias_of(weights, *positions)

    def gradient(self, upstream, first_query, first_key):
        """The gradient of the weights, from that of a block of logits (B, N, queries, keys)."""
        positions = self._positions(first_query, first_key, upstream.shape[2], upstream.shape[3])
        return self.layer.gradient_of_bias(upstream, *positions)

    def _positions(self, first_query, first_key, queries, keys):
        axis = len(self.query_positions.shape) - 1
        return (
            ops.cast(slice_axis(self.query_positions, first_query, queries, axis), "int32"),
            ops.cast(slice_axis(self.key_positions, first_key, keys, axis), "int32"),
        )


def add_bias(bias, more):
    """The sum of a `PositionBias`, a tensor or None and of a tensor or None."""
    if more is None:
        return bias
    bias = bias.whole() if isinstance(bias, PositionBias) else bias
    return more if bias is None else bias + ops.cast(more, bias.dtype)
