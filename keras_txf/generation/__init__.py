"""Choosing tokens one after the other. Knows models as functions from ids to logits only."""

from keras_txf.generation.beams import Beam
from keras_txf.generation.contrastive import Contrastive
from keras_txf.generation.processors import (
    ForbiddenTokens,
    ForcedTokens,
    FrequencyPenalty,
    History,
    MinimumLength,
    NoRepeatNgrams,
    PresencePenalty,
    RepetitionPenalty,
)
from keras_txf.generation.results import Scored
from keras_txf.generation.samplers import Greedy, Sampling

__all__ = [
    "Beam",
    "Contrastive",
    "ForbiddenTokens",
    "ForcedTokens",
    "FrequencyPenalty",
    "Greedy",
    "History",
    "MinimumLength",
    "NoRepeatNgrams",
    "PresencePenalty",
    "RepetitionPenalty",
    "Sampling",
    "Scored",
]
