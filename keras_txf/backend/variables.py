"""The value that a variable has now."""

import keras


def current_value(variable):
    """Returns a tensor of a variable's value, or the tensor itself.

    On TensorFlow `keras.ops.convert_to_tensor` returns the variable, and each use reads the value of its own time. On
    PyTorch the tensor is that of the variable: a later update changes it in place.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.ops.convert_to_tensor(variable)
    import tensorflow as tf

    return tf.convert_to_tensor(variable)
