"""LayerScale: a learned factor for each feature of what a sublayer adds to the residual stream."""

import keras

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register


@register
class LayerScale(Layer):
    """Multiplies each feature by a learned factor that begins small: a deep block begins close to the identity.

    A block makes one for each sublayer where `layer_scale` is given.

    Args:
        initial: the factors at first.

    Reference:
        [Going deeper with Image Transformers](https://arxiv.org/abs/2103.17239).
    """

    def __init__(self, initial=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial = checks.positive_number("initial", initial)
        self.supports_masking = True

    def build(self, inputs_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.gamma = self.add_weight(name="gamma", shape=(inputs_shape[-1],), initializer=initializer)

    def call(self, inputs):
        return inputs * self.gamma
