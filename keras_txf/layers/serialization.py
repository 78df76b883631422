"""Conversion of the arguments of layers to configurations, and back."""

import hashlib
import inspect
import typing

import keras
import numpy as np

from keras_txf.backend.keras_private import keeps_shared_layers
from keras_txf.checks import short_repr

ClassOrFunction = typing.TypeVar("ClassOrFunction")


def register(cls: ClassOrFunction) -> ClassOrFunction:
    """Registers a class or function, so that `.keras` files load it in safe mode."""
    return keras.saving.register_keras_serializable(package="keras_txf")(cls)


def option_names(cls):
    """The names of a constructor's arguments in order, without `*args` and `**kwargs`."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)][1:]


def revive(value):
    """Returns the Keras object of a configuration, and any other value unchanged."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


def inherit(layer, cls, **changed):
    """Arguments for an inner layer of class `cls`: the attributes of `layer` of the same names, and `changed`."""
    same = {name: getattr(layer, name) for name in option_names(cls) if hasattr(layer, name)}
    if "kernel_initializer" in same:
        same["kernel_initializer"] = own_initializer(layer.kernel_initializer, layer)
    return {**same, "dtype": layer.dtype_policy, **changed}


def get_initializer(name, value):
    """Returns the initializer of a name, a configuration or a function; raises ValueError for another value."""
    try:
        initializer = keras.initializers.get(value)
        if initializer is not None:
            inspect.signature(initializer).bind((1, 1), dtype="float32")
        is_valid = not hasattr(value, "shape")  # an array has one shape, but the weights of a layer have several
    except Exception:  # Keras' error does not name the argument
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"`{name}` must be an initializer of Keras, its name, or a function of `shape` and `dtype`; received "
            f"{short_repr(value)}."
        )
    return initializer


def own_initializer(initializer, layer, name=""):
    """A new initializer for one weight or inner layer: the same instance would give all weights the same values.

    A seed is combined with the names of the layer and of the weight, so equal models begin with equal weights.
    Functions are returned unchanged, and so are initializers whose seed is a generator, which draws new values itself.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    if isinstance(config.get("seed"), dict):
        return initializer
    if config.get("seed") is not None:
        digest = hashlib.sha256(f"{config['seed']}/{layer.name}/{name}".encode()).digest()
        config["seed"] = int.from_bytes(digest[:4], "big") >> 1
    return type(initializer).from_config(config)


def serialize(value):
    """An argument of a constructor in the form of a configuration."""
    if isinstance(value, keras.layers.Layer):
        config = serialize_layer(value)
        config.pop("build_config", None)  # the outer layer builds it, under a path within its own path
        return config
    if hasattr(value, "get_config") and not isinstance(value, type):  # an initializer, or a `Residual`
        return keras.saving.serialize_keras_object(value)
    return value.item() if isinstance(value, np.generic) else value


def serialize_layer(layer):
    """The configuration of a layer that several layers may share."""
    config = keras.saving.serialize_keras_object(layer)
    if keeps_shared_layers():
        # Keras marks a shared layer only from its second occurrence on, and loses a first occurrence inside another
        # layer's configuration: each block would load its own copy.
        config = {**config, "shared_object_id": id(layer)}
    if type(layer).build is keras.layers.Layer.build:  # a layer without a `build` is built by its first call
        config.pop("build_config", None)
    return config
