"""Where the weights lie while tokens are generated: as XLA's products on a CPU read them fastest.

A product of few rows takes as long as its kernel takes to be read, and that depends on how it lies. So the
kernels that gain from it are copied, once for each call of `generate`: what that takes, a few tokens gain.

- One row: XLA's threads share a large product, unless it is fused with what follows: so it is kept apart.
  They share a batch of smaller ones as well. So smaller kernels lie in parts, transposed, as long rows are
  read fastest, and those of queries, keys and values side by side. A table that serves in reverse lies so by
  itself.
- Several rows: a table that serves in reverse lies transposed, as the kernel that it then is. Many rows gain
  a twentieth from it, which is not worth its memory.
"""

import itertools

from keras import ops

from keras_txf.generation.compilers import compiles_for_cpu, unfused
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.caching import Step

SMALLEST = 2**16  # numbers in a kernel that is worth a copy, and in a part
LARGE = 2**19  # numbers in a kernel that XLA's threads share
FEW = 16  # rows


def choose_layouts(step, rows):
    """The layouts for a step model that multiplies so many rows, a list of the classes below."""
    if not compiles_for_cpu() or not isinstance(rows, int) or rows > FEW:
        return []
    table = Table if rows > 1 else TableInParts
    layouts = [table(embedding) for embedding in _tables(step)]
    if rows == 1:
        for block in [layer.block for layer in step.layers if isinstance(layer, Step)]:
            layouts += [_of_one_row(group) for group in _groups(block) if _is_plain(group, *map(_shape, group))]
    return layouts


def _tables(step):
    """Of embeddings that serve in reverse."""
    if "logits" in {layer.name for layer in step.layers}:
        return []
    embeddings = [layer for layer in step.layers if isinstance(layer, PositionalEmbedding)]
    tables = [layer.token for layer in embeddings if layer.vocab_size is not None]
    return [table for table in tables if _is_plain((table,), (table.input_dim, table.output_dim))]


def _groups(block):
    """The projections of a block, together where their inputs are the same."""
    attention, feed_forward = block.attention, block.feed_forward
    yield attention.query, attention.key, attention.value
    if block.output_projection:
        yield (attention.output_dense,)
    if block.cross_attention:
        yield (block.cross_attention_layer.query,)
        if block.output_projection:
            yield (block.cross_attention_layer.output_dense,)
    if feed_forward.gated:
        yield (feed_forward.gate,)
    yield (feed_forward.intermediate,)
    yield (feed_forward.output_dense,)


def _of_one_row(group):
    height, width = _shape(group[0])
    return Unfused(*group) if len(group) == 1 and height * width >= LARGE else Parts(group)


def _is_plain(layers, *shapes):
    size = sum(height * width for height, width in shapes)
    return size >= SMALLEST and all(layer.quantization_mode is None for layer in layers)


def _shape(projection):
    """Of its kernel, which itself is computed at each look where there is LoRA."""
    return projection.input_spec.axes[-1], projection.units


class Parts:
    """The kernels of projections of the same inputs, side by side and transposed."""

    def __init__(self, projections):
        self.projections = projections

    def matrix(self):
        kernels = [ops.cast(projection.kernel, projection.compute_dtype) for projection in self.projections]
        return _in_parts(ops.transpose(ops.concatenate(kernels, axis=1)))

    def products(self, matrix):
        """For each projection by its id a function of its inputs."""
        ends = [0, *itertools.accumulate(projection.units for projection in self.projections)]

        def product(projection, columns):
            return lambda x: _add_bias(_multiply(matrix, x)[..., columns], projection)

        return {
            id(projection): product(projection, slice(*bounds))
            for projection, bounds in zip(self.projections, itertools.pairwise(ends), strict=True)
        }


class Unfused:
    """A projection of one row whose kernel is large: it stays where it is."""

    def __init__(self, projection):
        self.projection = projection

    def matrix(self):
        return ops.cast(self.projection.kernel, self.projection.compute_dtype)

    def products(self, matrix):
        return {id(self.projection): lambda x: _add_bias(unfused(ops.matmul(x, matrix)), self.projection)}


class TableInParts:
    """An embedding in reverse, for one row."""

    def __init__(self, embedding):
        self.embedding = embedding

    def matrix(self):
        return _in_parts(ops.cast(self.embedding.embeddings, self.embedding.compute_dtype))

    def products(self, matrix):
        return {id(self.embedding): lambda x: _multiply(matrix, x)}


class Table:
    """An embedding in reverse, for several rows."""

    def __init__(self, embedding):
        self.embedding = embedding

    def matrix(self):
        return ops.transpose(ops.cast(self.embedding.embeddings, self.embedding.compute_dtype))

    def products(self, matrix):
        return {id(self.embedding): lambda x: ops.matmul(x, matrix)}


def _in_parts(matrix):
    """(U, D) -> (parts, U / parts, D), as many as divide U into parts that are no smaller than they should be."""
    units, dim = matrix.shape
    most = max(1, units * dim // SMALLEST)
    parts = max(number for number in range(1, min(most, units) + 1) if units % number == 0)
    return ops.reshape(matrix, (parts, units // parts, dim))


def _multiply(parts, x):
    """Kernels in parts, and x of one row (1, 1, D) -> (1, 1, U)."""
    columns = ops.broadcast_to(ops.reshape(x, (1, -1, 1)), (parts.shape[0], parts.shape[2], 1))
    return ops.reshape(unfused(ops.matmul(parts, columns)), (*ops.shape(x)[:-1], parts.shape[0] * parts.shape[1]))


def _add_bias(x, projection):
    return x if projection.bias is None else x + ops.cast(projection.bias, x.dtype)
