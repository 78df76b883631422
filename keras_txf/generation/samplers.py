"""How the next token is chosen from its logits.

Legend: R rows, V vocabulary.
"""

import dataclasses
import math

from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.adjustable import is_temperature, is_zero, number, set_fields
from keras_txf.generation.beams import Beam
from keras_txf.generation.contrastive import Contrastive
from keras_txf.generation.filters import draw, keep_min_p, keep_top_k, keep_top_p


@dataclasses.dataclass(frozen=True)
class Greedy:
    """The likeliest token; the lowest id among equals.

    For answers that must not vary, and where one is right: translation, extraction, code.

    Example:

    >>> sampler = txf.generation.Greedy()
    >>> sampler(np.array([[0.5, 2.0, 2.0]], "float32"), seed=None).numpy().tolist()
    [1]
    """

    def __call__(self, logits, seed):
        return ops.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """A token drawn from softmax(logits / temperature), from all tokens or from the likelier ones.

    For texts that may vary. The unlikely tokens are many, and each would derail a text; `top_p` and
    `min_p` leave them out where the model is sure, and keep more of them where it is not. The filters
    apply in this order, each to what those before it have left. A number of another value does not
    compile `generate` anew; another `top_k` does.

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it; 0 is greedy, whatever the filters.
        top_k: keeps this many of the likeliest tokens, and those as likely as the last of them.
        top_p: keeps the likeliest tokens, as few as have this probability together, at least one; of
            equals the lowest ids.
        min_p: keeps the tokens with at least this share of the likeliest one's probability.

    Call arguments:
        logits: float32 (R, V). -inf is never drawn, unless nothing else is in its row.
        seed: what `keras.random` takes.

    Returns:
        Ids, int (R,).

    Raises:
        ValueError: a negative temperature, top_k below 1, top_p outside (0, 1], min_p outside [0, 1].

    Reference:
        [Hierarchical Neural Story Generation](https://arxiv.org/abs/1805.04833) for `top_k`,
        [The Curious Case of Neural Text Degeneration](https://arxiv.org/abs/1904.09751) for `top_p`,
        [Turning Up the Heat](https://arxiv.org/abs/2407.01082) for `min_p`.

    Example:

    >>> sampler = txf.generation.Sampling(temperature=0.7, top_k=50, top_p=0.9)
    >>> logits = np.array([[0.0, 9.0, 1.0], [9.0, 0.0, 1.0]], "float32")
    >>> sampler(logits, seed=3).numpy().tolist()
    [1, 0]
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    adjustable = True

    def __post_init__(self):
        set_fields(
            self,
            temperature=number("temperature", self.temperature, is_temperature, "positive, or 0 for greedy"),
            top_k=checks.optional(checks.positive_integer, "top_k", self.top_k),
            top_p=checks.optional(number, "top_p", self.top_p, lambda p: 0 < p <= 1, "a probability in (0, 1]"),
            min_p=checks.optional(number, "min_p", self.min_p, lambda p: 0 <= p <= 1, "a share in [0, 1]"),
        )

    def __call__(self, logits, seed):
        if is_zero(self.temperature):
            return Greedy()(logits, seed)
        return draw(self.filtered(logits), seed)

    def filtered(self, logits):
        """The logits whose softmax is drawn from: less the largest, over the temperature, -inf where a filter leaves a token out."""
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)  # of the logits as they are: a high temperature rounds them to equals
        # From the largest on, or a low temperature would make several infinite.
        largest = ops.max(logits, axis=-1, keepdims=True)
        scaled = (logits - ops.where(largest > -math.inf, largest, 0.0)) / self.temperature
        logits = ops.where(logits > -math.inf, scaled, -math.inf)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits


SAMPLERS = {"greedy": Greedy, "sampling": Sampling, "beam": Beam, "contrastive": Contrastive}


def get_sampler(sampler, vocab_size):
    """A sampler from its name, a search, or a function of logits, float32 (B, V), and a seed -> ids (B,)."""
    if isinstance(sampler, type):
        raise ValueError(f"`sampler` must be a name, a sampler or a function; received the class {sampler.__name__}.")
    if isinstance(sampler, str) or not (callable(sampler) or isinstance(sampler, (Beam, Contrastive))):
        sampler = SAMPLERS[checks.one_of("sampler", sampler, SAMPLERS)]()
    checks.hashable("sampler", sampler)
    if isinstance(sampler, Contrastive) and sampler.num_candidates > vocab_size:
        raise ValueError(
            f"`num_candidates` must not exceed the vocabulary's size, {vocab_size}; received {sampler.num_candidates}."
        )
    if isinstance(sampler, Beam) and sampler.num_beams * vocab_size >= 2**31:
        raise ValueError(
            f"`num_beams` times the vocabulary's size, {vocab_size}, must be below 2**31; received {short_repr(sampler.num_beams)}."
        )
    if isinstance(sampler, Sampling) and sampler.temperature == 0:
        return Greedy()
    return sampler


def check_sequences(sampler, num_return_sequences):
    """How many sequences for each prompt; refuses what the sampler cannot give."""
    if num_return_sequences is None:
        return 1
    num_return_sequences = checks.positive_integer("num_return_sequences", num_return_sequences)
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
