"""Checks of values: numbers, strings, paths, choices."""

import functools
import inspect
import numbers
import os
import pathlib
import re
import reprlib

import keras

LARGEST_INTEGER = 2**31 - 1  # of int32
LARGEST = float(2**128 - 2**104)  # of float32
LONGEST = 200  # characters of a value in a message: about a line


def short_repr(value):
    """Returns `repr(value)` for a message: one line, cut in the middle beyond `LONGEST` characters."""
    try:
        text = re.sub(r"\s*\n\s*", " ", _repr.repr(value))
    except Exception:  # an error of the object's `repr`, or an integer too long for Python to print
        text = f"<{type(value).__name__}>"
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def bad_argument(name, must, received, index=None):
    """Returns the ValueError "`name` must ...; received ...", with the index of the value in a list of values."""
    where = "" if index is None else f" at index {index}"
    return ValueError(f"`{name}` must {must}; received {short_repr(received)}{where}.")


def in_one_line(error):
    """Returns the message of a layer's error, without the lines that Keras adds."""
    while str(error).startswith("Exception encountered when calling") and error.__context__ is not None:
        error = error.__context__
    return " ".join(re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(error)).split())  # TensorFlow adds names of its graph


_repr = reprlib.Repr()
_repr.maxlist = _repr.maxtuple = _repr.maxset = _repr.maxfrozenset = _repr.maxdict = _repr.maxdeque = _repr.maxarray = (
    20
)
_repr.maxstring = _repr.maxother = _repr.maxlong = LONGEST


def positive_integer(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"`{name}` must be a positive integer; received {short_repr(value)}.")
    return int(value)


def size(name, value):
    """Checks a positive integer that fits in int32, for a dimension."""
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


def int32(name, value):
    return integer_between(name, value, -(2**31), 2**31 - 1)


def integer_between(name, value, least, most):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= most:
        raise ValueError(f"`{name}` must be an integer from {least} to {most}; received {short_repr(value)}.")
    return int(value)


def count(name, value):
    return integer_between(name, value, 0, LARGEST_INTEGER)


def pair(name, value):
    """Returns height and width of an image, two positive integers, from a pair or from one integer for both."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    whole = all(
        isinstance(size, numbers.Integral) and not isinstance(size, bool) and 0 < size <= LARGEST_INTEGER
        for size in values
    )
    if len(values) != 2 or not whole:
        raise ValueError(
            f"`{name}` must be a positive integer or a pair of them, (height, width); received {short_repr(value)}."
        )
    return tuple(map(int, values))


def positive_number(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= LARGEST:
        raise ValueError(f"`{name}` must be a positive number; received {short_repr(value)}.")
    return float(value)


def switch_or_factor(name, value):
    if isinstance(value, bool):
        return value
    if not isinstance(value, numbers.Real) or not 0 < value <= LARGEST:
        raise ValueError(f"`{name}` must be True, False or a positive number; received {short_repr(value)}.")
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
    """Checks a list of strings, which may be empty."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"`{name}` must be a list of strings; received {short_repr(value)}.")
    return list(value)


def path(name, value):
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(f"`{name}` must be a path, a string or a pathlib.Path; received {short_repr(value)}.")
    return pathlib.Path(text)


def dtype(name, value):
    """Checks a dtype or a dtype policy of Keras, or the name of one."""
    try:
        if isinstance(value, (str, dict, keras.DTypePolicy)) and value:
            keras.dtype_policies.get(value)
            return value
    except Exception:  # Keras raises different errors for names and dicts
        pass
    raise ValueError(
        f"`{name}` must be the name of a dtype such as 'float32', or a policy; received {short_repr(value)}."
    )


def hashable(name, value):
    """Checks a value that is a key of a cache of compiled functions."""
    try:
        hash(value)
    except TypeError:
        raise ValueError(
            f"`{name}` must be hashable, as functions and objects of a @dataclass(frozen=True) are; received "
            f"{short_repr(value)}."
        ) from None
    return value


def optional(check, name, value, *more):
    return None if value is None else check(name, value, *more)


def or_none(check):
    """Returns a check of a value that may be None."""
    return functools.partial(optional, check)


def one_of(name, value, choices, other=""):
    """Checks a value that is one of `choices`; `other` says in words what else the argument may be."""
    if not isinstance(value, (str, bool, type(None))) or value not in choices:
        also = f", or {other}" if other else ""
        raise ValueError(f"`{name}` must be one of {sorted(choices, key=str)}{also}; received {short_repr(value)}.")
    return value


def verbosity(name, value, most=1):
    """Returns "auto" or an integer up to `most`, as Keras takes for `verbose`."""
    is_level = type(value) in (int, bool) and 0 <= value <= most
    if not is_level and not (isinstance(value, str) and value == "auto"):
        raise ValueError(f'`{name}` must be "auto" or an integer from 0 to {most}; received {short_repr(value)}.')
    return value


def divides(divisor_name, divisor, name, value):
    if value % divisor:
        raise ValueError(
            f"`{divisor_name}` must divide `{name}`; received {divisor_name}={divisor} and {name}={value}."
        )


def takes_no_arguments(name, function):
    """Checks a function that can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # classes such as `dict` have no signature: ValueError
        raise ValueError(f"`{name}` must be a function without arguments; received {short_repr(function)}.") from None


def id_below(name, value, vocab_size=None):
    """Checks a token id: not negative, and below the size of the vocabulary if it is known."""
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or not 0 <= value < (2**31 if vocab_size is None else vocab_size):
        limit = "" if vocab_size is None else f" below the vocabulary's size, {vocab_size}"
        raise ValueError(f"`{name}` must be a token id, an integer from 0 on{limit}; received {short_repr(value)}.")
    return int(value)
