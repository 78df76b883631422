"""Sinusoids, ALiBi, buckets of distances, and biases of positions. Constants are float64.

The module `rotary` has rotary positions.

Legend: B batch, T length, N heads, H head dim.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from keras import ops

from keras_txf.ops.masks import pad_to, slice_axis
from keras_txf.ops.tensors import at_least, at_most, wide_dtype, widen


def sinusoid(positions, dim, interleaved=True, dtype="float32"):
    """The paper's positions: sin at even and cos at odd features, wavelengths 2π to 10,000 · 2π.

    Args:
        positions: (T,) or (B, T), integers or floats.
        dim: number of features.
        interleaved: False: all sines first, then all cosines, as in Tensor2Tensor, the code of the paper.
        dtype: "float32" or "float64".

    Returns:
        (T, dim) or (B, T, dim), of `dtype`.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.5.
    """
    pairs = (dim + 1) // 2
    frequencies = 10000.0 ** (-2.0 * np.arange(pairs) / dim)
    angles = angles_of(positions, frequencies, dtype)
    if not interleaved:
        return ops.concatenate([ops.sin(angles), ops.cos(angles)[..., : dim - pairs]], axis=-1)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    waves = ops.reshape(waves, (*ops.shape(positions), 2 * pairs))
    return waves[..., :dim]


def inclusive_sinusoid(positions, dim, first=2, dtype="float32"):
    """Sinusoids whose longest wavelength is 10,000 · 2π exactly, as in fairseq, where 2 is the first position.

    All sines precede all cosines; if `dim` is odd, the last feature is 0.

    Args:
        positions: (T,) or (B, T), integers or floats, 0 for the first token.
        dim: number of features, at least 4.
        first: the position of the first token; 0 for the vectors of Whisper.
        dtype: "float32" or "float64".

    Returns:
        (T, dim) or (B, T, dim), of `dtype`.

    Reference:
        [Beyond English-Centric Multilingual Machine Translation](https://arxiv.org/abs/2010.11125).
    """
    pairs = dim // 2
    frequencies = 10000.0 ** (-np.arange(pairs) / (pairs - 1))
    angles = angles_of(ops.cast(positions, dtype) + first, frequencies, dtype)
    zeros = [ops.zeros_like(angles[..., :1])] if dim % 2 else []
    return ops.concatenate([ops.sin(angles), ops.cos(angles), *zeros], axis=-1)


def angles_of(positions, frequencies, dtype):
    return ops.expand_dims(ops.cast(positions, dtype), -1) * ops.cast(ops.convert_to_tensor(frequencies, dtype), dtype)


def alibi_slopes(num_heads):
    """Returns a slope for each head: a geometric sequence.

    Heads beyond a power of two take every other slope of the next power's sequence.

    Returns:
        NumPy float64 (N,).

    Reference:
        [Train Short, Test Long](https://arxiv.org/abs/2108.12409).
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
    extra = 2.0 ** (-4 / power * np.arange(1, 2 * (num_heads - power), 2))
    return np.concatenate([slopes, extra])


def relative_buckets(distance, bidirectional, num_buckets, max_distance):
    """Returns T5's buckets: the near half holds one distance each, the far half grows logarithmically.

    Args:
        distance: int, key position minus query position.
        bidirectional: whether later keys get half of the buckets; otherwise they share bucket 0.
        num_buckets: number of buckets.
        max_distance: distances from this one on share the last bucket.

    Returns:
        int32, the shape of `distance`.

    Reference:
        [T5](https://arxiv.org/abs/1910.10683).
    """
    if bidirectional:
        num_buckets //= 2
        offset = ops.cast(distance > 0, "int32") * num_buckets
        distance = ops.abs(distance)
    else:
        offset = 0
        distance = at_least(-distance, 0)
    table = _bucket_table(num_buckets, max_distance)
    nearest = ops.take(table, at_most(distance, max_distance), axis=0)
    return ops.cast(offset + nearest, "int32")


def _bucket_table(num_buckets, max_distance):
    """Returns the bucket of each distance from 0 to `max_distance`, computed in float32 as in every T5."""
    exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    ratio = np.maximum(distances, 1).astype("float32") / np.float32(exact)
    steps = np.log(ratio) / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + steps.astype("int32"), num_buckets - 1)
    return np.where(distances < exact, distances, far).astype("int32")


def disentangled_buckets(max_distance, num_buckets=None):
    """Returns DeBERTa's bucket of each distance, query position minus key position.

    Without `num_buckets` each distance has its own bucket. With it the near half of a side's buckets hold one distance
    each, and the far half grow logarithmically up to `max_distance`. A distance beyond `max_distance` is in the last
    bucket of its side.

    Args:
        max_distance: the longest distance.
        num_buckets: number of buckets of both sides, a multiple of 4; None: 2 * `max_distance`.

    Returns:
        NumPy int32 (2 * max_distance + 1,), the buckets of the distances from -max_distance to max_distance.

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), equation 3; its version 2 for the logarithm.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    side = max_distance
    if num_buckets is not None:
        side = num_buckets // 2
        distances = np.sign(distances) * _bucket_of_length(np.abs(distances), side // 2, max_distance)
    return np.clip(distances + side, 0, 2 * side - 1).astype("int32")


def _bucket_of_length(lengths, exact, max_distance):
    """Returns the buckets of one side's distances, computed in float32 as in every DeBERTa.

    The last bucket is beyond the side.
    """
    ratio = np.maximum(lengths, 1).astype("float32") / np.float32(exact)
    steps = np.log(ratio) / np.log(np.float32((max_distance - 1) / exact)) * np.float32(exact - 1)
    return np.where(lengths <= exact, lengths, np.ceil(steps) + exact)


_SHARPNESS = -0.75  # of the cubic, as in PyTorch and OpenCV


def interpolate_grid(grid, rows, columns):
    """Resizes a grid as PyTorch's `interpolate(mode="bicubic", align_corners=False)` does an image.

    A grid of the same size does not change. A smaller grid is sampled, without smoothing first.

    Args:
        grid: (height, width, dim), of known sizes.
        rows, columns: the new height and width, integers or scalar tensors.

    Returns:
        (rows, columns, dim), float32, or float64 for a float64 grid.

    Reference:
        [Cubic convolution interpolation](https://doi.org/10.1109/TASSP.1981.1163711).
    """
    height, width, dim = grid.shape
    flat, dtype = ops.reshape(widen(grid), (height, width * dim)), wide_dtype(grid.dtype)
    tall = ops.reshape(ops.matmul(_weights(height, rows, dtype), flat), (rows, width, dim))
    return ops.matmul(_weights(width, columns, dtype), tall)


def _weights(old, new, dtype):
    """Returns the weight (new, old) of each old index at each new index."""
    centre = ops.cast(ops.arange(new, dtype="int32"), dtype) + 0.5
    coordinate = centre * (old / ops.cast(new, dtype)) - 0.5
    before = ops.floor(coordinate)
    beyond = coordinate - before
    total = 0.0
    for offset, cubic in ((-1, _far), (0, _near), (1, _near), (2, _far)):
        index = ops.clip(ops.cast(before, "int32") + offset, 0, old - 1)  # the edge repeats outside
        total = total + cubic(ops.abs(beyond - offset))[:, None] * ops.one_hot(index, old, dtype=dtype)
    return total


def _near(x):
    """The cubic at distances up to 1."""
    return ((_SHARPNESS + 2) * x - (_SHARPNESS + 3)) * x * x + 1


def _far(x):
    """The cubic at distances from 1 to 2."""
    return _SHARPNESS * (((x - 5) * x + 8) * x - 4)


@dataclasses.dataclass
class PositionBias:
    """The bias of a position layer for queries and keys.

    Attributes:
        layer: has a method `bias(query_positions, key_positions)`. A layer whose bias has weights should also have
            `bias_weights()`, `bias_of(weights, query_positions, key_positions)` and `gradient_of_bias(upstream,
            query_positions, key_positions)`; otherwise the whole bias of long sequences is in memory.
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
        """Returns the bias (B or 1, N, T, S), or None."""
        return self.layer.bias(self.query_positions, self.key_positions)

    def padded(self, queries, keys):
        """Returns the bias for more queries and keys, up to whole blocks."""
        axis = len(self.query_positions.shape) - 1
        return dataclasses.replace(
            self,
            query_positions=pad_to(self.query_positions, queries, axis),
            key_positions=pad_to(self.key_positions, keys, axis),
        )

    def block(self, weights, first_query, first_key, queries, keys):
        """Returns the bias of numbers of queries and keys from the first ones on, or None.

        `weights` are the weights of the layer's bias.
        """
        positions = self._positions(first_query, first_key, queries, keys)
        return self.layer.bias(*positions) if weights is None else self.layer.bias_of(weights, *positions)

    def gradient(self, upstream, first_query, first_key):
        """Returns the gradient of the weights from the gradient of a block of logits (B, N, queries, keys)."""
        positions = self._positions(first_query, first_key, upstream.shape[2], upstream.shape[3])
        return self.layer.gradient_of_bias(upstream, *positions)

    def _positions(self, first_query, first_key, queries, keys):
        axis = len(self.query_positions.shape) - 1
        return (
            ops.cast(slice_axis(self.query_positions, first_query, queries, axis), "int32"),
            ops.cast(slice_axis(self.key_positions, first_key, keys, axis), "int32"),
        )


def add_bias(bias, more):
    """Returns the sum of a bias, which is a `PositionBias`, a tensor or None, and a tensor or None."""
    if more is None:
        return bias
    bias = bias.whole() if isinstance(bias, PositionBias) else bias
    return more if bias is None else bias + ops.cast(more, bias.dtype)
