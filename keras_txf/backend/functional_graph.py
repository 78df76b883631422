"""Running the graph of a functional model with other calls of its layers.

Keras has no public way to do so on values: `clone_model(call_function=...)` builds another model.
"""

import functools

import keras


def run_graph(model, inputs, call):
    """Runs a functional model on values, calling each layer through `call`, the layers of models within it too.

    Args:
        model: a functional or sequential `keras.Model`.
        inputs: what `model` takes.
        call: function of a layer and the arguments of its call, that returns what the layer returns.

    Returns:
        What `model` returns for `inputs`.
    """
    graph = getattr(model, "_functional", None) or model  # a Sequential model keeps a functional one

    def call_inside(layer, *args, **kwargs):
        if is_functional(layer):
            return run_graph(layer, args[0], call)
        return call(layer, *args, **kwargs)

    outputs = graph._run_through_graph(
        graph._standardize_inputs(inputs), lambda layer: functools.partial(call_inside, layer)
    )
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs


def is_functional(layer):
    """Whether a layer is a model with a graph of its own."""
    return isinstance(layer, keras.Model) and hasattr(getattr(layer, "_functional", None) or layer, "_run_through_graph")
