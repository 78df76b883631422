"""Another class for a built layer, in place: the layer keeps its paths, its weights and its place in graphs."""

import functools

import keras
from keras import ops

from keras_txf.backend.keras_private import flatten_layers
from keras_txf.layers.saved_state import KeepsState


def change_class(layer, mixin):
    """Puts a class between a layer and its own class, in place of an earlier one, or takes that away for None."""
    base = plain_class(layer)
    object.__setattr__(layer, "__class__", base if mixin is None else _subclass(mixin, base))


def plain_class(layer):
    """The class that a layer had before a change, or has."""
    return getattr(type(layer), "plain_class", type(layer))


def keep_in_files(layers):
    """Has the layers of others with changed layers inside keep these in `.keras` files, as this package's own do."""
    for layer in layers:
        inside = any(isinstance(inner, Changed) for inner in flatten_layers(layer, include_self=False))
        if inside and not isinstance(layer, KeepsState):
            change_class(layer, Changed)
        elif not inside and type(layer).__bases__[0] is Changed:
            change_class(layer, None)


@keras.saving.register_keras_serializable("keras_txf")
class Changed(KeepsState):
    """A change of a layer's class for the sake of `.keras` files, which keep what was done to the layers inside."""

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
            # Its first call builds it; one on symbols would join a graph.
            shapes = config["input_shape"]
            self(keras.tree.map_shape_structure(lambda s: ops.zeros([n or 1 for n in s], self.compute_dtype), shapes))
        super().build_from_config(config)


@functools.cache
def _subclass(mixin, base):
    # It has the name of the other class: Keras names the parts of a file of weights for it.
    names = {"__module__": base.__module__, "__doc__": base.__doc__, "plain_class": base}
    cls = type(base)(base.__name__, (mixin, base), names)
    return keras.saving.register_keras_serializable("keras_txf", "Changed")(cls)
