"""Keras' Dense and Dropout, as attention and feed-forward use them."""

import keras

from keras_txf import checks
from keras_txf.backend.compilers import is_one_row, multiply_one_row
from keras_txf.backend.random import dropout
from keras_txf.backend.tensors import current_value
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import own_initializer, register
from keras_txf.ops.logit_factors import note_factors


@register
class Projection(keras.layers.Dense, Layer):
    """Keras' Dense. Multiplies a single row in parts where this is faster, and can be quantized."""

    def __init__(self, units, **kwargs):
        super().__init__(checks.size("units", units), **kwargs)  # Keras does not accept integers of NumPy

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
                "calibrates this mode without the data, and computes wrong kernels if a group of weights has one sign."
            )
        super().quantize(mode, type_check=False, config=config)  # Keras' check rejects every subclass


@register
class LogitProjection(Projection):
    """The projection to logits with its own kernel. Notes the factors of the logits for the loss."""

    def call(self, inputs, training=None):
        logits = super().call(inputs, training=training)
        note_factors(logits, inputs, current_value(self.kernel), tied=False, dtype=self.compute_dtype)
        return logits


def make_projection(layer, name, units, input_shape, use_bias=None):
    """Makes and builds a projection of `layer`, with its `kernel_initializer`, its dtype policy and its `use_bias`.

    The argument `use_bias` overrides the layer's, unless it is None.
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


@register
class Dropout(keras.layers.Dropout, Layer):
    """Keras' Dropout without `noise_shape`, and with the faster mask of `backend.random` on TensorFlow."""

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(rate, seed=seed, **kwargs)

    def call(self, inputs, training=False):
        if training and self.rate > 0:
            return dropout(inputs, self.rate, self.seed_generator)
        return inputs

    def get_config(self):
        config = super().get_config()
        del config["noise_shape"]
        return config
