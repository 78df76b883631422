"""Notes on tensors for a later reader, values of variables, and arrays of a backend's types.

A note, such as the factors of logits for a loss, is of the very tensor: a tensor computed from it has none, and a note
dies with its tensor.
"""

import weakref

import keras
import numpy as np
from keras import ops

_ATTRIBUTE = "_keras_txf_note"
_NOTES = {}  # id of a tensor that takes no attributes (a tracer of JAX) -> a weak reference to the tensor, its note


def set_note(tensor, note, *parts):
    """Notes something about a tensor; `parts` are the tensors within the note, or None."""
    parts = [part for part in parts if part is not None]
    entry = _version(tensor), [(part, _version(part)) for part in parts], note
    try:
        setattr(tensor, _ATTRIBUTE, entry)
    except AttributeError:
        key = id(tensor)
        _NOTES[key] = weakref.ref(tensor, lambda _: _NOTES.pop(key, None)), entry


def find_note(tensor):
    """Returns what is noted about a tensor; None where nothing is, or the tensor or a part has changed in place."""
    entry = getattr(tensor, _ATTRIBUTE, None)
    if entry is None:
        reference, entry = _NOTES.get(id(tensor), (None, None))
        if reference is None or reference() is not tensor:  # a later tensor may have the id of one that is gone
            return None
    version, parts, note = entry
    same = version == _version(tensor) and all(number == _version(part) for part, number in parts)
    return note if same else None


def _version(tensor):
    """PyTorch counts the changes in place of a tensor; tensors of the other backends never change."""
    return getattr(tensor, "_version", None)


def current_value(variable):
    """Returns a tensor of a variable's value, or the tensor itself.

    On TensorFlow `keras.ops.convert_to_tensor` returns the variable, and each use reads the value of its own time. On
    PyTorch the tensor is that of the variable: a later update changes it in place.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.ops.convert_to_tensor(variable)
    import tensorflow as tf

    return tf.convert_to_tensor(variable)


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
