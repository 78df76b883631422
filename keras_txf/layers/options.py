"""What every layer here does with its arguments: keep them under their own names, save them, reload them."""

import inspect

import keras
import numpy as np

from keras_txf.layers.tuning import keep_tuning


def register(cls):
    """Registers a class or function with Keras, so that `.keras` files load in safe mode; a layer's keep its fine-tuning."""
    if isinstance(cls, type) and issubclass(cls, keras.layers.Layer) and not issubclass(cls, keras.Model):  # a model's layers see to it
        cls = keep_tuning(cls)
    return keras.saving.register_keras_serializable(package="keras_txf")(cls)


def option_names(cls):
    """The names of the constructor's own arguments, in order."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD][1:]


def get_config(layer, base_config):
    """The configuration of a layer whose attributes carry the names of its arguments."""
    own = {name: _serialize(getattr(layer, name)) for name in option_names(type(layer))}
    return {**base_config, **own}


def revive(value):
    """A Keras object from its configuration; anything else as it is."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


def inherit(layer, cls, **changed):
    """The arguments of an inner layer `cls` that bear the same name on `layer`, with some changed."""
    same = {name: getattr(layer, name) for name in option_names(cls) if hasattr(layer, name)}
    return {**same, "dtype": layer.dtype_policy, **changed}


def _serialize(value):
    if isinstance(value, keras.initializers.Initializer):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer):
        # Keras marks a shared layer from its second appearance on, and then has lost track of a first
        # one inside another layer's configuration: several blocks would reload with a copy each.
        return {**keras.saving.serialize_keras_object(value), "shared_object_id": id(value)}
    return value.item() if isinstance(value, np.generic) else value
