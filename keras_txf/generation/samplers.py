"""How the next token is chosen from its logits."""

import numpy as np

from keras_txf import checks


class Greedy:
    """The likeliest token; the lowest id among equals."""

    def __call__(self, logits, random):
        return np.argmax(logits, axis=-1)


class Sampling:
    """A token drawn from softmax(logits / temperature).

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it; 0 is greedy.
    """

    def __init__(self, temperature=1.0):
        if temperature != 0:
            checks.positive_number("temperature", temperature)
        self.temperature = temperature

    def __call__(self, logits, random):
        if self.temperature == 0:
            return Greedy()(logits, random)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        return np.argmax(logits / self.temperature + random.gumbel(size=logits.shape), axis=-1)


SAMPLERS = {"greedy": Greedy, "sampling": Sampling}


def get_sampler(sampler):
    """A sampler from its name, or a function (logits (B, V) float64, NumPy generator) -> ids (B,)."""
    if isinstance(sampler, type):
        raise ValueError(f"`sampler` must be a name, a sampler or a function; received the class {sampler.__name__}.")
    if callable(sampler):
        return sampler
    return SAMPLERS[checks.one_of("sampler", sampler, SAMPLERS)]()
