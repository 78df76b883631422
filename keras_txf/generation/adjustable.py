"""Options that may change without another compilation: the floats of samplers and processors become tensors.

A frozen dataclass whose floats stand anywhere but in a condition says so by `adjustable = True`. What else
it holds, and its type, belong to what was compiled.
"""

import copy
import dataclasses
import numbers

import numpy as np
from keras import ops

from keras_txf.checks import short_repr


def split(part):
    """What a compiled function depends on, hashable, and the numbers that it may be given, by name."""
    if not getattr(part, "adjustable", False):
        return part, {}
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    floats = {name: value for name, value in values.items() if isinstance(value, float)}
    return (type(part), *((name, float if name in floats else value) for name, value in values.items())), floats


def join(part, floats):
    """The same part with other numbers in place of its own, such as tensors."""
    if not floats:
        return part
    part = copy.copy(part)
    set_fields(part, **floats)
    return part


def number(name, value, is_valid, expected):
    """A number as float. A compiled function may put a scalar tensor in its place, which stays as it is."""
    if ops.is_tensor(value):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not is_valid(value):
        raise ValueError(f"`{name}` must be {expected}; received {short_repr(value)}.")
    return float(value)


def is_positive(value):
    """In float32, where smaller numbers are 0 and larger ones infinite."""
    return float(np.finfo("float32").tiny) <= value <= float(np.finfo("float32").max)


def is_finite(value):
    return abs(value) <= float(np.finfo("float32").max)


def is_temperature(value):
    return value == 0 or is_positive(value)


def set_fields(instance, **values):
    """Sets fields of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def is_zero(value):
    """Whether this is the number 0; of a tensor nobody knows before it runs."""
    return isinstance(value, numbers.Real) and value == 0
