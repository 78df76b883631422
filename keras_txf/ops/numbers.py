"""The types of sums and of integers under every floatx, and infinite numbers and NaN that are no constants.

TensorFlow's `enable_check_numerics` stops at every tensor with NaN or infinity, a constant too. `nan_unless` and
`minus_infinity_unless` return such a number only where something is wrong or missing. On JAX, Keras' `maximum` and
`minimum` give a Python integer a float type under another floatx than float32; `at_least` and `at_most` do not.
"""

import keras
import numpy as np
from keras import ops

LOWEST = float(np.finfo("float32").min)


def wide_dtype(dtype):
    """float64 for float64, float32 for every other type: for norms, softmaxes, positions and other sums."""
    return "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"


def widen(x):
    """A float tensor in its `wide_dtype`."""
    return ops.cast(x, wide_dtype(x.dtype))


def at_least(x, lowest):
    """The larger of integers and one integer, in the type of `x`."""
    return ops.maximum(x, ops.cast(lowest, x.dtype))


def at_most(x, highest):
    """The smaller of integers and one integer, in the type of `x`."""
    return ops.minimum(x, ops.cast(highest, x.dtype))


def nan_unless(valid, dtype="float32"):
    """0 where a bool tensor is True, NaN elsewhere."""
    return ops.log(2 * ops.cast(valid, dtype) - 1)


def minus_infinity_unless(exists):
    """0 where a bool tensor is True, -inf elsewhere, float32."""
    return ops.log(ops.cast(exists, "float32"))
