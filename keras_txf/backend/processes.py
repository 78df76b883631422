"""Several processes that train one model, after `keras.distribution.initialize`, which JAX alone has."""

import keras
from keras import ops


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
