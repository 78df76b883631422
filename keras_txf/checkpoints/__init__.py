"""Loads and saves checkpoints of Hugging Face, as functional Keras models, and adapters of peft."""

from keras_txf.checkpoints.adapters import load_adapter, save_adapter
from keras_txf.checkpoints.description import Description, describe, families
from keras_txf.checkpoints.files import find
from keras_txf.checkpoints.image_files import image_processor
from keras_txf.checkpoints.images import ImageProcessor
from keras_txf.checkpoints.loading import load
from keras_txf.checkpoints.resizing import resize_vocabulary
from keras_txf.checkpoints.saving import save

__all__ = [
    "Description",
    "ImageProcessor",
    "describe",
    "families",
    "find",
    "image_processor",
    "load",
    "load_adapter",
    "resize_vocabulary",
    "save",
    "save_adapter",
]
