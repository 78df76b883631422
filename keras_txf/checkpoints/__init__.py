"""Checkpoints of Hugging Face as functional Keras models, and back."""

from keras_txf.checkpoints.loading import load

__all__ = ["load"]
