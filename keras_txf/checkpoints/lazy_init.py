"""Variables without initial values, which the values of a file fill.

A builder draws random initial values for its weights. For a checkpoint they would cost time, and memory beside the
values of the file; and a wrong size in config.json could exhaust the memory before the tensors are checked. Keras can
defer the values of variables.
"""

import numpy as np

from keras_txf.backend.array_values import in_order, tensor_of
from keras_txf.backend.keras_private import has_value, initialize


def give_value(variable, held):
    """Gives a variable its first value: the first array of the list `held`, which is taken out of the list."""
    value = Converted(held, variable.dtype)
    if has_value(variable):  # a layer that was built before
        variable.assign(tensor_of(value, variable.dtype))
        return
    initialize(variable, lambda shape, dtype: tensor_of(value, dtype))


class Converted:
    """An array that is converted to another dtype when a backend reads it, once.

    From a plain array TensorFlow makes a copy, against changes, and then its own tensor: both beside the array of the
    file would double the peak memory of loading.
    """

    def __init__(self, held, dtype):
        self.held = held
        self.dtype = np.dtype(dtype)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(in_order(self.held.pop(0)), dtype or self.dtype, order="C")


def give_values(variables):
    """Gives variables without a value that of their layers' initializers."""
    for variable in variables:
        if not has_value(variable):
            initialize(variable)
