"""The table language: it maps the weights of a model to the tensors of a checkpoint and their layouts.

A family's table maps paths of our layers to modules of the checkpoint, with {i} for the number of a block:

    "encoder_{i}/attention/query": "encoder.layer.{i}.attention.self.query"

The weights of the layer follow: its kernel is `...query.weight`, transposed, and its bias is `...query.bias`. The path
of a weight maps to the tensor of exactly that name. A `Tensor` describes other layouts: a module that stacks several of
our layers, or, with {e} in the name, a weight (E, ...) that has a tensor for each expert. Each transform has an
inverse, so one table both loads and saves.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
from keras import ops

from keras_txf.checks import short_repr

# The last part of our weight's path -> the last part of the tensor's name.
SUFFIXES = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "scale": "weight",
    "bias": "bias",
    "beta": "bias",
}


@dataclasses.dataclass(frozen=True)
class Transform:
    """A transform from tensor to weight, `read`, and its inverse, `write`."""

    read: Callable
    write: Callable
    skipped: int = 0  # number of first rows of a table that do not become weights
    outputs: int = -1  # axis of the tensor with the outputs of a layer, along which a module concatenates layers


SAME = Transform(lambda x: x, lambda x: x)
TRANSPOSED = Transform(np.transpose, np.transpose, outputs=0)
EACH_TRANSPOSED = Transform(*[lambda x: np.swapaxes(x, 1, 2)] * 2, outputs=1)  # the matrix of each expert
ONE_ROW = Transform(lambda x: x[0], lambda x: x[None])
DEPTHWISE = Transform(lambda x: np.transpose(x[:, 0]), lambda x: np.transpose(x)[:, None])  # (C, 1, K) <-> (K, C)


def skip(rows):
    """Returns the transform of a table whose first rows are not positions of real tokens."""
    return Transform(lambda x: x[rows:], lambda x: np.concatenate([np.zeros((rows, *x.shape[1:]), x.dtype), x]), rows)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A module or tensor of the checkpoint, and its layout.

    Args:
        name: name of the module or tensor, with {i} for the number of a block, {e} for the number of an expert.
        kernel: transform of a kernel; default transposed.
        other: transform of the other weights.
        part, parts: index and number of our layers in a module that concatenates several.
        groups: number of groups of the outputs of such a module; each group has its share of every layer.
        inner: whether the name has the prefix of the body.
    """

    name: str
    kernel: Transform = TRANSPOSED
    other: Transform = SAME
    part: int = 0
    parts: int = 1
    groups: int = 1
    inner: bool = False


def as_tensor(row):
    return row if isinstance(row, Tensor) else Tensor(row)


def stacked(name, paths, kernel=TRANSPOSED, groups=1, other=SAME):
    """Rows for layers that a module concatenates in this order, in each of its groups."""
    rows = (Tensor(name, kernel, other, part, len(paths), groups) for part in range(len(paths)))
    return dict(zip(paths, rows))


PROJECTIONS = ("query", "key", "value", "output")
OUT_PROJ = ("q_proj", "k_proj", "v_proj", "out_proj")


def projections(path, name, theirs=("q_proj", "k_proj", "v_proj", "o_proj")):
    """Rows for the four projections of an attention, each with its own module."""
    return {f"{path}/{ours}": f"{name}.{module}" for ours, module in zip(PROJECTIONS, theirs)}


def query_key_value(name, groups=1, kernel=TRANSPOSED, path="decoder_{i}/attention"):
    """Rows for the projections of queries, keys and values of an attention, which one module concatenates."""
    return stacked(name, [f"{path}/{part}" for part in ("query", "key", "value")], kernel, groups)


class Expert:
    """One expert's share of a weight (E, ...), used like a variable."""

    def __init__(self, stack, number):
        self.stack, self.number = stack, number
        self.path, self.dtype, self.shape = stack.path, stack.dtype, tuple(stack.shape[1:])

    def __array__(self, dtype=None, copy=None):
        value = ops.convert_to_numpy(self.stack[self.number])
        return value if dtype is None else value.astype(dtype)


@dataclasses.dataclass
class Link:
    """A tensor of the checkpoint and the weights of its parts."""

    name: str
    transform: Transform
    inner: bool
    variables: list
    groups: int = 1

    def shape(self):
        """Returns the shape of the tensor."""
        like = [self.transform.write(np.broadcast_to(np.float32(0), variable.shape)) for variable in self.variables]
        if len(like) == 1:
            return like[0].shape
        shape, axis = list(like[0].shape), self._axis(like[0])
        shape[axis] = sum(part.shape[axis] for part in like)
        return tuple(shape)

    def fits(self, shape):
        """Whether a tensor of this shape holds the variables.

        Computes with shapes alone: arrays of the sizes in a wrong config.json may exceed the memory.
        """
        try:
            values = self.read(np.broadcast_to(np.float32(0), shape))
        except (ValueError, IndexError):  # the shape cannot be transposed or split
            return False
        same = all(value.shape == tuple(variable.shape) for value, variable in zip(values, self.variables, strict=True))
        return same and self.shape() == shape

    def read(self, tensor):
        """Converts the tensor to the values of the variables."""
        if len(self.variables) == 1:
            return [self.transform.read(tensor)]
        return [self.transform.read(part) for part in self.split(tensor, self._axis(tensor))]

    def write(self, values):
        """Converts the values of the variables to the tensor."""
        parts = [self.transform.write(value) for value in values]
        return self.join(parts, self._axis(parts[0])) if len(parts) > 1 else parts[0]

    def split(self, array, axis):
        """Divides an axis of an array, the outputs of the module, among its layers."""
        ends = np.cumsum([variable.shape[-1] // self.groups for variable in self.variables])[:-1]
        parts = np.split(_in_groups(array, axis, self.groups), ends, axis + 1)
        return [part.reshape(*array.shape[:axis], -1, *array.shape[axis + 1 :]) for part in parts]

    def join(self, parts, axis):
        """Concatenates the outputs of the layers, on an axis of their arrays, to the outputs of the module."""
        shape = parts[0].shape
        joined = np.concatenate([_in_groups(part, axis, self.groups) for part in parts], axis + 1)
        return joined.reshape(*shape[:axis], -1, *shape[axis + 1 :])

    def _axis(self, tensor):
        return self.transform.outputs % tensor.ndim


def _in_groups(array, axis, groups):
    return array.reshape(*array.shape[:axis], groups, -1, *array.shape[axis + 1 :])


def links(table, variables):
    """Returns a list of `Link`s, one for each tensor of a model's weights.

    Args:
        table: dict of our paths -> names or `Tensor`.
        variables: the model's weights.

    Raises:
        ValueError: weights that the table does not name, or a tensor of which the model lacks a part.
    """
    rows = [(_pattern(path), as_tensor(row)) for path, row in table.items()]
    by_name, unknown = {}, []
    for variable in variables:
        match = _find(rows, variable.path)
        if match is None:
            unknown.append(variable.path)
            continue
        name, transform, tensor = match
        if "{e}" in name:
            for e in range(variable.shape[0]):
                own = name.replace("{e}", str(e))
                by_name[own] = Link(own, transform, tensor.inner, [Expert(variable, e)])
            continue
        link = by_name.setdefault(name, Link(name, transform, tensor.inner, [None] * tensor.parts, tensor.groups))
        link.variables[tensor.part] = variable
    if unknown:
        raise ValueError(
            f"The model has weights that its checkpoint's family has no tensors for: {short_repr(unknown)}."
        )
    for name, link in by_name.items():
        if any(variable is None for variable in link.variables):  # not `in`, which compares values on PyTorch
            raise ValueError(
                f"The model lacks some of the {len(link.variables)} weights that make up {short_repr(name)}."
            )
    return list(by_name.values())


def _pattern(path):
    return re.compile(re.escape(path).replace(r"\{i\}", r"(\d+)"))


def _find(rows, path):
    """Returns the name of the tensor of a weight, its transform and its row."""
    layer, _, weight = path.rpartition("/")
    for pattern, tensor in rows:
        exact, match = pattern.fullmatch(path), pattern.fullmatch(layer)
        if exact or (match and weight in SUFFIXES):
            number = (exact or match).groups()
            name = tensor.name.replace("{i}", number[0]) if number else tensor.name
            transform = tensor.kernel if weight == "kernel" else tensor.other
            return (name if exact else f"{name}.{SUFFIXES[weight]}"), transform, tensor
    return None
