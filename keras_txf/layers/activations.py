"""Activations by name: Keras' activations, and two of checkpoints for which Keras has no name."""

import keras
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register


@register
def gelu_tanh(x):
    """The GELU of GPT-2 and Gemma, computed with a hyperbolic tangent."""
    return keras.activations.gelu(x, approximate=True)


@register
def gelu_sigmoid(x):
    """The "quick" GELU of CLIP, x · sigmoid(1.702 x)."""
    return x * ops.sigmoid(1.702 * x)


ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_sigmoid": gelu_sigmoid}


def get_activation(name, activation):
    """Returns the activation of the argument `name`: a function, or a new layer for a layer."""
    if isinstance(activation, str) and activation in ACTIVATIONS:
        return ACTIVATIONS[activation]
    try:
        if callable(activation) and not isinstance(activation, keras.layers.Layer):
            _ = activation(ops.zeros((1, 1, 8), "float32")).shape
        function = keras.activations.get(activation)
    except Exception:  # Keras' error does not name the argument
        raise ValueError(
            f"`{name}` must be an activation of Keras, its name, or a function; received {short_repr(activation)}."
        ) from None
    if isinstance(function, keras.layers.Layer):
        return type(function).from_config(function.get_config())
    return function
