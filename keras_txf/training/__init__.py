"""Losses, metrics, schedules, targets and callbacks. `compile` and `fit` stay Keras' own."""

from keras_txf.training.averaging import KeepCheckpoints, average_checkpoints
from keras_txf.training.losses import TokenCrossEntropy
from keras_txf.training.metrics import Perplexity, TokenAccuracy
from keras_txf.training.r_drop import RDrop
from keras_txf.training.resuming import Resume
from keras_txf.training.schedules import InverseSquareRoot, warmup_cosine
from keras_txf.training.scores import GenerationScores
from keras_txf.training.targets import next_token, next_token_windows, teacher_forcing

__all__ = [
    "GenerationScores",
    "InverseSquareRoot",
    "KeepCheckpoints",
    "Perplexity",
    "RDrop",
    "Resume",
    "TokenAccuracy",
    "TokenCrossEntropy",
    "average_checkpoints",
    "next_token",
    "next_token_windows",
    "teacher_forcing",
    "warmup_cosine",
]
