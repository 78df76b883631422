"""Options that change without another compilation: the floats of samplers and processors become tensors.

A frozen dataclass whose floats stand in no condition declares this by `dynamic_parameters = True`. Its type and its
other fields belong to the compiled loop.
"""

import copy
import dataclasses
import numbers

import numpy as np
from keras import ops

from keras_txf.checks import short_repr


def split_parameters(part):
    """A hashable key of all that a compiled loop depends on, and the dynamic floats by their names."""
    if hasattr(part, "split_parameters"):
        return part.split_parameters()
    if not getattr(part, "dynamic_parameters", False):
        return part, {}
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    floats = {name: value for name, value in values.items() if isinstance(value, float)}
    return (type(part), *((name, float if name in floats else value) for name, value in values.items())), floats


def with_parameters(part, parameters):
    """A copy of a sampler or processor with other floats in some of its fields, such as tensors."""
    if not parameters:
        return part
    part = copy.copy(part)
    set_fields(part, **parameters)
    return part


def number(name, value, is_valid, expected):
    """Checks a number and returns it as float. A scalar tensor, from a compiled loop, is returned as it is."""
    if ops.is_tensor(value):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not is_valid(value):
        raise ValueError(f"`{name}` must be {expected}; received {short_repr(value)}.")
    return float(value)


def is_positive(value):
    """Whether a number is positive and finite in float32."""
    return float(np.finfo("float32").tiny) <= value <= float(np.finfo("float32").max)


def is_finite(value):
    """Whether a number is finite in float32."""
    return abs(value) <= float(np.finfo("float32").max)


def is_temperature(value):
    return value == 0 or is_positive(value)


def set_fields(instance, **values):
    """Sets fields of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def is_zero(value):
    """Whether this is the number 0. The value of a tensor is unknown while a loop is compiled: False."""
    return isinstance(value, numbers.Real) and value == 0
