"""What every layer here does with its arguments: keep them under their own names, save them, reload them."""

import functools
import hashlib
import inspect
import typing

import keras
import numpy as np

from keras_txf import checks
from keras_txf.backend.keras_private import computing_in
from keras_txf.checks import short_repr
from keras_txf.layers.rematerialization import rematerializes
from keras_txf.layers.saved_state import keep_state
from keras_txf.layers.symbolic_calls import tells_its_shape

Thing = typing.TypeVar("Thing")


def register(cls: Thing) -> Thing:
    """Registers a class or function for `.keras` files in safe mode; a layer's files keep its fine-tuning."""
    # A model's files keep its layers' fine-tuning.
    if isinstance(cls, type) and issubclass(cls, keras.layers.Layer) and not issubclass(cls, keras.Model):
        cls = tells_its_shape(_computes_in_float64(rematerializes(_keep_arguments(keep_state(cls)))))
    return keras.saving.register_keras_serializable(package="keras_txf")(cls)


def _computes_in_float64(cls):
    """Has a layer whose policy is float64 compute in it on every backend, with all layers inside of it."""
    call = cls.__call__

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        if self.compute_dtype != "float64":
            return call(self, *args, **kwargs)
        with computing_in("float64"):
            return call(self, *args, **kwargs)

    cls.__call__ = __call__
    return cls


def option_names(cls):
    """The names of the constructor's own arguments, in order."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD][1:]


def get_config(layer, base_config, **others):
    """The configuration of a layer whose attributes carry the names of its arguments, but for the `others`.

    Of a subclass with a constructor of its own it is what that constructor was called with: what it passes on may be a
    fixed value, which it would be given twice, or another one than came.
    """
    if layer._arguments is None:
        given = {name: others[name] if name in others else getattr(layer, name) for name in option_names(type(layer))}
    else:
        # What came as a configuration is an object by now.
        given = {
            name: others.get(name, getattr(layer, name, value)) if isinstance(value, dict) else value
            for name, value in layer._arguments.by_name.items()
        }
    return {**{name: _serialize(value) for name, value in given.items()}, **base_config}


class _Arguments:
    """What a constructor was called with; not a dict, in which Keras would look for layers."""

    def __init__(self, by_name):
        self.by_name = by_name


def _keep_arguments(cls):
    """Has the instances of the class's subclasses keep what they were made from, for `get_config`."""
    make, constructor = cls.__new__, cls.__init__

    def __new__(cls, *args, **kwargs):
        if isinstance(kwargs.get("dtype"), dict):  # whose errors in Keras do not say which argument it is
            checks.dtype("dtype", kwargs["dtype"])
        layer = make(cls, *args, **kwargs)
        layer._arguments = None if cls.__init__ is constructor else _Arguments(_by_name(cls, args, kwargs))
        return layer

    __new__.__signature__ = inspect.signature(constructor)
    cls.__new__ = __new__
    return cls


def _by_name(cls, args, kwargs):
    """Arguments of a constructor by their names; what it takes as `*args` has the names of the class above."""
    names, owners = [], [owner for owner in cls.__mro__ if "__init__" in vars(owner)]
    for owner in owners:
        parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]
        names += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            break
    own = inspect.signature(owners[0].__init__).parameters.values()
    defaults = {p.name: p.default for p in own if p.default is not p.empty}
    return {**defaults, **dict(zip(names, args)), **kwargs}


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


def _serialize(value):
    if isinstance(value, keras.initializers.Initializer):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, keras.layers.Layer):
        config = serialize_layer(value)
        config.pop("build_config", None)  # its owner builds it, under a path within its own
        return config
    return value.item() if isinstance(value, np.generic) else value


def serialize_layer(layer):
    """The configuration of a layer that other layers may share."""
    # Keras marks a shared layer from its second appearance on, and then has lost track of a first
    # one inside another layer's configuration: several blocks would reload with a copy each.
    config = {**keras.saving.serialize_keras_object(layer), "shared_object_id": id(layer)}
    if type(layer).build is keras.layers.Layer.build:  # a layer without a `build` is built by its first call
        config.pop("build_config", None)
    return config
