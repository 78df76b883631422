"""GridBias: relative positions of the patches of an image."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.serialization import get_config, register


@register
class GridBias(keras.layers.Layer):
    """A learned bias for each head and each offset between two patches, by rows and columns; BEiT has it.

    Position 0 is the class token, which has three biases of its own: to a patch, from a patch, to itself. Those that
    follow are the patches row by row.

    Args:
        num_heads: number of query heads.
        grid: rows and columns of patches, a pair.

    Reference:
        [BEiT](https://arxiv.org/abs/2106.08254); [Swin](https://arxiv.org/abs/2103.14030), section 3.2.
    """

    names_own_weights = True  # see `make_position`

    def __init__(self, num_heads, grid, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.grid = checks.pair("grid", grid)
        self._offsets = (2 * self.grid[0] - 1) * (2 * self.grid[1] - 1)

    def build(self, *shapes):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self._offsets + 3, self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            autocast=False,
        )

    def rotate(self, x, positions):
        length = self.grid[0] * self.grid[1] + 1
        if x.shape[1] != length:
            raise ValueError(
                f"`inputs` must have the length {length}, a class token and the patches of grid={self.grid}; received "
                f"{x.shape[1]}: these positions are of images of one size."
            )
        return x

    def bias(self, query_positions, key_positions):
        return self.bias_of(self.embeddings, query_positions, key_positions)

    def bias_weights(self):
        return ops.copy(self.embeddings)  # a tensor: TensorFlow's custom gradients refuse variables

    def bias_of(self, weights, query_positions, key_positions):
        """The bias (batch or 1, heads, T, S) with weights (rows, heads) in place of the layer's own."""
        return ops.transpose(ops.take(weights, self._rows(query_positions, key_positions), axis=0), (0, 3, 1, 2))

    def gradient_of_bias(self, upstream, query_positions, key_positions):
        """The gradient (rows, heads) of the weights, from that of a bias (batch, heads, T, S)."""
        rows = self._rows(query_positions, key_positions)
        if rows.shape[0] == 1:
            upstream = ops.sum(upstream, axis=0, keepdims=True)
        upstream = ops.reshape(ops.transpose(upstream, (0, 2, 3, 1)), (-1, self.num_heads))
        return ops.segment_sum(upstream, ops.reshape(rows, (-1,)), num_segments=self._offsets + 3)

    def _rows(self, query_positions, key_positions):
        """The row of the weights for each query and key, int (batch or 1, T, S)."""
        query, key = (ops.cast(positions, "int32") for positions in (query_positions, key_positions))
        if len(query.shape) == 1:
            query, key = query[None], key[None]
        query, key = query[:, :, None], key[:, None, :]
        rows, columns = self.grid
        down = (query - 1) // columns - (key - 1) // columns + rows - 1
        across = (query - 1) % columns - (key - 1) % columns + columns - 1
        found = down * (2 * columns - 1) + across
        found = ops.where(query == 0, self._offsets, found)
        found = ops.where(key == 0, self._offsets + 1, found)
        return ops.where(ops.logical_and(query == 0, key == 0), self._offsets + 2, found)

    def get_config(self):
        return get_config(self, super().get_config())
