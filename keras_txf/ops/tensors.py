"""Axes of heads, and the dtypes of sums and integers under every floatx.

No constant here is infinite or NaN, because TensorFlow's `enable_check_numerics` stops at every tensor with an
infinity or a NaN. `nan_unless` and `minus_infinity_unless` return such a tensor only if a value is wrong or missing.
On JAX, Keras' `maximum` and `minimum` give a Python integer a float dtype if floatx is not float32; `at_least` and
`at_most` do not.
"""

import keras
import numpy as np
from keras import ops

LOWEST = float(np.finfo("float32").min)


def wide_dtype(dtype):
    """Returns float64 for float64, float32 for every other dtype: for norms, softmaxes, positions and other sums."""
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def widen(x):
    """Casts a float tensor to its `wide_dtype`."""
    return ops.cast(x, wide_dtype(x.dtype))


def at_least(x, lowest):
    """Returns the maximum of an integer tensor and an integer, in the dtype of `x`."""
    return ops.maximum(x, ops.cast(lowest, x.dtype))


def at_most(x, highest):
    """Returns the minimum of an integer tensor and an integer, in the dtype of `x`."""
    return ops.minimum(x, ops.cast(highest, x.dtype))


def nan_unless(valid, dtype="float32"):
    """Returns 0 where a bool tensor is True, NaN elsewhere."""
    return ops.log(2 * ops.cast(valid, dtype) - 1)


def minus_infinity_unless(exists):
    """Returns 0 where a bool tensor is True, -inf elsewhere, float32."""
    return ops.log(ops.cast(exists, "float32"))


def swap_heads(x):
    """(B, S, K, H) <-> (B, K, S, H)."""
    return ops.transpose(x, (0, 2, 1, 3))


def take_columns(x, columns):
    """Columns (C,) or (B, C) of a tensor (B, T, ...)."""
    if len(columns.shape) == 1:
        return ops.take(x, columns, axis=1)
    axes = tuple(range(2, len(x.shape)))
    return ops.take_along_axis(x, ops.expand_dims(columns, axes) if axes else columns, axis=1)


def insert_before(vectors, tokens, first, spare=0):
    """Puts vectors (B, n, ...) directly before the column `first`, int (B,), of tokens (B, T, ...).

    `spare` is a number of columns of any values before all others.
    """
    x = ops.concatenate([ops.cast(vectors, tokens.dtype), tokens], axis=1)
    number, columns = ops.shape(vectors)[1], ops.arange(spare + ops.shape(x)[1], dtype="int32")[None] - spare
    offset = columns - first[:, None]
    before = number + at_least(columns, 0)  # a token before the vectors
    return take_columns(x, ops.where(offset < 0, before, ops.where(offset < number, offset, columns)))


def batch_size(x):
    """Returns the static batch size for a reshape, or -1 if it is unknown.

    A reshape to -1 fails if the length is 0. A batch size that is read from the tensor breaks the conversion to ONNX.
    """
    return -1 if x.shape[0] is None else x.shape[0]


def group_heads(x, kv_heads):
    """(B, N, T, any) -> (B, K, N/K · T, any): concatenates the heads that share a key-value head."""
    heads = x.shape[1]
    if heads == kv_heads:
        return x
    return ops.reshape(x, (batch_size(x), kv_heads, heads // kv_heads * ops.shape(x)[2], ops.shape(x)[3]))


def ungroup_heads(x, heads, length):
    """(B, K, N/K · T, any) -> (B, N, T, any)."""
    if x.shape[1] == heads:
        return x
    return ops.reshape(x, (batch_size(x), heads, length, ops.shape(x)[-1]))
