"""Aliases: layers under other names, where several layers in the graph of a model have one name.

Models within a model have such layers: two encoders have an `embedding` each. Decoding runs the graphs of all of them
as one graph, in which Keras wants each name once.
"""

import itertools

import keras

from keras_txf.backend.functional_graph import operations_inside
from keras_txf.layers.arguments import call_parameters
from keras_txf.layers.serialization import register, revive, serialize_layer


def find_aliases(model):
    """Returns what to call in place of layers and operations whose name another one has: id -> function."""
    operations = operations_inside(model)
    taken, owners, aliases = {operation.name for operation in operations}, {}, {}
    for operation in operations:
        if owners.setdefault(operation.name, operation) is operation:
            continue
        name = next(name for i in itertools.count(2) if (name := f"{operation.name}_{i}") not in taken)
        taken.add(name)
        if isinstance(operation, keras.layers.Layer):
            aliases[id(operation)] = Alias(operation, name=name, dtype=operation.dtype_policy).call_layer
        else:
            aliases[id(operation)] = type(operation).from_config({**operation.get_config(), "name": name})
    return aliases


@register
class Alias(keras.layers.Layer):
    """A layer under another name. The weights are shared with it.

    Args:
        layer: a built layer.

    Call arguments:
        tensors: dict, the arguments of the layer that are tensors, by their names.
        constants: dict, its other arguments.
    """

    def __init__(self, layer, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.layer = revive(layer)
        self.supports_masking = True
        self.built = True

    def call_layer(self, *args, **kwargs):
        """Calls the alias as the layer is called."""
        arguments = dict(zip(call_parameters(type(self.layer)), args)) | kwargs
        tensors = {
            name: value
            for name, value in arguments.items()
            if any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(value))
        }
        return self(tensors, constants={name: value for name, value in arguments.items() if name not in tensors})

    def call(self, tensors, constants=None):
        return self.layer(**tensors, **(constants or {}))

    def compute_output_spec(self, tensors, constants=None):
        return self.layer.compute_output_spec(**tensors, **(constants or {}))

    def compute_mask(self, tensors, previous_mask=None):
        if not self.layer.supports_masking:
            return None
        name = next(iter(tensors))
        mask = tensors.get("mask", (previous_mask or {}).get(name))
        return self.layer.compute_mask(tensors[name], mask)

    def get_config(self):
        return {**super().get_config(), "layer": serialize_layer(self.layer)}
