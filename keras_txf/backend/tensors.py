"""Notes on tensors, values of variables, arrays of a backend's dtypes, and arrays that several processes share.

A note, such as the factors of logits for a loss, belongs to one tensor object. A tensor that is computed from it has no
note, and the note is freed with its tensor. Several processes train one model on JAX alone, after
`keras.distribution.initialize`.
"""

import weakref

import keras
import numpy as np
from keras import ops

_ATTRIBUTE = "_keras_txf_note"
_NOTES = {}  # id of a tensor that takes no attributes (a tracer of JAX) -> weak reference to the tensor, its note


def set_note(tensor, note, *parts):
    """Attaches a note to a tensor; `parts` are the tensors in the note, or None."""
    parts = [part for part in parts if part is not None]
    entry = _version(tensor), [(part, _version(part)) for part in parts], note
    try:
        setattr(tensor, _ATTRIBUTE, entry)
    except AttributeError:
        key = id(tensor)
        _NOTES[key] = weakref.ref(tensor, lambda _: _NOTES.pop(key, None)), entry


def find_note(tensor):
    """Returns the note on a tensor; None without a note, or if the tensor or a part has changed in place."""
    entry = getattr(tensor, _ATTRIBUTE, None)
    if entry is None:
        reference, entry = _NOTES.get(id(tensor), (None, None))
        if reference is None or reference() is not tensor:  # a new tensor may have the id of a freed one
            return None
    version, parts, note = entry
    same = version == _version(tensor) and all(number == _version(part) for part, number in parts)
    return note if same else None


def _version(tensor):
    """Returns PyTorch's count of in-place changes of a tensor; None on other backends, whose tensors never change."""
    return getattr(tensor, "_version", None)


def current_value(variable):
    """Returns a tensor of a variable's value, or the tensor itself.

    On TensorFlow `keras.ops.convert_to_tensor` returns the variable, and each use reads the value at that time. On
    PyTorch the result is the variable's tensor, which a later update changes in place.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.ops.convert_to_tensor(variable)
    import tensorflow as tf

    return tf.convert_to_tensor(variable)


ROWS = 16  # number of rows of a matrix that are transposed at once


def tensor_of(array, dtype):
    """Returns a tensor of Keras' backend from an object that converts to an array of the dtype.

    TensorFlow protects itself against changes of an array by an extra copy, but not for such an object. JAX copies the
    object twice, and an array at most once. PyTorch takes no bfloat16 from NumPy, so Keras converts by float32.
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
    """Returns the array in C order.

    For transposed matrices of 2048 by 2048 in bfloat16 NumPy takes 10 s for a gigabyte. With some rows at once, and
    numbers of one of NumPy's own dtypes, it takes 0.4 s.
    """
    if array.flags.c_contiguous:
        return array
    words = array.view(f"u{array.itemsize}")  # a dtype of the same size, which NumPy copies faster than bfloat16
    if words.ndim != 2 or not words.flags.f_contiguous:
        return np.ascontiguousarray(words).view(array.dtype)
    ordered = np.empty(words.shape, words.dtype)
    for start in range(0, words.shape[1], ROWS):
        ordered[:, start : start + ROWS] = words[:, start : start + ROWS]
    return ordered.view(array.dtype)


def is_first_process():
    """Whether this process writes the files that all processes share."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.process_index() == 0


def whole_array(x):
    """Converts a tensor or variable to NumPy. All processes must call it: each may hold a part of the values."""
    x = ops.convert_to_tensor(x)
    if keras.backend.backend() == "jax" and not x.is_fully_addressable and not x.is_fully_replicated:
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(x, tiled=True)
    return ops.convert_to_numpy(x)
