"""Bicubic interpolation of a grid of vectors, as two matrix products."""

from keras import ops

from keras_txf.ops.numbers import wide_dtype, widen

_SHARPNESS = -0.75  # of the cubic, as PyTorch and OpenCV have it


def interpolate_grid(grid, rows, columns):
    """Resizes a grid as PyTorch's `interpolate(mode="bicubic", align_corners=False)` does an image.

    A grid of the same size stays as it is. Smaller ones are sampled, without smoothing first.

    Args:
        grid: (height, width, dim), of known sizes.
        rows, columns: the new height and width, integers or scalar tensors.

    Returns:
        (rows, columns, dim), float32, or float64 for a grid of it.

    Reference:
        [Cubic convolution interpolation](https://doi.org/10.1109/TASSP.1981.1163711).
    """
    height, width, dim = grid.shape
    flat, dtype = ops.reshape(widen(grid), (height, width * dim)), wide_dtype(grid.dtype)
    tall = ops.reshape(ops.matmul(_weights(height, rows, dtype), flat), (rows, width, dim))
    return ops.matmul(_weights(width, columns, dtype), tall)


def _weights(old, new, dtype):
    """(new, old): how much each old place counts at each new one."""
    centre = ops.cast(ops.arange(new, dtype="int32"), dtype) + 0.5
    place = centre * (old / ops.cast(new, dtype)) - 0.5
    before = ops.floor(place)
    beyond = place - before
    total = 0.0
    for offset, cubic in ((-1, _far), (0, _near), (1, _near), (2, _far)):
        index = ops.clip(ops.cast(before, "int32") + offset, 0, old - 1)  # the edge goes on outside
        total = total + cubic(ops.abs(beyond - offset))[:, None] * ops.one_hot(index, old, dtype=dtype)
    return total


def _near(x):
    """The cubic at distances up to 1."""
    return ((_SHARPNESS + 2) * x - (_SHARPNESS + 3)) * x * x + 1


def _far(x):
    """The cubic at distances from 1 to 2."""
    return _SHARPNESS * (((x - 5) * x + 8) * x - 4)
