"""How the next token is chosen from its logits."""

import dataclasses

import keras
from keras import ops

from keras_txf import checks
from keras_txf.generation.beams import Beam
from keras_txf.generation.contrastive import Contrastive


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


SAMPLERS = {"greedy": Greedy, "sampling": Sampling, "beam": Beam, "contrastive": Contrastive}


def get_sampler(sampler, vocab_size):
    """A sampler from its name, a search, or a function of logits, float32 (B, V), and a seed -> ids (B,)."""
    if isinstance(sampler, type):
        raise ValueError(f"`sampler` must be a name, a sampler or a function; received the class {sampler.__name__}.")
    if isinstance(sampler, str) or not (callable(sampler) or isinstance(sampler, (Beam, Contrastive))):
        sampler = SAMPLERS[checks.one_of("sampler", sampler, SAMPLERS)]()
    if isinstance(sampler, Contrastive) and sampler.num_candidates > vocab_size:
        raise ValueError(
            f"`num_candidates` must not exceed the vocabulary's size, {vocab_size}; received {sampler.num_candidates}."
        )
    if isinstance(sampler, Sampling) and sampler.temperature == 0:
        return Greedy()
    return sampler


def check_sequences(sampler, num_return_sequences):
    """How many sequences for each prompt; refuses what the sampler cannot give."""
    if num_return_sequences is None:
        return 1
    checks.positive_integer("num_return_sequences", num_return_sequences)
    most = sampler.num_beams if isinstance(sampler, Beam) else 1
    if num_return_sequences > most and isinstance(sampler, (Greedy, Beam, Contrastive)):
        raise ValueError(
            f"`num_return_sequences` must be at most {most} with {sampler}: it finds no more that differ; "
            f"received {num_return_sequences}."
        )
    return num_return_sequences


def check_stream(sampler, padded, return_scores):
    """Refuses what a stream of tokens cannot have."""
    if isinstance(sampler, Beam):
        raise ValueError("`stream` does not go with a beam search, which knows its tokens at the end.")
    if return_scores or not padded:
        raise ValueError("`stream` yields tokens: it does not go with `return_scores` or padded=False.")
