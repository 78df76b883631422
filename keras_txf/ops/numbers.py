"""Infinite numbers and NaN that are no constants.

TensorFlow's `enable_check_numerics` stops at every tensor with NaN or infinity, a constant too. The two functions here
return such a number only where something is wrong or missing.
"""

import numpy as np
from keras import ops

LOWEST = float(np.finfo("float32").min)


def nan_unless(valid, dtype="float32"):
    """0 where a bool tensor is True, NaN elsewhere."""
    return ops.log(2 * ops.cast(valid, dtype) - 1)


def minus_infinity_unless(exists):
    """0 where a bool tensor is True, -inf elsewhere, float32."""
    return ops.log(ops.cast(exists, "float32"))
