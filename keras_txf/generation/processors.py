"""What may not be said, or should be said less: functions of the logits and of all tokens so far.

A logit of -inf forbids its token. Where processors forbid all tokens of a row together, what follows is one of
those tokens, of log-probability -inf, and a beam search goes on without that beam: such demands are not checked, as
they depend on what is said. All other numbers stay within -1e30 and 1e30, whatever the penalties.

Legend: R rows, L columns of tokens, P columns of prompt, V vocabulary, S stops, M length of the longest.
"""

import dataclasses
import math
import numbers
import typing

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.adjustable import is_finite, is_positive, number, set_fields
from keras_txf.generation.bounds import bounded


class History(typing.NamedTuple):
    """What a logits processor knows: all tokens so far, where the prompts end, and what stops a row.

    For processors of your own, functions of `(logits, history)`, logits float32 (R, V); in a search of several
    beams these are log-probabilities. They are compiled: let them be made of `keras.ops`, and not ask in Python
    for values.

    Args:
        tokens: int32 (R, L), each token in its column; -1 where there is none, at padding and where a token
            is still to come.
        prompt_length: P, the number of columns of the prompts. Generated tokens stand in the columns P, P + 1, ...
        count: int32 (), how many tokens have been generated. The next one is that of column P + count.
        stops: int32 (S, M), a stop in each row, at its right end; what is before it is -2, for any token.
            -3 throughout is no stop.

    Example:

    >>> def never_start_with_the_prompts_end(logits, history):
    ...     last = history.tokens[:, history.prompt_length - 1]
    ...     repeats = keras.ops.one_hot(last, logits.shape[-1], dtype="bool") & (history.count == 0)
    ...     return keras.ops.where(repeats, -np.inf, logits)
    >>> history = txf.generation.History(np.array([[3, 1, -1]]), prompt_length=2, count=0, stops=np.array([[2]]))
    >>> never_start_with_the_prompts_end(np.zeros((1, 4), "float32"), history).numpy().tolist()
    [[0.0, -inf, 0.0, 0.0]]
    """

    tokens: typing.Any
    prompt_length: typing.Any
    count: typing.Any
    stops: typing.Any


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty:
    """Makes the tokens of the prompt and of the answer so far less likely.

    For models that repeat themselves. The prompt counts too, so answers that should quote it suffer;
    `PresencePenalty` and `FrequencyPenalty` leave the prompt alone.

    Args:
        penalty: positive logits are divided by it, negative ones multiplied; 1 does nothing, 1.2 is usual,
            below 1 invites repetition.

    Raises:
        ValueError: a penalty that is not positive.

    Reference:
        [CTRL](https://arxiv.org/abs/1909.05858), with the prompt and for negative logits as in transformers.

    Example:

    >>> history = txf.generation.History(np.array([[0, 1]]), prompt_length=1, count=1, stops=np.array([[2]]))
    >>> penalize = txf.generation.RepetitionPenalty(2.0)
    >>> penalize(np.array([[3.0, -1.0, 3.0]], "float32"), history).numpy().tolist()
    [[1.5, -2.0, 3.0]]
    """

    penalty: float
    adjustable = True

    def __post_init__(self):
        set_fields(self, penalty=number("penalty", self.penalty, is_positive, "a positive number"))

    def __call__(self, logits, history):
        penalized = ops.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return ops.where(occurrences(history.tokens, logits) > 0, bounded(penalized, logits), logits)


@dataclasses.dataclass(frozen=True)
class PresencePenalty:
    """Lowers the logits of the tokens that the answer has already, each once.

    For answers that should come to new subjects. The prompt does not count.

    Args:
        penalty: what is subtracted; negative numbers invite repetition. The OpenAI API takes -2 to 2.

    Raises:
        ValueError: a penalty that is not a finite number.

    Reference:
        The [OpenAI API](https://platform.openai.com/docs/api-reference), and vLLM after it.

    Example:

    >>> history = txf.generation.History(np.array([[0, 1, 1]]), prompt_length=1, count=2, stops=np.array([[2]]))
    >>> txf.generation.PresencePenalty(0.5)(np.zeros((1, 3), "float32"), history).numpy().tolist()
    [[0.0, -0.5, 0.0]]
    """

    penalty: float
    adjustable = True

    def __post_init__(self):
        set_fields(self, penalty=number("penalty", self.penalty, is_finite, "a finite number"))

    def __call__(self, logits, history):
        return ops.where(occurrences(generated(history), logits) > 0, bounded(logits - self.penalty, logits), logits)


@dataclasses.dataclass(frozen=True)
class FrequencyPenalty:
    """Lowers the logits of the tokens that the answer has already, by how often it has them.

    For answers that fall into loops: what comes again and again becomes ever less likely. The prompt does not count.

    Args:
        penalty: what is subtracted for each occurrence; negative numbers invite repetition. The OpenAI API
            takes -2 to 2.

    Raises:
        ValueError: a penalty that is not a finite number.

    Reference:
        The [OpenAI API](https://platform.openai.com/docs/api-reference), and vLLM after it.

    Example:

    >>> history = txf.generation.History(np.array([[0, 1, 1]]), prompt_length=1, count=2, stops=np.array([[2]]))
    >>> txf.generation.FrequencyPenalty(0.5)(np.zeros((1, 3), "float32"), history).numpy().tolist()
    [[0.0, -1.0, 0.0]]
    """

    penalty: float
    adjustable = True

    def __post_init__(self):
        set_fields(self, penalty=number("penalty", self.penalty, is_finite, "a finite number"))

    def __call__(self, logits, history):
        return bounded(logits - self.penalty * occurrences(generated(history), logits), logits)


@dataclasses.dataclass(frozen=True)
class NoRepeatNgrams:
    """Forbids the token that would complete an n-gram for the second time, in the prompt and the answer together.

    For summaries and translations by beam search, which easily end in loops. With a small size it forbids much:
    a name of two tokens appears only once.

    Args:
        size: the length n of the n-grams; 1 forbids every token that was there.

    Raises:
        ValueError: a size that is not a positive integer.

    Reference:
        [A Deep Reinforced Model for Abstractive Summarization](https://arxiv.org/abs/1705.04304), as in transformers.

    Example:

    >>> history = txf.generation.History(np.array([[1, 2, 0, 1]]), prompt_length=2, count=2, stops=np.array([[3]]))
    >>> txf.generation.NoRepeatNgrams(2)(np.zeros((1, 4), "float32"), history).numpy().tolist()
    [[0.0, 0.0, -inf, 0.0]]
    """

    size: int

    def __post_init__(self):
        set_fields(self, size=checks.positive_int32("size", self.size))

    def __call__(self, logits, history):
        columns = history.tokens.shape[1]
        if isinstance(columns, int) and self.size > columns:
            return logits  # so many tokens cannot come twice
        last = recent(history.tokens, history, self.size - 1)
        follows = history.tokens >= 0
        for back in range(1, self.size):
            token = last[:, -back, None]
            same = ops.logical_and(token >= 0, earlier(history.tokens, back) == token)
            follows = ops.logical_and(follows, same)
        return forbid(logits, ops.where(follows, history.tokens, -1))


@dataclasses.dataclass(frozen=True)
class MinimumLength:
    """Forbids what would complete a stop, until an answer is long enough.

    For models that give up too early. A stop of several tokens counts where all of them are generated.

    Args:
        min_new_tokens: so many tokens come before one that stops.

    Raises:
        ValueError: a length that is not a positive integer.

    Reference:
        `MinNewTokensLengthLogitsProcessor` of transformers, for stops of several tokens too.

    Example:

    >>> history = txf.generation.History(np.array([[1, 0]]), prompt_length=1, count=1, stops=np.array([[2]]))
    >>> txf.generation.MinimumLength(2)(np.zeros((1, 3), "float32"), history).numpy().tolist()
    [[0.0, 0.0, -inf]]
    """

    min_new_tokens: int

    def __post_init__(self):
        set_fields(self, min_new_tokens=checks.positive_int32("min_new_tokens", self.min_new_tokens))

    def __call__(self, logits, history):
        before = recent(generated(history), history, history.stops.shape[1] - 1)
        ends = completing(history.stops, before)
        return forbid(logits, ops.where(history.count < self.min_new_tokens, ends, -1))


@dataclasses.dataclass(frozen=True)
class ForcedTokens:
    """Allows a single token at some places of the answer.

    For answers that begin with the token of a language or a task. It comes even where another processor, before
    this one, has forbidden it.

    Args:
        tokens: dict of places and ids; 0 is the place of the first generated token.

    Raises:
        ValueError: no places, negative ones, or what is not an id.

    Reference:
        `ForcedBOSTokenLogitsProcessor` of transformers, for any place.

    Example:

    >>> history = txf.generation.History(np.array([[1, -1]]), prompt_length=1, count=0, stops=np.array([[3]]))
    >>> txf.generation.ForcedTokens({0: 2})(np.ones((1, 4), "float32"), history).numpy().tolist()
    [[-inf, -inf, 0.0, -inf]]
    """

    tokens: dict

    def __post_init__(self):
        try:
            tokens = sorted(dict(self.tokens).items())
        except (TypeError, ValueError):
            tokens = []
        if not tokens:
            raise ValueError(f"`tokens` must be a dict of places and ids, such as {{0: 5}}; received {short_repr(self.tokens)}.")
        # As pairs, which can be hashed.
        set_fields(self, tokens=tuple((place_of(place), checks.id_below("tokens", token)) for place, token in tokens))

    def __call__(self, logits, history):
        places, ids = np.array(self.tokens, "int32").T
        now = ops.equal(places, history.count)
        chosen = ops.equal(np.arange(logits.shape[-1]), ops.max(ops.where(now, ids, -1)))
        return ops.where(ops.any(now), ops.where(chosen, 0.0, -math.inf), logits)


@dataclasses.dataclass(frozen=True)
class ForbiddenTokens:
    """Forbids tokens, and sequences of tokens.

    For words that must not be said. Of a sequence the last token is forbidden, where those before it have just
    come; they may be the prompt's.

    Args:
        ids: list of ids, and of lists of ids. A word usually has several spellings as tokens, with and
            without a space before it; each is a sequence of its own.

    Raises:
        ValueError: an empty list, or what is not an id.

    Reference:
        `NoBadWordsLogitsProcessor` of transformers.

    Example:

    >>> history = txf.generation.History(np.array([[1, 0]]), prompt_length=1, count=1, stops=np.array([[2]]))
    >>> txf.generation.ForbiddenTokens([2, [0, 3], [1, 1]])(np.zeros((1, 4), "float32"), history).numpy().tolist()
    [[0.0, 0.0, -inf, -inf]]
    """

    ids: tuple

    def __post_init__(self):
        entries = listed(self.ids)
        sequences = [[entry] if isinstance(entry, (str, numbers.Number)) else listed(entry) for entry in entries]
        rows = {tuple(checks.id_below("ids", token) for token in row) for row in sequences}
        set_fields(self, ids=tuple(sorted(rows)))  # in any order they are the same

    def __call__(self, logits, history):
        longest = max(map(len, self.ids))
        table = np.array([(-2,) * (longest - len(row)) + row for row in self.ids], "int32")
        return forbid(logits, completing(table, recent(history.tokens, history, longest - 1)))


def check_processors(processors, vocab_size):
    """The processors as a tuple; None is none.

    Args:
        processors: list of functions of `(logits, history)`, those above among them.
        vocab_size: V, which their ids must be below.

    Raises:
        ValueError: what is no list, not callable or hashable, a class, has ids outside the vocabulary, or forbids all.
    """
    if not isinstance(processors, (list, tuple, type(None))):
        raise ValueError(f"`processors` must be a list of logits processors; received {short_repr(processors)}.")
    for processor in processors or ():
        if isinstance(processor, type):
            raise ValueError(f"`processors` must hold instances or functions; received the class {processor.__name__}.")
        if not callable(processor):
            raise ValueError(f"`processors` must hold functions of logits and history; received {short_repr(processor)}.")
        checks.hashable("processors", processor)
        if isinstance(processor, ForcedTokens):
            checks.ids_in_vocabulary("ForcedTokens", np.array(processor.tokens)[:, 1], vocab_size)
        if isinstance(processor, ForbiddenTokens):
            checks.ids_in_vocabulary("ForbiddenTokens", np.concatenate(processor.ids), vocab_size)
    forbidden = {ids for processor in processors or () if isinstance(processor, ForbiddenTokens) for ids in processor.ids}
    if sum(len(ids) == 1 for ids in forbidden) == vocab_size:
        raise ValueError(f"`ids` of ForbiddenTokens must leave at least one token; received all {vocab_size}.")
    return tuple(processors or ())


def place_of(value):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= value < 2**31:
        raise ValueError(f"`tokens` must have places that are integers below 2**31, from 0 on; received {short_repr(value)}.")
    return int(value)


def listed(values):
    """What is not empty and can be listed."""
    entries = list(values) if np.iterable(values) and not isinstance(values, str) else []
    if not entries:
        raise ValueError(f"`ids` must be a list of token ids, or of lists of them, none empty; received {short_repr(values)}.")
    return entries


def occurrences(tokens, logits):
    """How often each id is among the tokens, which are -1 where there is none: float32, the shape of the logits."""
    real = tokens >= 0
    ids = ops.where(real, tokens, 0)
    rows = ops.broadcast_to(ops.arange(ops.shape(ids)[0], dtype=ids.dtype)[:, None], ops.shape(ids))
    indices = ops.reshape(ops.stack([rows, ids], axis=-1), (-1, 2))
    counts = ops.reshape(ops.cast(real, "float32"), (-1,))
    return ops.scatter_update(ops.zeros_like(logits), indices, counts, reduction="add")


def forbid(logits, tokens):
    """-inf for these tokens, int (R, any), which are -1 where there is none."""
    return ops.where(occurrences(tokens, logits) > 0, -math.inf, logits)


def generated(history):
    """The tokens without those of the prompt."""
    columns = ops.arange(ops.shape(history.tokens)[1], dtype="int32")
    return ops.where(columns >= history.prompt_length, history.tokens, -1)


def recent(tokens, history, length):
    """The last tokens, (R, length), with -1 before the first."""
    columns = history.prompt_length + history.count + ops.arange(length, dtype="int32")
    return ops.take(ops.pad(tokens, ((0, 0), (length, 0)), constant_values=-1), columns, axis=1)


def earlier(tokens, back):
    """In each column the token that comes so many columns before it, -1 where there is none."""
    return ops.pad(tokens, ((0, 0), (back, 0)), constant_values=-1)[:, :-back]


def completing(table, before):
    """The last token of each of the table's sequences where the others have just come, else -1: int (R, S).

    Args:
        table: int (S, M), see `History.stops`.
        before: the last M - 1 tokens, int (R, M - 1).
    """
    table = ops.convert_to_tensor(table)
    others, last = table[None, :, :-1], table[:, -1]
    come = ops.all(ops.logical_or(others == -2, ops.equal(others, before[:, None])), axis=-1)
    return ops.where(come, last, -1)
