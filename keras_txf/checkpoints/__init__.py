"""Loads checkpoints of Hugging Face as functional Keras models, and saves models as such checkpoints."""

from keras_txf.checkpoints.hub import find
from keras_txf.checkpoints.loading import load
from keras_txf.checkpoints.saving import save

__all__ = ["find", "load", "save"]
