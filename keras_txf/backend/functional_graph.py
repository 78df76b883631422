"""Runs the graph of a functional model with other calls of its layers, and reads its operations and masks.

Keras has no public way to do this on values: `clone_model(call_function=...)` builds another model.
"""

import contextlib
import functools
import itertools
import re

import keras
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.models.functional import Functional
from keras.src.models.sequential import Sequential


def run_graph(model, inputs, call, standardize=True, masks=None):
    """Runs a functional model, and calls each layer, also in inner models, through `call`.

    Args:
        model: a functional or sequential `keras.Model`.
        inputs: inputs of `model`.
        call: function of a layer and the arguments of its call, which returns the outputs of the layer.
        standardize: whether `inputs` are brought to the shapes and dtypes of the model's inputs; False for symbolic
            tensors.
        masks: the Keras masks of the inputs, in their order, or None.

    Returns:
        The outputs of `model`.
    """
    graph = graph_of(model)

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


def layers_called_on(model, symbol):
    """Returns the layers that a functional model or its inner models call on one of the model's input tensors."""
    layers = []
    for node in itertools.chain.from_iterable(graph_of(model)._nodes_by_depth.values()):
        indices = [index for index, tensor in enumerate(node.input_tensors) if tensor is symbol]
        for index in indices:
            if is_functional(node.operation):
                layers += layers_called_on(node.operation, graph_of(node.operation).inputs[index])
            else:
                layers.append(node.operation)
    return list({id(layer): layer for layer in layers}.values())


def operations_after(model, sources):
    """Returns the ids of operations in a functional model's graph that depend on the operations with ids `sources`."""
    found = set()
    for node in nodes(model):
        made_by = {id(tensor._keras_history.operation) for tensor in node.input_tensors}
        if made_by & (sources | found):
            found.add(id(node.operation))
    return found


def name_and_number(name):
    """Splits a name that Keras counts, such as "not_equal_3", into "not_equal" and 3, or 0 without a number."""
    kind, number = re.fullmatch(r"(.*?)(?:_(\d+))?", name).groups()
    return kind, int(number or 0)


def operations_inside(model):
    """Returns the layers and operations that `run_graph` calls, each once, in the order in which they run."""
    found = {}
    for node in nodes(model):
        if runs_inline(node.operation):
            found.update((id(operation), operation) for operation in operations_inside(node.operation))
        elif not isinstance(node.operation, keras.layers.InputLayer):
            found[id(node.operation)] = node.operation
    return list(found.values())


MASKS = {"not_equal": "padding_mask", "logical_or": "joined_padding_mask"}  # operation -> its purpose in our graphs


def name_operations(model):
    """Names the masks of a model after its inputs, such as `source_padding_mask` instead of Keras' `not_equal_3`.

    Keras counts the operations of the whole process, so a second model would have different names.
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
    """Returns the name of the first input that a call depends on, without "_ids"."""
    while node.input_tensors:
        node = node_of(node.input_tensors[0])
    return node.operation.name.removesuffix("_ids")


@contextlib.contextmanager
def own_calls(model):
    """A scope in which the layers of a model know only the calls in its graph, and the first call as their last.

    Keras' summary shows the shape of a layer's last call, which may be in a model for decoding, or give the logits of a
    tied table.
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
    """Whether a layer is a model with its own graph."""
    return isinstance(layer, keras.Model) and hasattr(graph_of(layer), "_run_through_graph")


def runs_inline(layer):
    """Whether a layer is a model that computes its graph; a subclass may compute something else."""
    return is_functional(layer) and type(layer).call in (Functional.call, Sequential.call)


def graph_of(model):
    """Returns the functional model whose graph a model has."""
    return getattr(model, "_functional", None) or model  # a Sequential model keeps a functional one


def optional_inputs(model):
    """Returns the names of the inputs that may be None."""
    return [tensor.name for tensor in model.inputs if tensor._keras_history.operation.optional]


def nodes(model):
    """Returns the calls in the graph of a functional model, in the order in which they run."""
    by_depth = graph_of(model)._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def mask_of(tensor):
    """Returns the Keras mask of a tensor, or None."""
    return get_keras_mask(tensor)


def node_of(tensor):
    """Returns the call in a graph that made a symbolic tensor, with `operation`, `arguments` and `input_tensors`."""
    history = tensor._keras_history
    return history.operation._inbound_nodes[history.node_index]


def set_mask(tensor, mask):
    """Replaces the Keras mask of a tensor by another mask, or None."""
    if mask_of(tensor) is not mask:
        set_keras_mask(tensor, mask)


def drop_mask(tensor):
    """Removes the Keras mask of a tensor."""
    set_mask(tensor, None)


def give_mask(tensor, mask):
    """Gives a tensor a padding mask if it has none."""
    if mask is not None and mask_of(tensor) is None:
        set_keras_mask(tensor, mask)
