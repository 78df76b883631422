"""The graph of a functional model: running it with other calls of its layers, and reading which layers take an input.

Keras has no public way to do so on values: `clone_model(call_function=...)` builds another model.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import re
from typing import Any

import keras
from keras import ops
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.models.functional import Functional
from keras.src.models.sequential import Sequential


def run_graph(model, inputs, call, standardize=True, masks=None):
    """Runs a functional model, calling each layer through `call`, the layers of models within it too.

    Args:
        model: a functional or sequential `keras.Model`.
        inputs: what `model` takes.
        call: function of a layer and the arguments of its call, that returns what the layer returns.
        standardize: whether `inputs` are brought to the shapes and dtypes of the model's inputs; False for symbolic
            tensors.
        masks: the Keras masks of the inputs, in their order, or None.

    Returns:
        What `model` returns for `inputs`.
    """
    graph = _graph(model)

    def call_inside(layer, *args, **kwargs):
        if not is_functional(layer):
            return call(layer, *args, **kwargs)
        if not runs_inline(layer):
            return layer(*args, **kwargs)
        given, own = args[0] if args else kwargs["inputs"], kwargs.get("mask")
        own = keras.tree.map_structure(mask_of, given) if own is None else own
        return run_graph(layer, given, call, standardize, own)

    inputs = graph._standardize_inputs(inputs) if standardize else inputs  # tensors of another dtype lose their masks
    for tensor, mask in zip(keras.tree.flatten(inputs), keras.tree.flatten(masks)):
        if mask is not None:
            set_keras_mask(tensor, mask)
    outputs = graph._run_through_graph(inputs, lambda layer: functools.partial(call_inside, layer))
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs


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
        args, kwargs: what the graph passes, with a `Symbol` in the place of each tensor.
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
    """The way of a tensor into a model: the type of the model's input, and a Keras mask that the graph passes."""

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
    """The graph of a functional model as one list of calls; a model within it stands there as the calls of its own.

    Returns:
        The Symbols of the inputs, in the order of `model.inputs`; the list of `GraphCall`s, in the order in which they
        run; and the outputs, of the model's structure.
    """
    inputs = [Symbol(tuple(x.shape), x.dtype) for x in _graph(model).inputs]
    calls = []
    return inputs, calls, _add_calls(model, inputs, calls)


def _add_calls(model, given, calls):
    """Adds the calls of a model on Symbols to a list; returns the model's outputs."""
    graph = _graph(model)
    known = {id(tensor): symbol for tensor, symbol in zip(graph.inputs, given)}

    def symbol_of(x):
        return known[id(x)] if isinstance(x, keras.KerasTensor) else x

    for node in nodes(model):
        operation = node.operation
        if isinstance(operation, keras.layers.InputLayer):
            continue
        args, kwargs = keras.tree.map_structure(symbol_of, (node.arguments.args, node.arguments.kwargs))
        if runs_inline(operation):
            given = _inputs_in_order(_graph(operation), args[0] if args else kwargs["inputs"])
            masks = keras.tree.flatten(kwargs["mask"]) if kwargs.get("mask") is not None else itertools.repeat(None)
            entered = []
            for tensor, x, mask in zip(_graph(operation).inputs, given, masks):
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
    """What a call gives a model, in the order of the model's inputs."""
    if isinstance(given, dict) and isinstance(graph._inputs_struct, dict):
        given = {key: given[key] for key in graph._inputs_struct}
    elif isinstance(given, dict):
        given = [given[tensor.name] for tensor in graph.inputs]
    return keras.tree.flatten(given)


def symbols_in(nested):
    return [x for x in keras.tree.flatten(nested) if isinstance(x, Symbol)]


def with_values(nested, values):
    """A structure with the values of its Symbols."""
    return keras.tree.map_structure(lambda x: values[x] if isinstance(x, Symbol) else x, nested)


def call_operation(operation, args, kwargs):
    """Calls a layer or an operation as a model calls it that does not train; returns a list of tensors."""
    if getattr(operation, "_call_has_training_arg", False) and kwargs.get("training") is None:
        kwargs = {**kwargs, "training": False}
    return keras.tree.flatten(operation(*args, **kwargs))


def layers_called_on(model, symbol):
    """The layers that a functional model calls on one of its input tensors, those of models within it too."""
    layers = []
    for node in itertools.chain.from_iterable(_graph(model)._nodes_by_depth.values()):
        places = [place for place, tensor in enumerate(node.input_tensors) if tensor is symbol]
        for place in places:
            if is_functional(node.operation):
                layers += layers_called_on(node.operation, _graph(node.operation).inputs[place])
            else:
                layers.append(node.operation)
    return list({id(layer): layer for layer in layers}.values())


def operations_after(model, sources):
    """The ids of the operations in a functional model's own graph that depend on operations of these ids."""
    found = set()
    for node in nodes(model):
        made_by = {id(tensor._keras_history.operation) for tensor in node.input_tensors}
        if made_by & (sources | found):
            found.add(id(node.operation))
    return found


def reserve_names(model):
    """Has operations that are made from now on take other names than those in the graph of a model.

    Keras counts the operations of each kind, such as `not_equal_3`, and begins anew after `clear_session`. A model that
    is made of old and of new operations would have two of one name.
    """
    counts = global_state.get_global_attribute("object_name_uids", collections.defaultdict(int), set_to_default=True)
    for operation in operations_inside(model):
        kind, number = name_and_number(operation.name)
        counts[kind] = max(counts[kind], number + 1)


def name_and_number(name):
    """Splits a name that Keras counts, such as "not_equal_3": "not_equal" and 3; the number of a first name is 0."""
    kind, number = re.fullmatch(r"(.*?)(?:_(\d+))?", name).groups()
    return kind, int(number or 0)


def operations_inside(model):
    """The layers and operations that `run_graph` calls, each once, in the order in which they run."""
    found = {}
    for node in nodes(model):
        if runs_inline(node.operation):
            found.update((id(operation), operation) for operation in operations_inside(node.operation))
        elif not isinstance(node.operation, keras.layers.InputLayer):
            found[id(node.operation)] = node.operation
    return list(found.values())


MASKS = {"not_equal": "padding_mask", "logical_or": "joined_padding_mask"}  # operation -> what it is for in our graphs


def name_operations(model):
    """Names the masks of a model after its inputs, such as `source_padding_mask`, in place of Keras' `not_equal_3`.

    Keras counts the operations of the whole process: a second model would have other names than the first.
    """
    taken = {node.operation.name for node in nodes(model)}
    for node in nodes(model):
        operation, (kind, *_) = node.operation, re.split(r"_\d+$", node.operation.name)
        if isinstance(operation, keras.layers.Layer) or kind not in MASKS:
            continue
        own = name = MASKS[kind] if (made_of := _input_name(node)) == "token" else f"{made_of}_{MASKS[kind]}"
        for number in itertools.count(2):
            if name not in taken:
                break
            name = f"{own}_{number}"
        operation.name = name
        taken.add(name)


def _input_name(node):
    """The name of the first input that a call depends on, without "_ids"."""
    while node.input_tensors:
        history = node.input_tensors[0]._keras_history
        node = history.operation._inbound_nodes[history.node_index]
    return node.operation.name.removesuffix("_ids")


@contextlib.contextmanager
def own_calls(model):
    """Within the scope the layers of a model know the calls in its graph alone, and the first one as their last.

    Keras' summary shows the shape of the last call: that of a model for decoding, or the logits of a tied table.
    """
    own = {id(node) for node in nodes(model)}
    known = {node.operation: node.operation._inbound_nodes[:] for node in nodes(model)}
    try:
        for operation, calls in known.items():
            first, *rest = [node for node in calls if id(node) in own]
            operation._inbound_nodes[:] = [*rest, first]
        yield
    finally:
        for operation, calls in known.items():
            operation._inbound_nodes[:] = calls


def is_functional(layer):
    """Whether a layer is a model with a graph of its own."""
    return isinstance(layer, keras.Model) and hasattr(_graph(layer), "_run_through_graph")


def runs_inline(layer):
    """Whether a layer is a model that computes what its graph says; a subclass may compute something else."""
    return is_functional(layer) and type(layer).call in (Functional.call, Sequential.call)


def _graph(model):
    return getattr(model, "_functional", None) or model  # a Sequential model keeps a functional one


def optional_inputs(model):
    """The names of the inputs that may be None."""
    return [tensor.name for tensor in model.inputs if tensor._keras_history.operation.optional]


def nodes(model):
    """The calls in the graph of a functional model, in the order in which they run."""
    by_depth = _graph(model)._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def new_tensors(model, symbol):
    """The ids of the tensors in the graph of a model that depend on one of its inputs."""
    found = {id(symbol)}
    for node in nodes(model):
        if any(id(tensor) in found for tensor in node.input_tensors):
            found.update(map(id, node.outputs))
    return found


def concatenation_axis(operation):
    """The axis along which a layer or operation concatenates; None where it does something else."""
    if isinstance(operation, keras.layers.Concatenate) or type(operation).__name__ == "Concatenate":
        return operation.axis
    return None


def sequence_start(operation, args, kwargs):
    """The n of `x[:, n:]` or `keras.layers.Cropping1D((n, 0))`; None where a layer or operation does something else."""
    if type(operation) is keras.layers.Cropping1D:
        start, end = operation.cropping
        return start if end == 0 else None
    if type(operation).__name__ == "GetItem":
        key = args[1] if len(args) > 1 else kwargs.get("key")
        whole, *rest = key if isinstance(key, (tuple, list)) else (key,)  # a list, when it comes from a file
        if (
            whole == slice(None)
            and rest
            and isinstance(rest[0], slice)
            and all(x in (slice(None), ...) for x in rest[1:])
        ):
            return rest[0].start if rest[0].stop is None and rest[0].step in (None, 1) else None
    return None


def mask_of(tensor):
    """The Keras mask of a tensor, or None."""
    return get_keras_mask(tensor)


def set_mask(tensor, mask):
    """Gives a tensor a Keras mask, or None, in place of its own."""
    if mask_of(tensor) is not mask:
        set_keras_mask(tensor, mask)


def drop_mask(tensor):
    """Takes the Keras mask off a tensor."""
    set_mask(tensor, None)


def give_mask(tensor, mask):
    """Gives a tensor a padding mask where it has none."""
    if mask is not None and mask_of(tensor) is None:
        set_keras_mask(tensor, mask)
