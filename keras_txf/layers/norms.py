"""The two normalisations, by name. Both compute in float32 under every policy."""

import keras

from keras_txf import checks
from keras_txf.layers.options import register


@register
class RMSNormalization(keras.layers.RMSNormalization):
    """Keras' RMS norm, which lets the padding mask pass: Keras' own drops it on the way."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True


NORMS = {
    "layer": lambda use_bias, **kwargs: keras.layers.LayerNormalization(center=use_bias, **kwargs),
    "rms": lambda use_bias, **kwargs: RMSNormalization(**kwargs),
}


def make_norm(norm, epsilon, dtype, name, use_bias=True):
    """`use_bias=False` leaves the layer norm without its offset; RMS norm never has one."""
    checks.one_of("norm", norm, NORMS)
    checks.positive_number("norm_epsilon", epsilon)
    return NORMS[norm](use_bias, epsilon=epsilon, dtype=dtype, name=name)
