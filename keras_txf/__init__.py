"""Transformers from five Keras layers and three builders."""

from keras_txf import checkpoints, generation, layers, models, tasks, text, training, visualize
from keras_txf.version import __version__

__all__ = ["checkpoints", "generation", "layers", "models", "tasks", "text", "training", "visualize", "__version__"]
