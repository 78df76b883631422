"""Samplers: they choose the next token from its logits.

Legend: R rows, V vocabulary.
"""

import dataclasses

from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.beams import Beam
from keras_txf.generation.contrastive import Contrastive
from keras_txf.generation.logits import draw, keep_min_p, keep_top_k, keep_top_p
from keras_txf.generation.parameters import is_temperature, is_zero, number, set_fields
from keras_txf.ops.tensors import LOWEST


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Chooses the likeliest token; the lowest id if several are equal.

    For answers that must not vary: translation, extraction, code.

    Example:

    >>> sampler = txf.generation.Greedy()
    >>> sampler(np.array([[0.5, 2.0, 2.0]], "float32"), seed=None).numpy().tolist()
    [1]
    """

    max_return_sequences = 1  # all sequences would be the same

    def __call__(self, logits, seed):
        return ops.argmax(logits, axis=-1)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Draws a token from softmax(logits / temperature), from all tokens or from the likelier ones.

    For texts that may vary. A vocabulary has many unlikely tokens, and each would derail a text. `top_p` and `min_p`
    drop more of them if the model is sure, and fewer if the model is unsure. The filters apply in the order of the
    arguments, each to the tokens that the earlier filters have kept. `generate` compiles again for another `top_k`, but
    not for another `temperature`, `top_p` or `min_p`.

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it; 0 is greedy with any filters.
        top_k: keeps the k likeliest tokens, and the tokens that are as likely as the last of them.
        top_p: keeps the fewest likeliest tokens whose probabilities sum to `top_p`, at least one. Of equally likely
            tokens the lowest ids are kept.
        min_p: keeps the tokens with at least this share of the likeliest token's probability.

    Call arguments:
        logits: float32 (R, V). A token of -inf is never drawn, unless the whole row is -inf.
        seed: a seed of `keras.random`.

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
    dynamic_parameters = True

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
        """The logits after temperature and filters: the largest is 0, and a token that a filter drops has `LOWEST`."""
        if self.top_k is not None:  # before the temperature: a high temperature rounds logits to equal values
            logits = keep_top_k(logits, self.top_k)
        # The largest logit becomes 0: otherwise several logits would be infinite with a low temperature.
        largest, kept = ops.max(logits, axis=-1, keepdims=True), logits > LOWEST
        scaled = (ops.where(kept, logits, largest) - largest) / self.temperature
        logits = ops.where(kept, scaled, logits)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = keep_min_p(logits, self.min_p)
        return logits


SAMPLERS = {"greedy": Greedy, "sampling": Sampling, "beam": Beam, "contrastive": Contrastive}


def get_sampler(sampler, vocab_size):
    """Returns a sampler from a name, a search, or a function of logits, float32 (B, V), and a seed -> ids (B,)."""
    if isinstance(sampler, type):
        raise ValueError(f"`sampler` must be a name, a sampler or a function; received the class {sampler.__name__}.")
    if not (callable(sampler) or hasattr(sampler, "decoding_loop")):
        sampler = SAMPLERS[checks.one_of("sampler", sampler, SAMPLERS)]()
    checks.hashable("sampler", sampler)
    if hasattr(sampler, "check_vocabulary"):
        sampler.check_vocabulary(vocab_size)
    if isinstance(sampler, Sampling) and sampler.temperature == 0:
        return Greedy()
    return sampler


def check_options(kind, options, known):
    """Raises ValueError for unknown options of a call. For an option of a sampler the message names the sampler."""
    for name, value in options.items():
        samplers = [cls for cls in SAMPLERS.values() if name in {field.name for field in dataclasses.fields(cls)}]
        if name not in known and samplers:
            raise ValueError(
                f"`{name}` is an option of a sampler, not {kind}: pass "
                f"sampler=txf.generation.{samplers[0].__name__}({name}={short_repr(value)})."
            )
    checks.known_names(kind, options, known)


def check_sequences(sampler, num_return_sequences):
    """Returns the number of sequences for each prompt. Raises ValueError if it exceeds the sampler's maximum."""
    if num_return_sequences is None:
        return 1
    num_return_sequences = checks.positive_integer("num_return_sequences", num_return_sequences)
    most = getattr(sampler, "max_return_sequences", num_return_sequences)
    if num_return_sequences > most:
        raise ValueError(
            f"`num_return_sequences` must be at most {most} with {sampler}, which finds no more different sequences; "
            f"received {num_return_sequences}."
        )
    return num_return_sequences


def check_stream(sampler, padded, return_scores):
    """Raises ValueError for options that do not work with a stream of tokens."""
    if not getattr(sampler, "can_stream", True):
        raise ValueError("`stream` does not go with a beam search, which knows its tokens at the end.")
    if return_scores or not padded:
        raise ValueError("`stream` yields tokens: it does not go with `return_scores` or padded=False.")


def check_stop_strings(sampler, strings):
    """Raises ValueError for stop strings, a list, with a search that knows its texts only at its end."""
    if strings and not getattr(sampler, "can_stream", True):
        raise ValueError(
            "`stop_strings` does not go with a beam search, which knows its texts at the end: pass stop_strings=(), "
            f'or another sampler such as sampler="greedy"; received {short_repr(strings)}.'
        )
