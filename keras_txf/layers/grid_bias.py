"""GridBias: relative positions of the patches of an image."""

from keras import ops

from keras_txf import checks
from keras_txf.layers.serialization import register
from keras_txf.layers.table_bias import TableBias


@register
class GridBias(TableBias):
    """A learned bias for each head and each offset between two patches, by rows and columns; BEiT has it.

    Position 0 is the class token, which has three biases of its own: to a patch, from a patch, to itself. The other
    positions are the patches, row by row.

    Args:
        num_heads: number of query heads.
        grid: rows and columns of patches, a pair.

    Reference:
        [BEiT](https://arxiv.org/abs/2106.08254); [Swin](https://arxiv.org/abs/2103.14030), section 3.2.
    """

    def __init__(self, num_heads, grid, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.grid = checks.pair("grid", grid)

    def table_size(self):
        return (2 * self.grid[0] - 1) * (2 * self.grid[1] - 1) + 3

    def rotate(self, x, positions):
        self.check_heads(x.shape[1], x.shape[-1])
        return x

    def check_heads(self, length, head_dim):
        """Refuses another length than that of the grid."""
        expected = self.grid[0] * self.grid[1] + 1
        if length != expected:
            raise ValueError(
                f"`inputs` must have the length {expected}, a class token and the patches of grid={self.grid}; "
                f"received {length}: these positions are of images of one size."
            )

    def rows(self, query_positions, key_positions):
        query, key = (ops.cast(positions, "int32") for positions in (query_positions, key_positions))
        if len(query.shape) == 1:
            query, key = query[None], key[None]
        query, key = query[:, :, None], key[:, None, :]
        rows, columns = self.grid
        down = (query - 1) // columns - (key - 1) // columns + rows - 1
        across = (query - 1) % columns - (key - 1) % columns + columns - 1
        found = down * (2 * columns - 1) + across
        from_class, to_class, itself = (self.table_size() - count for count in (3, 2, 1))
        found = ops.where(query == 0, from_class, found)
        found = ops.where(key == 0, to_class, found)
        return ops.where(ops.logical_and(query == 0, key == 0), itself, found)
