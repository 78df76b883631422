"""Early errors in the caller's words: the argument, what was expected, what came."""

import difflib
import numbers
import os
import pathlib
import re
import reprlib

import keras
import numpy as np

LARGEST_INTEGER = 2**31 - 1  # of int32
LARGEST = float(2**128 - 2**104)  # of float32
LONGEST = 200  # characters of a value in a message: about a line


def short_repr(value):
    """`repr(value)` for a message: one line, cut in the middle where it is longer than `LONGEST` characters."""
    try:
        text = re.sub(r"\s*\n\s*", " ", _repr.repr(value))
    except Exception:  # of an object's own, or of an integer too long for Python to print
        text = f"<{type(value).__name__}>"
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


_repr = reprlib.Repr()
_repr.maxlist = _repr.maxtuple = _repr.maxset = _repr.maxfrozenset = _repr.maxdict = _repr.maxdeque = _repr.maxarray = 20
_repr.maxstring = _repr.maxother = _repr.maxlong = LONGEST


def positive_integer(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer; received {short_repr(value)}.")
    return int(value)


def size(name, value):
    """A positive integer that tensors can be of."""
    if positive_integer(name, value) > LARGEST_INTEGER:
        raise ValueError(f"`{name}` must be a positive integer below 2**31; received {short_repr(value)}.")
    return int(value)


def positive_int32(name, value):
    if positive_integer(name, value) >= 2**31:
        raise ValueError(f"`{name}` must be below 2**31; received {short_repr(value)}.")
    return int(value)


def integer(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"`{name}` must be an integer; received {short_repr(value)}.")
    return int(value)


def integer_between(name, value, least, most):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= most:
        raise ValueError(f"`{name}` must be an integer from {least} to {most}; received {short_repr(value)}.")
    return int(value)


def pair(name, value):
    """Two positive integers, of an image's height and width; one stands for both."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    whole = all(isinstance(size, numbers.Integral) and not isinstance(size, bool) and 0 < size <= LARGEST_INTEGER for size in values)
    if len(values) != 2 or not whole:
        raise ValueError(f"`{name}` must be a positive integer or a pair of them, (height, width); received {short_repr(value)}.")
    return tuple(map(int, values))


def positive_number(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= LARGEST:
        raise ValueError(f"`{name}` must be a positive number; received {short_repr(value)}.")
    return float(value)


def finite_number(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"`{name}` must be a finite number; received {short_repr(value)}.")
    return float(value)


def boolean(name, value):
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False; received {short_repr(value)}.")
    return value


def built_model(name, value):
    if not isinstance(value, keras.Model) or not value.built:
        raise ValueError(f"`{name}` must be a built Keras model; received {short_repr(value)}.")
    return value


def rate(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a rate in [0, 1); received {short_repr(value)}.")
    return value


def fraction(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in [0, 1]; received {short_repr(value)}.")
    return float(value)


def string(name, value):
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string; received {short_repr(value)}.")
    return value


def strings(name, value):
    """A list of strings, perhaps empty."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"`{name}` must be a list of strings; received {short_repr(value)}.")
    return list(value)


def path(name, value):
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"`{name}` must be a path, a string or a pathlib.Path; received {short_repr(value)}.")
    return pathlib.Path(text)


def dtype(name, value):
    """A type of numbers or a policy of Keras, by its name or itself."""
    try:
        if isinstance(value, (str, dict, keras.DTypePolicy)) and value:
            keras.dtype_policies.get(value)
            return value
    except Exception:  # of what the name or dict holds
        pass
    raise ValueError(f"`{name}` must be the name of a dtype such as 'float32', or a policy; received {short_repr(value)}.")


def hashable(name, value):
    """What a compiled function is kept under."""
    try:
        hash(value)
    except TypeError:
        raise ValueError(
            f"`{name}` must be hashable, as functions and objects of a @dataclass(frozen=True) are; received {short_repr(value)}."
        ) from None
    return value


def optional(check, name, value, *more):
    return None if value is None else check(name, value, *more)


def one_of(name, value, choices):
    if not isinstance(value, (str, bool, type(None))) or value not in choices:
        raise ValueError(f"`{name}` must be one of {sorted(choices, key=str)}; received {short_repr(value)}.")
    return value


def divides(divisor_name, divisor, name, value):
    if value % divisor:
        raise ValueError(
            f"`{divisor_name}` must divide `{name}`; received {divisor_name}={divisor} "
            f"and {name}={value}."
        )


def rank(name, tensor, *expected):
    """`expected` holds (rank, legend) pairs, such as (3, "(batch, length, dim)")."""
    if len(tensor.shape) not in [number for number, _ in expected]:
        legends = " or ".join(legend for _, legend in expected)
        raise ValueError(f"`{name}` must have shape {legends}; received shape {tuple(tensor.shape)}.")


def known_names(kind, names, known):
    """Refuses misspelt option names and offers the nearest one."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {short_repr(near[0])}?" if near else ""
            raise ValueError(f"{short_repr(name)} is not {kind}.{hint} Known: {sorted(known)}.")


def id_below(name, value, vocab_size=None):
    """A token id: not negative and, where it is known, below the size of the vocabulary."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or not 0 <= value < (2**31 if vocab_size is None else vocab_size):
        limit = "" if vocab_size is None else f" below the vocabulary's size, {vocab_size}"
        raise ValueError(f"`{name}` must be a token id, an integer from 0 on{limit}; received {short_repr(value)}.")
    return int(value)


def ids_in_vocabulary(name, ids, vocab_size):
    """Checks NumPy ids."""
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(
            f"`{name}` must hold token ids from 0 to {vocab_size - 1}; received ids from {ids.min()} to {ids.max()}."
        )


def dense_tensor(name, value):
    """A dense tensor of numbers: one as it is, an array of nested lists; anything else is refused."""
    if isinstance(value, (list, tuple)):
        try:
            array = np.array(value)
        except Exception:  # ragged, or of what cannot be an array
            array = np.array(None)
        if array.dtype.kind == "f":
            array = array.astype("float32")
    else:
        array = value if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type) else np.array(None)
    if hasattr(array, "to_tensor"):
        raise ValueError(
            f"`{name}` must be one dense tensor; received a ragged one. A tokenizer with length='longest', or a number, gives "
            "dense ids; of others `ids.to_tensor(pad_id)`."
        )
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "biufV":  # V: bfloat16 and its like
            raise ValueError(f"`{name}` must be a tensor, an array, or nested lists of numbers of one length; received {short_repr(value)}.")
    dtype = keras.backend.standardize_dtype(array.dtype)
    if dtype == "string":
        raise ValueError(f"`{name}` must hold numbers; received a tensor of strings.")
    values = concrete(array) if dtype in ("int64", "uint64", "uint32") else None  # which Keras would cut to 32 bits
    if values is not None and values.size and (values.min() < -LARGEST_INTEGER or values.max() > LARGEST_INTEGER):
        raise ValueError(f"`{name}` must hold integers of 32 bits; received numbers from {values.min()} to {values.max()}.")
    return array


def token_ids(name, ids, vocab_size):
    """Ids are integers; whole floats pass, for Keras makes floats of them in some places, where their type tells each id."""
    dtype = keras.backend.standardize_dtype(ids.dtype)
    exact = WHOLE.get(dtype, 0) if "int" not in dtype else float("inf")
    if exact < (vocab_size or 1):
        hint = "" if dtype not in WHOLE else f", for {dtype} tells whole numbers apart to {exact} only, and vocab_size={vocab_size}"
        raise ValueError(f"`{name}` must be integers{hint}; received {dtype}.")
    values = concrete(ids)
    if values is None or not values.size:
        return
    if "float" in dtype and not (values == np.floor(values)).all():
        raise ValueError(f"`{name}` must be integers; received {dtype} with fractions, from {values.min()} to {values.max()}.")
    if vocab_size is not None:
        ids_in_vocabulary(name, values, vocab_size)


WHOLE = {"float64": 2**53, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8}  # up to where each has all whole numbers


def known_length(tensor):
    """The length of a (batch, length) tensor; None where it is open or, while Keras infers shapes, made up."""
    length = tensor.shape[1]
    return length if isinstance(length, int) and _device(tensor) != "meta" else None


def _device(tensor):
    """The kind of device of a PyTorch tensor; "cpu" on the other backends."""
    return getattr(getattr(tensor, "device", None), "type", "cpu")


def concrete(tensor):
    """The NumPy value of a tensor that has one here and now on the host; None while a graph is traced."""
    if _device(tensor) != "cpu":
        return None  # on a GPU, reading it would wait for the device
    try:
        return keras.ops.convert_to_numpy(tensor)
    except Exception:  # each backend has its own error for a tensor without a value
        return None


def tensor(name, value):
    """The tensor of what can be one."""
    try:
        tensor = keras.ops.convert_to_tensor(value)
        keras.backend.standardize_dtype(tensor.dtype)
    except Exception:  # each backend has its own
        raise ValueError(f"`{name}` must be a tensor, an array or even rows of numbers; received {short_repr(value)}.") from None
    return tensor


def number_tensor(name, value):
    """The tensor of integers, floats or Booleans."""
    converted = tensor(name, value)
    dtype = keras.backend.standardize_dtype(converted.dtype)
    if not any(kind in dtype for kind in ("int", "float", "bool")):
        raise ValueError(f"`{name}` must be numbers; received {dtype}.")
    return converted


def integers(name, tensor):
    """Floats would be rounded where a layer computes in half precision: 257 is 256 in bfloat16."""
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "int" not in dtype:
        raise ValueError(f"`{name}` must be integers; received {dtype}.")


def mask(name, tensor, *ranks):
    """Floats may be meant to be added, zero where a key is seen: they would be taken the other way round."""
    rank(name, tensor, *ranks)
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if "float" in dtype:
        raise ValueError(f"`{name}` must be bool, True at what is seen; received dtype {dtype}.")
    values = concrete(tensor) if "int" in dtype else None
    if values is not None and not np.isin(values, (0, 1)).all():
        raise ValueError(f"`{name}` must be bool, or 1 at what is seen and 0 elsewhere; received {short_repr(np.unique(values).tolist())}.")


def positions(tensor, batch, length):
    """Positions are (T,) or (B, T): a single one for several places would pass as broadcast."""
    integers("positions", tensor)
    rank("positions", tensor, (1, "(length,)"), (2, "(batch, length)"))
    broadcasts("positions", tensor, batch, length)
    received = tensor.shape[-1]
    if isinstance(received, int) and isinstance(length, int) and received != length:
        raise ValueError(f"`positions` must be {length} for each row, one a token; received shape {tuple(tensor.shape)}.")


def broadcasts(name, tensor, *expected):
    """Each axis is as expected or 1, as far as it is known. Of what rank it must be is for another check."""
    received = () if tensor is None or len(tensor.shape) > len(expected) else tuple(tensor.shape)
    pairs = zip(reversed(received), reversed(expected))
    if any(isinstance(a, int) and isinstance(b, int) and a not in (1, b) for a, b in pairs):
        raise ValueError(f"`{name}` must go with the shape {expected}; received shape {received}.")
