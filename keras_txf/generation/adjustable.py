"""Options that may change without another compilation: the floats of samplers and processors become tensors.

A frozen dataclass whose floats stand anywhere but in a condition says so by `adjustable = True`. What else
it holds, and its type, belong to what was compiled.
"""

import copy
import dataclasses


def split(part):
    """What a compiled function depends on, hashable, and the numbers that it may be given, by name."""
    if not getattr(part, "adjustable", False):
        return part, {}
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    numbers = {name: value for name, value in values.items() if isinstance(value, float)}
    return (type(part), *((name, None if name in numbers else value) for name, value in values.items())), numbers


def join(part, numbers):
    """The same part with other numbers in place of its own, such as tensors."""
    if not numbers:
        return part
    part = copy.copy(part)
    for name, value in numbers.items():
        object.__setattr__(part, name, value)
    return part
