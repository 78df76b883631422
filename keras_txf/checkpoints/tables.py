"""The table language: which tensor of a checkpoint is which weight of a model, and how it lies there.

A family's table maps paths of our layers to modules of the checkpoint, with {i} for the number of a block:

    "encoder_{i}/attention/query": "encoder.layer.{i}.attention.self.query"

The layer's weights follow: its kernel is `...query.weight`, transposed, its bias `...query.bias`. A path that ends with
the weight itself goes to the tensor of exactly that name. Where numbers lie otherwise, a `Tensor` says how. Each way to
lie can be undone, so one table both loads and saves.
"""

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from keras_txf.checks import short_repr

# The last part of our weight's path -> that of the tensor.
SUFFIXES = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "scale": "weight", "bias": "bias", "beta": "bias"}


@dataclasses.dataclass(frozen=True)
class Way:
    """How a tensor becomes a weight, and back."""

    read: Callable
    write: Callable
    skipped: int = 0  # first rows of a table that become no weight


SAME = Way(lambda x: x, lambda x: x)
TRANSPOSED = Way(np.transpose, np.transpose)
PLUS_ONE = Way(lambda x: x.astype("float32") + 1, lambda x: x - 1)  # norms that multiply by 1 + weight
ONE_ROW = Way(lambda x: x[0], lambda x: x[None])


def skip(rows):
    """A table whose first rows belong to no position of a real token."""
    return Way(lambda x: x[rows:], lambda x: np.concatenate([np.zeros((rows, *x.shape[1:]), x.dtype), x]), rows)


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A module or tensor of the checkpoint, and how its numbers lie.

    Args:
        name: its name, with {i} for the number of a block.
        kernel: how a kernel lies, where it is not simply transposed.
        other: how the weights that are no kernels lie.
        part, parts: a module that holds several of our layers side by side: which of how many this is.
        inner: whether a head's module lies under the prefix of the body.
    """

    name: str
    kernel: Way = TRANSPOSED
    other: Way = SAME
    part: int = 0
    parts: int = 1
    inner: bool = False


def as_tensor(row):
    return row if isinstance(row, Tensor) else Tensor(row)


def beside(name, paths, kernel=TRANSPOSED):
    """Rows for layers that a module holds side by side, in this order."""
    return {path: Tensor(name, kernel, part=part, parts=len(paths)) for part, path in enumerate(paths)}


@dataclasses.dataclass
class Link:
    """A tensor of the checkpoint and the weights that it becomes, one for each of its parts."""

    name: str
    way: Way
    inner: bool
    variables: list

    def shape(self):
        """The tensor's."""
        like = [np.broadcast_to(np.float32(0), variable.shape) for variable in self.variables]
        return self._joined([self.way.write(x) for x in like]).shape

    def fits(self, shape):
        """Whether the variables come from a tensor of this shape.

        Asked of the tensor first, which is on the disk: arrays of the sizes in a wrong config.json may fit into no memory.
        """
        try:
            values = self.read(np.broadcast_to(np.float32(0), shape))
        except (ValueError, IndexError):  # it cannot be transposed, or taken apart
            return False
        same = all(value.shape == tuple(variable.shape) for value, variable in zip(values, self.variables, strict=True))
        return same and self.shape() == shape

    def read(self, tensor):
        """The values of the variables."""
        axis = self._axis(tensor)
        return [self.way.read(part) for part in np.split(tensor, len(self.variables), axis)]

    def write(self, values):
        """The tensor."""
        return self._joined([self.way.write(value) for value in values])

    def _joined(self, parts):
        return np.concatenate(parts, self._axis(parts[0])) if len(parts) > 1 else parts[0]

    def _axis(self, tensor):
        """That of a layer's outputs, along which layers lie side by side."""
        return 0 if self.way is TRANSPOSED else tensor.ndim - 1


def links(table, variables):
    """Each tensor that a model's weights make up, a list of `Link`.

    Args:
        table: dict of our paths -> names or `Tensor`.
        variables: the model's weights.

    Raises:
        ValueError: weights that the table does not name, or that are one part of several whose others are missing.
    """
    rows = [(_pattern(path), as_tensor(row)) for path, row in table.items()]
    found, unknown = {}, []
    for variable in variables:
        match = _find(rows, variable.path)
        if match is None:
            unknown.append(variable.path)
            continue
        name, way, tensor = match
        link = found.setdefault(name, Link(name, way, tensor.inner, [None] * tensor.parts))
        link.variables[tensor.part] = variable
    if unknown:
        raise ValueError(f"The model has weights that its checkpoint's family has no tensors for: {short_repr(unknown)}.")
    for name, link in found.items():
        if any(variable is None for variable in link.variables):  # not `in`, which asks PyTorch for equal numbers
            raise ValueError(f"The model lacks some of the {len(link.variables)} weights that make up {short_repr(name)}.")
    return list(found.values())


def _pattern(path):
    return re.compile(re.escape(path).replace(r"\{i\}", r"(\d+)"))


def _find(rows, path):
    """The tensor's name for a weight of this path, the way that it lies, and its row."""
    layer, _, weight = path.rpartition("/")
    for pattern, tensor in rows:
        exact, match = pattern.fullmatch(path), pattern.fullmatch(layer)
        if exact or (match and weight in SUFFIXES):
            number = (exact or match).groups()
            name = tensor.name.format(i=number[0]) if number else tensor.name
            way = tensor.kernel if weight == "kernel" else tensor.other
            return (name if exact else f"{name}.{SUFFIXES[weight]}"), way, tensor
    return None
