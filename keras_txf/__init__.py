"""Transformers from five Keras layers and three builders."""

from keras_txf import generation, layers, models, text, training
from keras_txf.version import __version__

__all__ = ["generation", "layers", "models", "text", "training", "__version__"]
