"""Logits processors that forbid tokens or force them: functions of the logits and of all tokens so far.

A logit of -inf forbids its token. Several processors together may forbid all tokens of a row, which depends on the
tokens so far and cannot be checked: then a sampler chooses a forbidden token, of log-probability -inf, and a beam
search drops the beam. All other logits stay within -1e30 and 1e30, whatever the penalties.

Legend: R rows, L columns of tokens, P columns of prompt, V vocabulary, S stops, M length of the longest.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.logits import LARGEST_LOGIT
from keras_txf.generation.parameters import set_fields
from keras_txf.generation.penalties import generated_tokens, occurrences


@dataclasses.dataclass(frozen=True)
class NoRepeatNgrams:
    """Forbids the token that would complete an n-gram for the second time, in the prompt and the answer together.

    For summaries and translations by beam search, which easily end in loops. A small size forbids much: with 2, a name
    of two tokens appears only once, and tokens are often pieces of words.

    Args:
        size: the length n of the n-grams; 1 forbids every earlier token.

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
            return logits  # no n-gram can occur twice
        last = last_tokens(history.tokens, history, self.size - 1)
        completes = history.tokens >= 0
        for distance in range(1, self.size):
            token = last[:, -distance, None]
            same = ops.logical_and(token >= 0, shift_right(history.tokens, distance) == token)
            completes = ops.logical_and(completes, same)
        return forbid(logits, ops.where(completes, history.tokens, -1))


@dataclasses.dataclass(frozen=True)
class MinimumLength:
    """Forbids the tokens that would complete a stop until an answer is long enough.

    For models that stop too early. A stop of several tokens counts if all its tokens are generated.

    Args:
        min_new_tokens: the least number of tokens before the token that completes a stop.

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
        before = last_tokens(generated_tokens(history), history, history.stops.shape[1] - 1)
        stops = completing_tokens(history.stops, before)
        return forbid(logits, ops.where(history.count < self.min_new_tokens, stops, -1))


@dataclasses.dataclass(frozen=True)
class ForcedTokens:
    """Allows a single token, or one of several, at some positions of the answer.

    For answers that start with the token of a language or a task. A single token is allowed even if an earlier
    processor forbids the token. With several tokens their logits do not change.

    Args:
        tokens: dict of positions and ids, or lists of ids; 0 is the position of the first generated token.

    Raises:
        ValueError: no positions, negative positions, or values that are not ids.

    Reference:
        `ForcedBOSTokenLogitsProcessor` of transformers, for any position.

    Example:

    >>> history = txf.generation.History(np.array([[1, -1]]), prompt_length=1, count=0, stops=np.array([[3]]))
    >>> txf.generation.ForcedTokens({0: 2})(np.ones((1, 4), "float32"), history).numpy().tolist()
    [[-inf, -inf, 0.0, -inf]]
    >>> txf.generation.ForcedTokens({0: [0, 2]})(np.ones((1, 4), "float32"), history).numpy().tolist()
    [[1.0, -inf, 1.0, -inf]]
    """

    tokens: dict[int, int | Sequence[int]]

    def __post_init__(self):
        try:
            tokens = sorted(dict(self.tokens).items())
        except (TypeError, ValueError):
            tokens = []
        if not tokens:
            raise ValueError(
                f"`tokens` must be a dict of positions and ids, such as {{0: 5}}; received {short_repr(self.tokens)}."
            )
        pairs = tuple((position_of(key), _one_or_several(ids)) for key, ids in tokens)
        set_fields(self, tokens=pairs)  # a tuple can be hashed

    def __call__(self, logits, history):
        allowed = np.zeros((len(self.tokens), logits.shape[-1]), bool)
        for row, (_, ids) in zip(allowed, self.tokens):
            row[np.array(ids)] = True
        is_now = ops.equal(np.array([position for position, _ in self.tokens], "int32"), history.count)
        is_single = np.array([isinstance(ids, int) for _, ids in self.tokens])
        here = ops.any(ops.logical_and(is_now[:, None], allowed), axis=0)
        logits = ops.where(ops.any(ops.logical_and(is_now, is_single)), 0.0, logits)
        return ops.where(ops.logical_or(here, ops.logical_not(ops.any(is_now))), logits, -math.inf)


def _one_or_several(ids):
    """An id, or the sorted ids of a list with more than one."""
    if not isinstance(ids, (list, tuple)) or not ids:
        return checks.id_below("tokens", ids)
    several = tuple(sorted({checks.id_below("tokens", token) for token in ids}))
    return several if len(several) > 1 else several[0]


@dataclasses.dataclass(frozen=True)
class ForbiddenTokens:
    """Forbids tokens, and sequences of tokens.

    For words that must not occur. The last token of a sequence is forbidden directly after the others, which may
    belong to the prompt.

    Args:
        ids: list of ids, and of lists of ids. A word usually has several spellings as tokens, with and
            without a space before it; each spelling is its own sequence.
        positions: list of the positions of the answer at which the tokens are forbidden, 0 for the first generated
            token; default all.

    Raises:
        ValueError: an empty list, values that are not ids, or negative positions.

    Reference:
        `NoBadWordsLogitsProcessor` of transformers; `SuppressTokensAtBeginLogitsProcessor` for positions=[0].

    Example:

    >>> history = txf.generation.History(np.array([[1, 0]]), prompt_length=1, count=1, stops=np.array([[2]]))
    >>> txf.generation.ForbiddenTokens([2, [0, 3], [1, 1]])(np.zeros((1, 4), "float32"), history).numpy().tolist()
    [[0.0, 0.0, -inf, -inf]]
    """

    ids: Sequence[int | Sequence[int]]
    positions: Sequence[int] | None = None

    def __post_init__(self):
        entries = entries_of(self.ids)
        sequences = [[entry] if isinstance(entry, (str, numbers.Number)) else entries_of(entry) for entry in entries]
        rows = {tuple(checks.id_below("ids", token) for token in row) for row in sequences}
        set_fields(self, ids=tuple(sorted(rows)))  # the order of the caller's list makes no difference
        if self.positions is not None:
            entries = entries_of(self.positions, "positions", "positions")
            set_fields(self, positions=tuple(sorted({position_of(entry, "positions") for entry in entries})))

    def __call__(self, logits, history):
        longest = max(map(len, self.ids))
        table = np.array([(-2,) * (longest - len(row)) + row for row in self.ids], "int32")
        tokens = completing_tokens(table, last_tokens(history.tokens, history, longest - 1))
        if self.positions is not None:
            tokens = ops.where(ops.any(ops.equal(np.array(self.positions, "int32"), history.count)), tokens, -1)
        return forbid(logits, tokens)


def check_processors(processors, vocab_size):
    """Returns the processors as a tuple; None means no processors.

    Args:
        processors: list of functions of `(logits, history)`, such as the classes of this file.
        vocab_size: V; the ids of processors must be below V.

    Raises:
        ValueError: not a list; a processor that is a class, not callable, or not hashable; ids outside the vocabulary;
            all ids forbidden.
    """
    if not isinstance(processors, (list, tuple, type(None))):
        raise ValueError(f"`processors` must be a list of logits processors; received {short_repr(processors)}.")
    for processor in processors or ():
        if isinstance(processor, type):
            raise ValueError(f"`processors` must hold instances or functions; received the class {processor.__name__}.")
        if not callable(processor):
            raise ValueError(
                f"`processors` must hold functions of logits and history; received {short_repr(processor)}."
            )
        checks.hashable("processors", processor)
        if isinstance(processor, ForcedTokens):
            ids = np.concatenate([np.atleast_1d(ids) for _, ids in processor.tokens])
            checks.ids_in_vocabulary("ForcedTokens", ids, vocab_size)
        if isinstance(processor, ForbiddenTokens):
            checks.ids_in_vocabulary("ForbiddenTokens", np.concatenate(processor.ids), vocab_size)
    forbidden = {None: set()}  # positions -> the forbidden tokens, None: at all positions
    for processor in processors or ():
        if isinstance(processor, ForbiddenTokens):
            forbidden.setdefault(processor.positions, set()).update(ids for ids in processor.ids if len(ids) == 1)
    if any(len(ids | forbidden[None]) == vocab_size for ids in forbidden.values()):
        raise ValueError(f"`ids` of ForbiddenTokens must leave at least one token; received all {vocab_size}.")
    return tuple(processors or ())


def position_of(value, name="tokens"):
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= value < 2**31:
        raise ValueError(
            f"`{name}` must have positions that are integers below 2**31, from 0 on; received {short_repr(value)}."
        )
    return int(value)


def entries_of(values, name="ids", kind="token ids, or of lists of them"):
    """The entries of a list that is not empty."""
    entries = list(values) if np.iterable(values) and not isinstance(values, str) else []
    if not entries:
        raise ValueError(f"`{name}` must be a list of {kind}, none empty; received {short_repr(values)}.")
    return entries


def forbid(logits, tokens):
    """The logits with -inf at these tokens, int (R, any), where -1 is no token."""
    return ops.where(occurrences(tokens, logits) > 0, -math.inf, logits)


@functools.cache  # the same function for the same token: a loop is compiled for each function
def without_token(token_id):
    """A processor that makes a token, such as padding, the least likely token of each row with another possible token.

    Its logit is finite: `enable_check_numerics` of TensorFlow stops at -inf.
    """

    def processor(logits, history):
        others = ops.where(ops.arange(logits.shape[-1], dtype="int32") == token_id, -LARGEST_LOGIT, logits)
        return ops.where(ops.max(others, axis=-1, keepdims=True) > -LARGEST_LOGIT, others, logits)

    return processor


def last_tokens(tokens, history, length):
    """The last tokens so far, (R, length), with -1 before the first."""
    columns = history.prompt_length + history.count + ops.arange(length, dtype="int32")
    return ops.take(ops.pad(tokens, ((0, 0), (length, 0)), constant_values=-1), columns, axis=1)


def shift_right(tokens, distance):
    """The tokens moved right by `distance` columns, with -1 in the first columns."""
    return ops.pad(tokens, ((0, 0), (distance, 0)), constant_values=-1)[:, :-distance]


def completing_tokens(table, before):
    """The last token of each sequence in the table whose other tokens are the latest tokens, otherwise -1: int (R, S).

    Args:
        table: int (S, M), see `History.stops`.
        before: the last M - 1 tokens, int (R, M - 1).
    """
    table = ops.convert_to_tensor(table)
    others, last = table[None, :, :-1], table[:, -1]
    matches = ops.all(ops.logical_or(others == -2, ops.equal(others, before[:, None])), axis=-1)
    return ops.where(matches, last, -1)
