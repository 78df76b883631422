"""The graph of a functional model as one list of calls, with the calls of the models within it."""

import dataclasses
import itertools
from typing import Any

import keras
from keras import ops
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask

from keras_txf.backend.functional_graph import graph_of, nodes, runs_inline


@dataclasses.dataclass(eq=False)
class Symbol:
    """A tensor in a flat graph."""

    shape: tuple
    dtype: str


@dataclasses.dataclass
class GraphCall:
    """A call in a flat graph.

    Args:
        operation: a layer, an operation of Keras, or an `Entry`.
        args, kwargs: arguments that the graph passes, with a `Symbol` instead of each tensor.
        outputs: list of Symbols.
    """

    operation: Any
    args: tuple
    kwargs: dict
    outputs: list

    @property
    def inputs(self):
        """The Symbols among the arguments."""
        return symbols_in((self.args, self.kwargs))

    def run(self, values):
        """Calls the operation on the values of its arguments, by their Symbols; returns a list of tensors."""
        args, kwargs = with_values((self.args, self.kwargs), values)
        return call_operation(self.operation, args, kwargs)


class Entry:
    """The entry of a tensor into an inner model: casts it to the input's dtype, and sets the mask of the call."""

    name = "input"

    def __init__(self, dtype, rank):
        self.dtype, self.rank = dtype, rank

    def __call__(self, x, mask=None):
        mask = get_keras_mask(x) if mask is None else mask
        if keras.backend.standardize_dtype(x.dtype) != self.dtype:
            x = ops.cast(x, self.dtype)
        if len(x.shape) != self.rank:
            x = ops.squeeze(x, -1) if len(x.shape) > self.rank else ops.expand_dims(x, -1)
        if mask is not None:
            set_keras_mask(x, mask)
        return x


def flat_graph(model):
    """Returns the graph of a functional model as one list of calls, with the calls of inner models among them.

    Returns:
        The Symbols of the inputs, in the order of `model.inputs`; the list of `GraphCall`s, in the order in which they
        run; and the Symbols of the outputs, in the model's structure.
    """
    inputs = [Symbol(tuple(x.shape), x.dtype) for x in graph_of(model).inputs]
    calls = []
    return inputs, calls, _add_calls(model, inputs, calls)


def _add_calls(model, given, calls):
    """Adds the calls of a model on Symbols to a list; returns the model's outputs."""
    graph = graph_of(model)
    known = {id(tensor): symbol for tensor, symbol in zip(graph.inputs, given)}

    def symbol_of(x):
        return known[id(x)] if isinstance(x, keras.KerasTensor) else x

    for node in nodes(model):
        operation = node.operation
        if isinstance(operation, keras.layers.InputLayer):
            continue
        args, kwargs = keras.tree.map_structure(symbol_of, (node.arguments.args, node.arguments.kwargs))
        if runs_inline(operation):
            given = _inputs_in_order(graph_of(operation), args[0] if args else kwargs["inputs"])
            masks = keras.tree.flatten(kwargs["mask"]) if kwargs.get("mask") is not None else itertools.repeat(None)
            entered = []
            for tensor, x, mask in zip(graph_of(operation).inputs, given, masks):
                entered.append(Symbol(tuple(x.shape), tensor.dtype))
                entry = Entry(tensor.dtype, len(tensor.shape))
                calls.append(GraphCall(entry, (x,), {} if mask is None else {"mask": mask}, [entered[-1]]))
            outputs = keras.tree.flatten(_add_calls(operation, entered, calls))
        else:
            outputs = [Symbol(tuple(tensor.shape), tensor.dtype) for tensor in node.outputs]
            calls.append(GraphCall(operation, args, kwargs, outputs))
        known.update((id(tensor), symbol) for tensor, symbol in zip(node.outputs, outputs))
    return keras.tree.map_structure(symbol_of, graph._outputs_struct)


def _inputs_in_order(graph, given):
    """Returns the inputs of a call in the order of the model's inputs."""
    if isinstance(given, dict) and isinstance(graph._inputs_struct, dict):
        given = {key: given[key] for key in graph._inputs_struct}
    elif isinstance(given, dict):
        given = [given[tensor.name] for tensor in graph.inputs]
    return keras.tree.flatten(given)


def symbols_in(nested):
    return [x for x in keras.tree.flatten(nested) if isinstance(x, Symbol)]


def with_values(nested, values):
    """Returns a structure with values instead of its Symbols."""
    return keras.tree.map_structure(lambda x: values[x] if isinstance(x, Symbol) else x, nested)


def call_operation(operation, args, kwargs):
    """Calls a layer or an operation as a model does outside of training; returns a list of tensors."""
    if getattr(operation, "_call_has_training_arg", False) and kwargs.get("training") is None:
        kwargs = {**kwargs, "training": False}
    return keras.tree.flatten(operation(*args, **kwargs))


def concatenation_axis(operation):
    """Returns the axis along which a layer or operation concatenates; None if it does something else."""
    if isinstance(operation, keras.layers.Concatenate) or type(operation).__name__ == "Concatenate":
        return operation.axis
    return None


def sequence_start(operation, args, kwargs):
    """Returns the n of `x[:, n:]` or `keras.layers.Cropping1D((n, 0))`; None for any other layer or operation."""
    if type(operation) is keras.layers.Cropping1D:
        start, end = operation.cropping
        return start if end == 0 else None
    if type(operation).__name__ == "GetItem":
        key = args[1] if len(args) > 1 else kwargs.get("key")
        whole, *rest = key if isinstance(key, (tuple, list)) else (key,)  # a list if the model comes from a file
        if (
            whole == slice(None)
            and rest
            and isinstance(rest[0], slice)
            and all(x in (slice(None), ...) for x in rest[1:])
        ):
            return rest[0].start if rest[0].stop is None and rest[0].step in (None, 1) else None
    return None
