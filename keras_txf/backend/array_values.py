"""The values of a variable from an array of a file, with few copies."""

import keras
import numpy as np
from keras import ops

ROWS = 16  # of a matrix that are transposed at once


def tensor_of(array, dtype):
    """Returns a tensor of Keras' backend, of the values of an object that converts to an array of the dtype.

    TensorFlow copies an array before it makes its own copy, against changes, but not such an object. JAX copies the
    object twice, and an array once at most. PyTorch takes no bfloat16 from NumPy, and Keras goes by float32.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return ops.convert_to_tensor(np.asarray(array), dtype)
    if backend == "torch" and keras.backend.standardize_dtype(dtype) == "bfloat16":
        import torch

        words = np.require(np.asarray(array).view("int16"), requirements="W")
        return ops.convert_to_tensor(torch.from_numpy(words).view(torch.bfloat16), dtype)
    return ops.convert_to_tensor(array, dtype)


def in_order(array):
    """Returns the array, its numbers side by side as the shape says.

    A transposed matrix of 2048 by 2048 in bfloat16 takes NumPy 10 s for a gigabyte, and 0.4 s with some rows at once
    and numbers of a type of NumPy's own.
    """
    if array.flags.c_contiguous:
        return array
    words = array.view(f"u{array.itemsize}")  # a type of the same size, which NumPy copies faster than bfloat16
    if words.ndim != 2 or not words.flags.f_contiguous:
        return np.ascontiguousarray(words).view(array.dtype)
    ordered = np.empty(words.shape, words.dtype)
    for start in range(0, words.shape[1], ROWS):
        ordered[:, start : start + ROWS] = words[:, start : start + ROWS]
    return ordered.view(array.dtype)
