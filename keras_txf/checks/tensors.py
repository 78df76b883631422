"""Checks of tensors: rank, dtype, ids, masks, positions."""

import keras
import numpy as np

from keras_txf.checks.values import LARGEST_INTEGER, short_repr

WHOLE = {"float64": 2**53, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8}


def rank(name, tensor, *expected):
    """Checks the rank; `expected` holds (rank, legend) pairs, such as (3, "(batch, length, dim)")."""
    if len(tensor.shape) not in [number for number, _ in expected]:
        legends = " or ".join(legend for _, legend in expected)
        raise ValueError(f"`{name}` must have shape {legends}; received shape {tuple(tensor.shape)}.")


def ids_in_vocabulary(name, ids, vocab_size):
    """Raises ValueError if NumPy ids are outside of the vocabulary."""
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(
            f"`{name}` must hold token ids from 0 to {vocab_size - 1}; received ids from {ids.min()} to {ids.max()}."
        )


def dense_tensor(name, value):
    """Returns a dense tensor of numbers, or an array of nested lists; raises ValueError for any other value."""
    if isinstance(value, (list, tuple)):
        try:
            array = np.array(value)
        except Exception:  # ragged lists, or items that fit no array
            array = np.array(None)
        if array.dtype.kind == "f":
            array = array.astype("float32")
    else:
        array = (
            value
            if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)
            else np.array(None)
        )
    if hasattr(array, "to_tensor"):
        raise ValueError(
            f"`{name}` must be one dense tensor; received a ragged one. A tokenizer with length='longest', or a "
            "number, gives dense ids; of others `ids.to_tensor(pad_id)`."
        )
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "biufV":  # V: bfloat16 and similar dtypes
            raise ValueError(
                f"`{name}` must be a tensor, an array, or nested lists of numbers of one length; received "
                f"{short_repr(value)}."
            )
    dtype = keras.backend.standardize_dtype(array.dtype)
    if dtype == "string":
        raise ValueError(f"`{name}` must hold numbers; received a tensor of strings.")
    values = concrete(array) if dtype in ("int64", "uint64", "uint32") else None  # Keras would cut them to 32 bits
    if values is not None and values.size and (values.min() < -LARGEST_INTEGER or values.max() > LARGEST_INTEGER):
        raise ValueError(
            f"`{name}` must hold integers of 32 bits; received numbers from {values.min()} to {values.max()}."
        )
    return array


def token_ids(name, ids, vocab_size):
    """Checks ids: integers, or whole floats whose dtype holds every id exactly, because Keras may cast ids."""
    dtype = keras.backend.standardize_dtype(ids.dtype)
    exact = WHOLE.get(dtype, 0) if "int" not in dtype else float("inf")
    if exact < (vocab_size or 1):
        hint = (
            "" if dtype not in WHOLE else f", because {dtype} is exact only up to {exact}, and vocab_size={vocab_size}"
        )
        raise ValueError(f"`{name}` must be integers{hint}; received {dtype}.")
    values = concrete(ids)
    if values is None or not values.size:
        return
    if "float" in dtype and not (values == np.floor(values)).all():
        raise ValueError(
            f"`{name}` must be integers; received {dtype} with fractions, from {values.min()} to {values.max()}."
        )
    if vocab_size is not None:
        ids_in_vocabulary(name, values, vocab_size)


def known_length(tensor):
    """Returns the length of a (batch, length) tensor; None if it is unknown, or Keras infers shapes with a fake one."""
    length = tensor.shape[1]
    return length if isinstance(length, int) and _device(tensor) != "meta" else None


def _device(tensor):
    """Returns the type of a PyTorch tensor's device; "cpu" on other backends."""
    return getattr(getattr(tensor, "device", None), "type", "cpu")


def concrete(tensor):
    """Returns the NumPy value of a tensor on the host; None on another device, or while a graph is traced."""
    if _device(tensor) != "cpu":
        return None  # on a GPU, reading it would wait for the device
    try:
        return keras.ops.convert_to_numpy(tensor)
    except Exception:  # each backend raises a different error for a tensor without a value
        return None


def tensor(name, value):
    """Converts a value to a tensor; raises ValueError if it cannot."""
    try:
        tensor = keras.ops.convert_to_tensor(value)
        keras.backend.standardize_dtype(tensor.dtype)
    except Exception:  # each backend raises a different error
        raise ValueError(
            f"`{name}` must be a tensor, an array or even rows of numbers; received {short_repr(value)}."
        ) from None
    return tensor


def number_tensor(name, value):
    """Converts integers, floats or Booleans to a tensor."""
    converted = tensor(name, value)
    dtype = keras.backend.standardize_dtype(converted.dtype)
    if not any(kind in dtype for kind in ("int", "float", "bool")):
        raise ValueError(f"`{name}` must be numbers; received {dtype}.")
    return converted


def integers(name, tensor):
    """Raises ValueError for floats, which a layer in half precision would round: 257 is 256 in bfloat16."""
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must be integers; received {dtype}.")


def floats(name, tensor):
    """Raises ValueError for bool and integers: a mask of them would be added as zeros and ones."""
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" not in dtype:
        raise ValueError(f"`{name}` must be floats; received {dtype}.")


def mask(name, tensor, *ranks):
    """Raises ValueError for float masks: an additive mask (0 = visible) would be read inverted."""
    rank(name, tensor, *ranks)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" in dtype:
        raise ValueError(f"`{name}` must be bool, True at what is seen; received dtype {dtype}.")
    values = concrete(tensor) if "int" in dtype else None
    if values is not None and not np.isin(values, (0, 1)).all():
        raise ValueError(
            f"`{name}` must be bool, or 1 at what is seen and 0 elsewhere; received "
            f"{short_repr(np.unique(values).tolist())}."
        )


def padding_mask(tensor, inputs, name="mask"):
    """Checks that a padding mask has a value for each token of inputs (B, T, ...); None masks nothing."""
    if tensor is not None:
        mask(name, tensor, (2, "(batch, length)"))
        broadcasts(name, tensor, *inputs.shape[:2])


def positions(tensor, batch, length):
    """Checks that positions are (T,) or (B, T); a single position for several tokens would broadcast."""
    integers("positions", tensor)
    rank("positions", tensor, (1, "(length,)"), (2, "(batch, length)"))
    broadcasts("positions", tensor, batch, length)
    received = tensor.shape[-1]
    if isinstance(received, int) and isinstance(length, int) and received != length:
        raise ValueError(
            f"`positions` must be {length} for each row, one a token; received shape {tuple(tensor.shape)}."
        )


def broadcasts(name, tensor, *expected):
    """Checks that each known axis has the expected length or 1. `rank` checks the rank."""
    received = () if tensor is None or len(tensor.shape) > len(expected) else tuple(tensor.shape)
    pairs = zip(reversed(received), reversed(expected))
    if any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs):
        raise ValueError(f"`{name}` must go with the shape {expected}; received shape {received}.")
