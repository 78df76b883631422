"""Generates tokens one after the other. A model is known only as a function from ids to logits."""

from keras_txf.generation.beams import Beam
from keras_txf.generation.contrastive import Contrastive
from keras_txf.generation.decoder import Decoder
from keras_txf.generation.loop import History
from keras_txf.generation.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from keras_txf.generation.processors import ForbiddenTokens, ForcedTokens, MinimumLength, NoRepeatNgrams
from keras_txf.generation.results import Scored, ScoredWithTop, State, WithState
from keras_txf.generation.samplers import Greedy, Sampling

__all__ = [
    "Beam",
    "Contrastive",
    "Decoder",
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
    "ScoredWithTop",
    "State",
    "WithState",
]
