"""Transformers from five Keras layers and a few builders."""

from keras_txf.backend.startup import import_keras as _import_keras

_import_keras()

from keras_txf import checkpoints, generation, layers, models, tasks, text, training, visualize  # noqa: E402
from keras_txf.version import __version__  # noqa: E402

__all__ = ["checkpoints", "generation", "layers", "models", "tasks", "text", "training", "visualize", "__version__"]
