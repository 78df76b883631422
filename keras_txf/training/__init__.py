"""Losses, metrics, schedules and targets. `compile` and `fit` stay Keras' own."""

from keras_txf.training.losses import TokenCrossEntropy
from keras_txf.training.metrics import Perplexity, TokenAccuracy
from keras_txf.training.schedules import InverseSquareRoot, warmup_cosine
from keras_txf.training.targets import next_token, next_token_windows, teacher_forcing

__all__ = [
    "InverseSquareRoot",
    "Perplexity",
    "TokenAccuracy",
    "TokenCrossEntropy",
    "next_token",
    "next_token_windows",
    "teacher_forcing",
    "warmup_cosine",
]
