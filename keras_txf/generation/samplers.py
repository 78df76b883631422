"""How the next token is chosen from its logits."""

import dataclasses

import keras
from keras import ops

from keras_txf import checks


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The likeliest token; the lowest id among equals."""

    def __call__(self, logits, seed):
        return ops.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """A token drawn from softmax(logits / temperature).

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it; 0 is greedy.
    """

    temperature: float = 1.0

    def __post_init__(self):
        if self.temperature != 0:
            checks.positive_number("temperature", self.temperature)

    def __call__(self, logits, seed):
        if self.temperature == 0:
            return Greedy()(logits, seed)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        uniform = keras.random.uniform(ops.shape(logits), minval=1e-20, seed=seed)
        return ops.argmax(logits / self.temperature - ops.log(-ops.log(uniform)), axis=-1)


SAMPLERS = {"greedy": Greedy, "sampling": Sampling}


def get_sampler(sampler):
    """A sampler from its name, or a function of logits, float32 (B, V), and a seed that `keras.random` takes -> ids (B,)."""
    if isinstance(sampler, type):
        raise ValueError(f"`sampler` must be a name, a sampler or a function; received the class {sampler.__name__}.")
    if callable(sampler):
        return sampler
    return SAMPLERS[checks.one_of("sampler", sampler, SAMPLERS)]()
