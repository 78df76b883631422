"""Dropout with a mask that costs half as much on TensorFlow."""

import keras

from keras_txf.backend.random import dropout
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register


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
