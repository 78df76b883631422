"""Activations by name: those of Keras, and two that checkpoints ask for and Keras has no name for."""

import keras
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register


@register
def gelu_tanh(x):
    """GELU as GPT-2 and Gemma have it, by a hyperbolic tangent."""
    return keras.activations.gelu(x, approximate=True)


@register
def gelu_sigmoid(x):
    """GELU as CLIP has it ("quick"), x · sigmoid(1.702 x)."""
    return x * ops.sigmoid(1.702 * x)


ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_sigmoid": gelu_sigmoid}


def get_activation(name, activation):
    """The function, or a layer with weights of its own, of what the argument `name` stands for."""
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return ACTIVATIONS[activation]
    try:
        if callable(activation) and not isinstance(activation, keras.layers.Layer):
            _ = activation(ops.zeros((1, 1, 8), "float32")).shape
        function = keras.activations.get(activation)
    except Exception:  # Keras' own does not say which argument it is
        raise ValueError(
            f"`{name}` must be an activation of Keras, its name, or a function; received {short_repr(activation)}."
        ) from None
    if isinstance(function, keras.layers.Layer):
        return type(function).from_config(function.get_config())
    return function
