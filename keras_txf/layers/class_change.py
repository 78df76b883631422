"""Changes of the class of a built layer. The layer remains the same object, with its paths, weights and graphs."""

import functools

import keras
from keras import ops

from keras_txf.backend.keras_private import flatten_layers
from keras_txf.layers.saved_state import KeepsState


def change_class(layer, mixin):
    """Makes a layer an instance of `mixin` and its own class, instead of an earlier mixin; None removes the mixin."""
    base = plain_class(layer)
    object.__setattr__(layer, "__class__", base if mixin is None else _subclass(mixin, base))


def plain_class(layer):
    """The class of a layer without a mixin."""
    return getattr(type(layer), "plain_class", type(layer))


def keep_in_files(layers):
    """Makes `.keras` files keep the changed inner layers of layers of other packages, as for layers of this package."""
    for layer in layers:
        inside = any(isinstance(inner, Changed) for inner in flatten_layers(layer, include_self=False))
        if inside and not isinstance(layer, KeepsState):
            change_class(layer, Changed)
        elif not inside and type(layer).__bases__[0] is Changed:
            change_class(layer, None)


@keras.saving.register_keras_serializable("keras_txf")
class Changed(KeepsState):
    """The mixin with which `.keras` files keep the changes of a layer's inner layers."""

    def get_config(self):
        base = plain_class(self)
        return {
            "module": base.__module__,
            "class_name": base.__name__,
            "registered_name": keras.saving.get_registered_name(base),
            "config": super().get_config(),
        }

    @classmethod
    def from_config(cls, config):
        layer = keras.saving.deserialize_keras_object(config)
        change_class(layer, Changed)
        return layer

    def build_from_config(self, config):
        if type(self).build is keras.layers.Layer.build and "input_shape" in config:
            # The first call builds the layer. A call on symbols would add the layer to a graph.
            shapes = config["input_shape"]
            self(keras.tree.map_shape_structure(lambda s: ops.zeros([n or 1 for n in s], self.compute_dtype), shapes))
        super().build_from_config(config)


@functools.cache
def _subclass(mixin, base):
    # The name of the class stays: Keras uses it for the keys in a file of weights.
    names = {"__module__": base.__module__, "__doc__": base.__doc__, "plain_class": base}
    cls = type(base)(base.__name__, (mixin, base), names)
    return keras.saving.register_keras_serializable("keras_txf", "Changed")(cls)
