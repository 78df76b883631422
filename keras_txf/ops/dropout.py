"""Dropout of attention weights."""

import dataclasses
from typing import Any

from keras import ops

from keras_txf.backend.keras_private import seed_of_words
from keras_txf.backend.random import dropout


@dataclasses.dataclass
class WeightDropout:
    """Dropout of attention weights: of all at once, or of a block by its number, as often as it is computed."""

    rate: float
    seed: Any  # a `keras.random.SeedGenerator`

    def __call__(self, weights):
        return dropout(weights, self.rate, self.seed)

    def in_blocks(self):
        """A function of weights and the number of their block, which drops the same weights in each call."""
        return BlockDropout(self.rate, self.seed.next())


@dataclasses.dataclass
class BlockDropout:
    """Dropout of a block of attention weights, which drops the same weights whenever the block is computed."""

    rate: float
    words: Any  # the two integers of a seed

    def __call__(self, weights, number):
        return dropout(weights, self.rate, seed_of_words(_move(self.words, number)))


def _move(words, number):
    """The first of a seed's two words is moved by a multiple of 2³² divided by the golden ratio."""
    moved = words[0] + ops.cast(number + 1, words.dtype) * 1640531527
    return ops.stack([moved, words[1]])
