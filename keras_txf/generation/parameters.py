"""What a compiled loop takes as tensors: the floats of samplers and processors, and seeds.

Options that are tensors change without another compilation. A frozen dataclass whose floats stand in no condition
declares them by `dynamic_parameters = True`. Its type and its other fields belong to the compiled loop.
"""

import copy
import dataclasses
import numbers

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr


def split_parameters(part):
    """Returns a hashable key of the values that a compiled loop depends on, and the dynamic floats by name."""
    if hasattr(part, "split_parameters"):
        return part.split_parameters()
    if not getattr(part, "dynamic_parameters", False):
        return part, {}
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    floats = {name: value for name, value in values.items() if isinstance(value, float)}
    return (type(part), *((name, float if name in floats else value) for name, value in values.items())), floats


def with_parameters(part, parameters):
    """A copy of a sampler or processor with other values in some of its fields, such as tensors."""
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
    """Whether this is the number 0. False for a tensor, whose value is unknown while a loop is compiled."""
    return isinstance(value, numbers.Real) and value == 0


DRAW_STRIDE = 2**20  # between the seeds of two draws in one step
# 2**32 divided by the golden ratio. PyTorch adds seed and step, so with a stride of 1 the steps of one seed would
# repeat the draws of other seeds.
STEP_STRIDE = 0x61C88647


def seed_state(seed):
    """The seed of a call of `generate` as a tensor, int (2,); for None a new one at each call."""
    seed = checks.optional(checks.integer, "seed", seed)
    # The modulo keeps the seed in the range that every backend accepts.
    return keras.random.SeedGenerator(None if seed is None else seed % 2**31).state.value


class StepSeed(keras.random.SeedGenerator):
    """The seeds of one step, in the form of Keras' generators. They are tensors, so a compiled loop keeps no state.

    Args:
        seed: int (2,), the seed of the call of `generate`.
        count: int (), the number of the step.
    """

    def __init__(self, seed, count):
        self.value = seed + ops.cast(ops.stack([ops.zeros_like(count), count]), seed.dtype) * STEP_STRIDE
        self.draws = 0

    def next(self, ordered=True):
        offset = self.draws * DRAW_STRIDE
        self.draws += 1
        return self.value + ops.convert_to_tensor([0, offset], self.value.dtype)
