"""Where the weights lie while tokens are generated: as XLA's products on a CPU read them fastest.

A product of few rows takes as long as its kernel takes to be read, and that depends on how it lies. So the
kernels that gain from it are copied, once for each call of `generate`: what that takes, a few tokens gain.

- One row: the kernels of queries, keys and values lie side by side, as one product reads them faster than
  three; tall kernels lie transposed, as long rows are read faster than short ones.
- Several rows: a table that serves in reverse lies transposed, as the kernel that it then is. Many rows gain
  a twentieth from it, which is not worth its memory.
"""

import itertools

from keras import ops

from keras_txf.generation.compilers import compiles_for_cpu
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.caching import Step

SMALLEST = 2**16  # numbers in a kernel that is worth a copy
FEW = 16  # rows


def choose_layouts(step, rows):
    """The layouts for a step model that multiplies so many rows, a list of `SideBySide`, `Transposed` and `Table`."""
    if not compiles_for_cpu() or not isinstance(rows, int) or rows > FEW:
        return []
    if rows > 1:
        head = "logits" in {layer.name for layer in step.layers}
        embeddings = [layer for layer in step.layers if isinstance(layer, PositionalEmbedding)]
        tables = [layer.token for layer in embeddings if layer.vocab_size is not None]
        return [Table(table) for table in tables if not head and _is_plain(table, table.input_dim, table.output_dim)]
    layouts = []
    for block in [layer.block for layer in step.layers if isinstance(layer, Step)]:
        attention, last = block.attention, block.feed_forward.output_dense
        projections = (attention.query, attention.key, attention.value)
        if all(_is_plain(projection, *_shape(projection)) for projection in projections):
            layouts.append(SideBySide(projections))
        height, width = _shape(last)
        if _is_plain(last, height, width) and height >= 2 * width:
            layouts.append(Transposed(last))
    return layouts


def _is_plain(layer, height, width):
    return layer.quantization_mode is None and height * width >= SMALLEST


def _shape(projection):
    """Of its kernel, which itself is computed at each look where there is LoRA."""
    return projection.input_spec.axes[-1], projection.units


class SideBySide:
    """The kernels of several projections of the same inputs as one, which a compiler multiplies once."""

    def __init__(self, projections):
        self.projections = projections

    def matrix(self):
        kernels = [ops.cast(projection.kernel, projection.compute_dtype) for projection in self.projections]
        return ops.concatenate(kernels, axis=1)

    def products(self, matrix):
        """For each projection by its id a function of its inputs."""
        ends = [0, *itertools.accumulate(projection.units for projection in self.projections)]

        def product(projection, columns):
            return lambda x: _add_bias(ops.matmul(x, matrix)[..., columns], projection)

        return {
            id(projection): product(projection, slice(*bounds))
            for projection, bounds in zip(self.projections, itertools.pairwise(ends), strict=True)
        }


class Transposed:
    """A projection of one row."""

    def __init__(self, projection):
        self.projection = projection

    def matrix(self):
        return ops.transpose(ops.cast(self.projection.kernel, self.projection.compute_dtype))

    def products(self, matrix):
        def product(x):
            column = ops.matmul(matrix, ops.reshape(x, (-1, 1)))
            return _add_bias(ops.reshape(column, (*x.shape[:-1], -1)), self.projection)

        return {id(self.projection): product}


class Table:
    """An embedding in reverse."""

    def __init__(self, embedding):
        self.embedding = embedding

    def matrix(self):
        return ops.transpose(ops.cast(self.embedding.embeddings, self.embedding.compute_dtype))

    def products(self, matrix):
        return {id(self.embedding): lambda x: ops.matmul(x, matrix)}


def _add_bias(x, projection):
    return x if projection.bias is None else x + ops.cast(projection.bias, x.dtype)
