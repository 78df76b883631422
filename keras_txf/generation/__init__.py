"""Choosing tokens one after the other. Knows models as functions from ids to logits only."""

from keras_txf.generation.samplers import Greedy, Sampling

__all__ = ["Greedy", "Sampling"]
