"""FeedForward: two projections around an activation, plain or gated; and the activations by name.

The activations are those of Keras, and two of checkpoints for which Keras has no name.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import Dropout, make_projection
from keras_txf.layers.rematerialization import recomputed_activation
from keras_txf.layers.serialization import get_initializer, register


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


@register
class FeedForward(Layer):
    """The position-wise network of a block: x -> output(activation(intermediate(x))).

    With `gated`, x -> output(activation(gate(x)) * intermediate(x)): SwiGLU with "silu", GEGLU with
    "gelu". The output is as wide as the input.

    Args:
        intermediate_dim: width of the hidden layer; default 4 times the width of the input.
        activation: any Keras activation, or "gelu_tanh" (GPT-2, Gemma), "gelu_sigmoid" (CLIP). The default,
            "gelu", is today's practice; the blocks default to the paper's "relu".
        gated: whether a second projection gates the first.
        dropout: dropout rate of the hidden layer; 0 in the paper.
        use_bias: whether the projections have a bias.
        output_bias: whether the last projection has a bias; default `use_bias`.
        kernel_initializer: initializer of the projections.

    Call arguments:
        inputs: float (..., D).

    Returns:
        (..., D).

    Raises:
        ValueError: a width that is not a positive integer, a rate outside [0, 1), an unknown activation.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.3;
        [GLU Variants Improve Transformer](https://arxiv.org/abs/2002.05202).

    Example:

    >>> swiglu = txf.layers.FeedForward(activation="silu", gated=True)
    >>> swiglu(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    weight_splits = {"gate": "columns", "intermediate": "columns", "output": "rows"}

    def __init__(
        self,
        intermediate_dim: int | None = None,
        activation: Any = "gelu",
        gated: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_bias: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        set_network_options(self, intermediate_dim, activation, gated, use_bias, kernel_initializer)
        self.output_bias = checks.optional(checks.boolean, "output_bias", output_bias)
        self.dropout = checks.rate("dropout", dropout)

    def build(self, inputs_shape):
        dim, width = network_widths(self, inputs_shape)
        wide = (*inputs_shape[:-1], width)
        if self.gated:
            self.gate = make_projection(self, "gate", width, inputs_shape)
        self.intermediate = make_projection(self, "intermediate", width, inputs_shape)
        self.output_dense = make_projection(self, "output", dim, wide, self.output_bias)
        if isinstance(self.activation_function, keras.layers.Layer):
            self.activation_function.build(wide)
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(self, inputs, training=None):
        x, activate = self.intermediate(inputs), recomputed_activation(self)
        x = activate(self.gate(inputs)) * x if self.gated else activate(x)
        return self.output_dense(self.dropout_layer(x, training=training))

    def compute_output_spec(self, inputs, training=None):
        x = self.intermediate(inputs)
        if self.gated:
            self.gate(inputs)
        if isinstance(self.activation_function, keras.layers.Layer):
            x = self.activation_function(x)
        return keras.KerasTensor(self.output_dense(x).shape, self.compute_dtype)


def set_network_options(layer, intermediate_dim, activation, gated, use_bias, kernel_initializer):
    """Checks the options of a feed-forward layer, and sets them as attributes."""
    layer.intermediate_dim = checks.optional(checks.size, "intermediate_dim", intermediate_dim)
    layer.activation = activation
    layer.activation_function = get_activation("activation", activation)
    layer.gated = checks.boolean("gated", gated)
    layer.use_bias = checks.boolean("use_bias", use_bias)
    layer.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
    layer.supports_masking = True


def network_widths(layer, inputs_shape):
    """The width D of the inputs, and the width of the hidden layer: `intermediate_dim`, or 4 D."""
    dim = inputs_shape[-1]
    if dim is None:
        raise ValueError("`inputs` must have a known dim, their last axis; received None.")
    return dim, layer.intermediate_dim or 4 * dim
