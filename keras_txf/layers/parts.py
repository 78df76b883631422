"""Layers in the place of a block's parts: which options they replace, how they are copied, built and called.

A block's `attention`, `cross_attention`, `feed_forward` and `norm` take a layer. The block uses it as it is; a norm, of
which a block has several, is copied.
"""

import inspect

import keras

from keras_txf.checks import short_repr
from keras_txf.layers.base import call_parameters
from keras_txf.layers.serialization import own_initializer, revive

OPTIONS = {  # part of a block -> the options of the block that a layer instead of the part replaces
    "attention": ("num_heads", "num_key_value_heads", "head_dim", "window", "position", "causal"),
    "feed_forward": ("intermediate_dim", "activation", "gated"),
    "norm": ("norm_epsilon",),
    "cross_attention": (),
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Pattern:
    """A layer that others are copied from. Keras does not look into it for weights."""

    def __init__(self, layer):
        self.layer = layer


def is_layer(value):
    """Whether an option is a layer, or the configuration of one."""
    return isinstance(value, (keras.layers.Layer, Pattern)) or (isinstance(value, dict) and "class_name" in value)


def take_layer(name, value):
    """Returns the layer of an option, made from its configuration where that is given; None stays None."""
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
        layer.supports_masking = True  # the block keeps the mask: Keras would warn that the layer loses it
    return layer


def refuse_replaced(part, given, defaults, keep=()):
    """Refuses the options of a part in whose place there is a layer, unless they are the defaults."""
    for name in OPTIONS[part]:
        if name not in keep and name in given and given[name] is not defaults[name] and given[name] != defaults[name]:
            raise ValueError(
                f"`{name}` does not go with a layer as `{part}`, which replaces what it is for; received "
                f"{short_repr(given[name])}."
            )


def copy_layer(layer, name, owner_name="", dtype=None, **changed):
    """A layer made from the configuration of another, with weights of its own.

    An initializer with a seed is mixed with the name of the owner, so that copies do not begin alike. A position
    layer is shared by the copies. `dtype` is the policy of the copy, unless the layer has another one than Keras' own;
    `changed` are other options of the copy.
    """
    try:
        given = {"name": name, **changed}
        if dtype is not None and layer.dtype_policy == keras.config.dtype_policy():
            given["dtype"] = dtype
        config = layer.get_config()
        if "position" in config and isinstance(layer.position, keras.layers.Layer):
            given.setdefault("position", layer.position)
        copy = type(layer).from_config({**config, **given})
    except Exception as error:  # of the layer's own
        raise ValueError(
            f"`{name}` must be a layer that `from_config(get_config())` makes again, for each block gets a copy: its "
            "`__init__` takes `**kwargs`, and a function in it is registered by "
            f"`@keras.saving.register_keras_serializable()`; received {type(layer).__name__} {short_repr(layer.name)}: "
            f"{short_repr(str(error).rpartition('Exception encountered: ')[2])}."
        ) from error
    kernel_initializer = vars(copy).get("kernel_initializer")  # a property of a layer is that of an inner layer
    if owner_name and isinstance(kernel_initializer, keras.initializers.Initializer):
        copy.kernel_initializer = own_initializer(copy.kernel_initializer, copy, owner_name)
    return copy


def set_policy(layer, dtype):
    """Gives a layer without weights yet a dtype policy, unless the layer was made with another one than Keras' own."""
    if dtype is None or not isinstance(layer, keras.layers.Layer) or layer.built:
        return
    if layer.dtype_policy == keras.config.dtype_policy():
        layer.dtype_policy = dtype


def build_part(layer, *shapes):
    """Builds a layer within the `build` of another: by its own `build`, or by a call on symbols where it has none."""
    if type(layer).build is not keras.layers.Layer.build:
        if not layer.built:
            layer.build(*shapes)
    else:
        layer(*(keras.KerasTensor(shape, layer.compute_dtype) for shape in shapes))


def output_shape(layer, shape):
    """The shape of what a layer returns, or None where it does not tell."""
    try:
        return layer.compute_output_shape(shape)
    except Exception:  # of the layer's own; the call of the block checks what comes
        return None


def check_width(name, layer, received, shape):
    """Refuses what cannot be added to the stream (B, T, D); a width of 1 would be added to each feature in silence."""
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
    """Calls an attention with the arguments that are given, and refuses those that the layer does not take.

    Padding is no argument that a caller passes: a layer that takes no `mask` is called without.
    """
    known = call_parameters(type(layer))
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    given = {key: value for key, value in arguments.items() if value is not None and value is not False}
    if "cache" in given:
        # The cache knows the padding. Keras refuses a mask beside it where `call` takes both as `**kwargs`.
        given.pop("mask", None)
    for key in [key for key in given if key not in known and not takes_all]:
        if key not in ("mask", "context_mask"):
            raise ValueError(
                f"`{key}` must be an argument of the `call` of the layer {short_repr(layer.name)}, passed as `{name}`."
            )
        del given[key]
    return layer(*inputs, **given)
