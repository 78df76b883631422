"""Variables that begin with the numbers of a file.

A builder draws random numbers for its weights. For a checkpoint they would be drawn in vain: it takes time, and memory for
the old value beside the new one; and a config.json with a size that no machine holds would be believed before its tensors
are looked at. Keras can put the values of variables off; this file alone knows how.
"""

import contextlib

import keras
import numpy as np
from keras.src.backend.common import global_state

WAITING = "uninitialized_variables"  # Keras' own list


@contextlib.contextmanager
def without_values():
    """What is built in this scope has variables with shapes and without values. Gives the list of them."""
    before, made = global_state.get_global_attribute(WAITING), []
    global_state.set_global_attribute(WAITING, made)
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield made
    finally:  # in Keras' list, it would give them values after the next such scope of anyone
        global_state.set_global_attribute(WAITING, before)


def give_value(variable, held):
    """The first value of a variable, from a list with an array of its shape, which is taken out of it."""
    value = Converted(held, variable.dtype)
    if variable._value is not None:  # of a layer that was built before
        variable.assign(keras.ops.convert_to_tensor(value, variable.dtype))
        return
    variable._initializer = lambda shape, dtype: keras.ops.convert_to_tensor(value, dtype)
    variable._deferred_initialize()


class Converted:
    """An array that is of another type when a backend asks for it, once.

    Of an array itself TensorFlow first makes a copy, lest it changes, and then its own; and both of them beside the
    file's numbers would be the most memory that loading takes.
    """

    def __init__(self, held, dtype):
        self.held = held
        self.dtype = np.dtype(dtype)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.held.pop(0), dtype or self.dtype, order="C")


def give_values(variables):
    """Those of their layers' initializers, to the variables that have none yet."""
    for variable in variables:
        if variable._value is None:
            variable._deferred_initialize()
