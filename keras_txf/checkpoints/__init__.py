"""Checkpoints of Hugging Face as functional Keras models, and back."""

from keras_txf.checkpoints.finding import find
from keras_txf.checkpoints.loading import load
from keras_txf.checkpoints.saving import save

__all__ = ["find", "load", "save"]
