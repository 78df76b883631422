"""Arguments of layers as configurations, and back."""

import hashlib
import inspect
import typing

import keras
import numpy as np

from keras_txf.backend.keras_private import keeps_shared_layers
from keras_txf.checks import short_repr

Thing = typing.TypeVar("Thing")


def register(cls: Thing) -> Thing:
    """Registers a class or function for `.keras` files, which load it in safe mode."""
    return keras.saving.register_keras_serializable(package="keras_txf")(cls)


def option_names(cls):
    """The names of the constructor's own arguments, in order."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)][1:]


def revive(value):
    """A Keras object from its configuration; anything else as it is."""
    return keras.saving.deserialize_keras_object(value) if isinstance(value, dict) else value


def inherit(layer, cls, **changed):
    """The arguments of an inner layer `cls` that bear the same name on `layer`, with some changed."""
    same = {name: getattr(layer, name) for name in option_names(cls) if hasattr(layer, name)}
    if "kernel_initializer" in same:
        same["kernel_initializer"] = own_initializer(layer.kernel_initializer, layer)
    return {**same, "dtype": layer.dtype_policy, **changed}


def get_initializer(name, value):
    """The initializer that a name, a configuration or a function stands for."""
    try:
        initializer = keras.initializers.get(value)
        if initializer is not None:
            inspect.signature(initializer).bind((1, 1), dtype="float32")
        known = not hasattr(value, "shape")  # an array has one shape, weights have several
    except Exception:  # Keras' own does not say which argument it is
        known = False
    if not known:
        raise ValueError(
            f"`{name}` must be an initializer of Keras, its name, or a function of `shape` and `dtype`; received "
            f"{short_repr(value)}."
        )
    return initializer


def own_initializer(initializer, layer, name=""):
    """The initializer of one weight, or inner layer, of a layer: one instance would give each of them the same numbers.

    The seed of a seeded one is mixed with the names of the layer and of the weight: models that are built alike begin
    alike. Functions are taken as they are, and so is an initializer whose seed is a generator: it goes on by itself.
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
    """An argument of a constructor as a configuration has it."""
    if isinstance(value, keras.layers.Layer):
        config = serialize_layer(value)
        config.pop("build_config", None)  # its owner builds it, under a path within its own
        return config
    if hasattr(value, "get_config") and not isinstance(value, type):  # an initializer, or a `Residual`
        return keras.saving.serialize_keras_object(value)
    return value.item() if isinstance(value, np.generic) else value


def serialize_layer(layer):
    """The configuration of a layer that other layers may share."""
    config = keras.saving.serialize_keras_object(layer)
    if keeps_shared_layers():
        # Keras marks a shared layer from its second appearance on, and then has lost track of a first
        # one inside another layer's configuration: several blocks would reload with a copy each.
        config = {**config, "shared_object_id": id(layer)}
    if type(layer).build is keras.layers.Layer.build:  # a layer without a `build` is built by its first call
        config.pop("build_config", None)
    return config
