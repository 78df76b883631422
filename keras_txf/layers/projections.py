"""The Dense layers inside attention and feed-forward."""

import keras

from keras_txf import checks
from keras_txf.backend.compilers import is_one_row, multiply_one_row
from keras_txf.backend.tensors import current_value
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import own_initializer, register
from keras_txf.ops.logit_factors import note_factors


@register
class Projection(keras.layers.Dense, Layer):
    """Keras' Dense, which multiplies one row in parts where that is faster, and can be quantized."""

    def __init__(self, units, **kwargs):
        super().__init__(checks.size("units", units), **kwargs)  # Keras knows no integers of NumPy

    def call(self, inputs, training=None):
        kernel = self.kernel
        if self.activation is not keras.activations.linear or not is_one_row(inputs, kernel):
            return super().call(inputs, training=training)
        outputs = multiply_one_row(inputs, kernel)
        return outputs if self.bias is None else outputs + self.bias

    def quantize(self, mode=None, type_check=True, config=None):
        if mode in ("gptq", "awq"):
            raise ValueError(
                f"`mode` must be 'int8', 'int4' or 'float8' for {self.path}; received {short_repr(mode)}. Keras 3.15 "
                "calibrates it without the data, and gives wrong kernels where a group of weights has one sign."
            )
        super().quantize(mode, type_check=False, config=config)  # whose check refuses every subclass


@register
class LogitProjection(Projection):
    """The projection to logits of a head with a kernel of its own. It notes the factors of the logits for the loss."""

    def call(self, inputs, training=None):
        logits = super().call(inputs, training=training)
        note_factors(logits, inputs, current_value(self.kernel), tied=False, dtype=self.compute_dtype)
        return logits


def make_projection(layer, name, units, input_shape, use_bias=None):
    """A built projection with the `kernel_initializer`, dtype policy and, unless it is given, `use_bias` of its
    owner.
    """
    projection = Projection(
        units,
        use_bias=layer.use_bias if use_bias is None else use_bias,
        kernel_initializer=own_initializer(layer.kernel_initializer, layer, name),
        dtype=layer.dtype_policy,
        name=name,
    )
    projection.build(input_shape)
    return projection
