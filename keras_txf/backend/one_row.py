"""The product of one row with a matrix, in parts: the one trick for a processor.

XLA computes the product of one row on one core of a CPU. A batch of smaller products is shared among its threads.
Decoding of one sequence, 6 layers of 384 in float32 on 2 cores, takes 2.6 ms a token with it and 3.7 without
(`benchmarks/generation.py`); of several rows it would be slower.
"""

import keras
from keras import ops

PARTS = 4
SMALLEST = 2**16  # numbers in a matrix: smaller ones gain nothing


def is_one_row(x, matrix):
    """Whether x is one row, (1, 1, D), float32, and XLA multiplies the row by a large matrix (D, U) on a CPU."""
    rows, dim, units = x.shape[:-1], *matrix.shape
    if (
        tuple(rows) != (1, 1)
        or dim % PARTS
        or dim * units < SMALLEST
        or keras.backend.standardize_dtype(x.dtype) != "float32"
    ):
        return False
    compiles_for_cpu = _COMPILES_FOR_CPU.get(keras.backend.backend())
    return compiles_for_cpu is not None and compiles_for_cpu()


def multiply_one_row(x, matrix):
    """x (1, 1, D) times a matrix (D, U), the parts of D summed in float32: (1, 1, U)."""
    dim, units = matrix.shape
    parts = ops.matmul(ops.reshape(x, (PARTS, 1, dim // PARTS)), ops.reshape(matrix, (PARTS, dim // PARTS, units)))
    return ops.sum(parts, axis=0, keepdims=True)


def _tensorflow():
    import tensorflow as tf

    return tf.inside_function() and not any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))


def _jax():
    import jax

    return jax.default_backend() == "cpu"


_COMPILES_FOR_CPU = {"tensorflow": _tensorflow, "jax": _jax}
