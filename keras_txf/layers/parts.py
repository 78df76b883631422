"""Layers as parts of a block: the options that a part replaces, and how a part is copied, built and called.

The options `attention`, `cross_attention`, `feed_forward` and `norm` of a block accept a layer. The block uses the
layer itself, except a norm: a block has several norms, and each is a copy.
"""

import inspect

import keras

from keras_txf.checks import short_repr
from keras_txf.layers.base import call_parameters
from keras_txf.layers.serialization import own_initializer, revive

OPTIONS = {  # part of a block -> the options of the block that a layer as this part replaces
    "attention": ("num_heads", "num_key_value_heads", "head_dim", "window", "position", "causal"),
    "feed_forward": ("intermediate_dim", "activation", "gated"),
    "norm": ("norm_epsilon",),
    "cross_attention": (),
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Pattern:
    """Holds a layer that a block copies. Keras does not find the weights of a layer in here."""

    def __init__(self, layer):
        self.layer = layer


def is_layer(value):
    """Whether the value of an option is a layer or the configuration of a layer."""
    return isinstance(value, (keras.layers.Layer, Pattern)) or (isinstance(value, dict) and "class_name" in value)


def take_layer(name, value):
    """Returns the layer of an option, which may be a configuration; None stays None.

    Raises:
        ValueError: another value, or a layer whose `call` needs more tensors than the part receives.
    """
    layer = revive(value) if isinstance(value, dict) and "class_name" in value else value
    if layer is not None and not isinstance(layer, keras.layers.Layer):
        raise ValueError(f"`{name}` must be None or a layer; received {short_repr(value)}.")
    needed = 2 if name == "cross_attention" else 1
    if layer is not None:
        tensors = [
            p.name for p in call_parameters(type(layer)).values() if p.default is p.empty and p.kind in POSITIONAL
        ]
        if len(tensors) > needed:
            raise ValueError(
                f"`{name}` must be a layer that is called on {needed} tensor{'s' * (needed > 1)}; received "
                f"{type(layer).__name__} {short_repr(layer.name)}, whose `call` needs {short_repr(tensors)}."
            )
        if name == "cross_attention" and len(tensors) < 2 and "context" not in call_parameters(type(layer)):
            raise ValueError(
                f"`cross_attention` must be a layer that is called on the inputs and a context; received "
                f"{type(layer).__name__} {short_repr(layer.name)}, whose `call` has no argument `context`."
            )
        layer.supports_masking = True  # the block keeps the mask: Keras would warn that the layer loses it
    return layer


def check_replaced(part, options, defaults, names):
    """Raises ValueError for an option that a layer as a part replaces, unless the option has its default.

    Args:
        part: name of the part.
        options, defaults: dicts of the options, and of their defaults.
        names: names of the options that the layer replaces.
    """
    for name in names:
        if name in options and not _equals(options[name], defaults[name]):
            raise ValueError(
                f"`{name}` does not go with a layer as `{part}`, which replaces this option: set it on the layer; "
                f"received {short_repr(options[name])}."
            )


def _equals(value, default):
    """Whether a value is a default; an array, which has no truth value, is not."""
    return value is default or getattr(value, "shape", ()) == () and bool(value == default)


def copy_layer(layer, name, owner_name="", dtype=None, **changed):
    """Returns a new layer from the configuration of a layer, with its own weights. The copies share a position layer.

    Args:
        layer: the layer.
        name: name of the copy.
        owner_name: name of the block around the copy. It changes the seed of an initializer, so that the copies of
            several blocks begin with different weights.
        dtype: dtype policy of the copy, unless the layer has another policy than Keras' default.
        changed: other arguments of the copy's constructor.
    """
    try:
        changed = {"name": name, **changed}
        if dtype is not None and layer.dtype_policy == keras.config.dtype_policy():
            changed["dtype"] = dtype
        config = layer.get_config()
        if "position" in config and isinstance(layer.position, keras.layers.Layer):
            changed.setdefault("position", layer.position)
        copy = type(layer).from_config({**config, **changed})
    except Exception as error:  # a user's layer may raise any error
        raise ValueError(
            f"`{name}` must be a layer that `from_config(get_config())` makes again, because each block gets a copy: "
            "its `__init__` takes `**kwargs`, and its functions are registered by "
            f"`@keras.saving.register_keras_serializable()`; received {type(layer).__name__} {short_repr(layer.name)}: "
            f"{short_repr(str(error).rpartition('Exception encountered: ')[2])}."
        ) from error
    kernel_initializer = vars(copy).get("kernel_initializer")  # a property would belong to an inner layer
    if owner_name and isinstance(kernel_initializer, keras.initializers.Initializer):
        copy.kernel_initializer = own_initializer(copy.kernel_initializer, copy, owner_name)
    return copy


def set_policy(layer, dtype):
    """Sets the dtype policy of a layer that is not built, unless the layer has another policy than Keras' default."""
    if dtype is None or not isinstance(layer, keras.layers.Layer) or layer.built:
        return
    if layer.dtype_policy == keras.config.dtype_policy():
        layer.dtype_policy = dtype


def build_part(layer, *shapes):
    """Builds an inner layer within `build` of an outer one: by its `build`, or else by a call on symbols."""
    if type(layer).build is not keras.layers.Layer.build:
        if not layer.built:
            layer.build(*shapes)
    else:
        layer(*(keras.KerasTensor(shape, layer.compute_dtype) for shape in shapes))


def output_shape(layer, shape):
    """The shape of a layer's output, or None if the layer cannot compute it."""
    try:
        return layer.compute_output_shape(shape)
    except Exception:  # a user's layer may raise any error; the call of the block checks the output
        return None


def check_width(name, layer, received, shape):
    """Raises ValueError if an output of shape `received` does not fit the stream, whose `shape` is (B, T, D).

    A width of 1 would broadcast silently.
    """
    known = isinstance(received, tuple) and received and isinstance(received[-1], int)
    if known and len(received) != len(shape):
        raise ValueError(
            f"`{name}` must return a vector for each token, {shape}; received the layer {short_repr(layer.name)} "
            f"({type(layer).__name__}), which returns {received}."
        )
    if known and received[-1] != shape[-1]:
        raise ValueError(
            f"`{name}` must return the width of the block, {shape[-1]}; received the layer {short_repr(layer.name)} "
            f"({type(layer).__name__}), which returns {received[-1]}."
        )


def call_part(name, layer, *inputs, **arguments):
    """Calls a part of a block with the arguments that are not None or False.

    A layer without an argument `mask` or `context_mask` is called without it: Keras fills both.

    Raises:
        ValueError: another argument that the `call` of the layer does not have.
    """
    known = call_parameters(type(layer))
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    arguments = {key: value for key, value in arguments.items() if value is not None and value is not False}
    if "cache" in arguments:
        # The cache knows the padding. Keras raises for a mask next to it if `call` takes both as `**kwargs`.
        arguments.pop("mask", None)
    for key in [key for key in arguments if key not in known and not takes_all]:
        if key not in ("mask", "context_mask"):
            raise ValueError(
                f"`{key}` must be an argument of the `call` of the layer {short_repr(layer.name)}, passed as `{name}`."
            )
        del arguments[key]
    return layer(*inputs, **arguments)
