"""What `generate` returns: sequences, scores, the likeliest tokens of each step, and the state for another call.

Legend: R rows, N new tokens at most, V vocabulary. With `top_logprobs` 0 a loop has no tables of the likeliest tokens.
"""

import typing
import weakref

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.logits import top_k


class Scored(typing.NamedTuple):
    """Sequences with their scores, from `generate(..., return_scores=True)`.

    Args:
        ids: the ids that `generate` returns without `return_scores`.
        log_probs: the log-probability of each new token, after the processors, before temperature and filters:
            float32 (B, new tokens), 0 after the end, or lists.
        scores: float32 (B,): the sum of the log-probabilities, or the score of a beam.
    """

    ids: typing.Any
    log_probs: typing.Any
    scores: typing.Any


class ScoredWithTop(typing.NamedTuple):
    """`Scored` with the k likeliest tokens at each step, from `generate(..., return_scores=True, top_logprobs=k)`.

    The tokens show how sure the model was, and which tokens were the alternatives. In a beam search they are the
    likeliest tokens after the earlier tokens of the same beam.

    Args:
        ids, log_probs, scores: see `Scored`.
        top_ids: the likeliest tokens at the position of each new token, best first, equal ones in any order: int32
            (B, new tokens, k), padding after the end, or lists.
        top_log_probs: their log-probabilities, computed like `log_probs`: float32 (B, new tokens, k), 0 after the
            end, or lists. Forbidden tokens come last: -inf if a processor forbids the token, -1e30 for the padding.
    """

    ids: typing.Any
    log_probs: typing.Any
    scores: typing.Any
    top_ids: typing.Any
    top_log_probs: typing.Any


def pack(arrays, prefixes, num_return_sequences, pad_id, padded, return_scores):
    """The engine's arrays in the form that the caller asked for.

    Args:
        arrays: the arrays that `Engine.generate` returns.
        prefixes: for each prompt the ids that stand before the new ids in the result.
        num_return_sequences: rows for each prompt, or None for one row and no axis of sequences.
        pad_id: the id that pads arrays.
        padded: whether to return arrays instead of lists.
        return_scores: whether to return `Scored`.
    """
    tokens, log_probs, scores, *top = arrays
    each = num_return_sequences or 1
    lengths = (tokens >= 0).sum(axis=1)
    ids = [[*prefixes[row // each], *tokens[row, :length].tolist()] for row, length in enumerate(lengths)]
    scores = scores.astype("float32")  # -inf of a beam without a sequence
    shape = (len(ids),) if num_return_sequences is None else (len(ids) // each, each)
    tables = [(log_probs, 0.0), *zip(top, (pad_id, 0.0))]
    if padded:
        ids = pad_rows(ids, pad_id)
        parts = [ids.reshape(*shape, ids.shape[1])]
        for table, fill in tables:
            table = table[:, : lengths.max()]
            kept = np.expand_dims(np.arange(table.shape[1]) < lengths[:, None], tuple(range(2, table.ndim)))
            parts.append(np.where(kept, table, table.dtype.type(fill)).reshape(*shape, *table.shape[1:]))
    else:
        parts = [ids, *([row[:length].tolist() for row, length in zip(table, lengths)] for table, _ in tables)]
        if num_return_sequences is not None:
            parts = [[rows[start : start + each] for start in range(0, len(rows), each)] for rows in parts]
    ids, log_probs, *top = parts
    if not return_scores:
        return ids
    scores = scores.reshape(shape)
    return ScoredWithTop(ids, log_probs, scores, *top) if top else Scored(ids, log_probs, scores)


def cut_rows(tokens, log_probs, scores, lengths):
    """Cuts each row of the engine's arrays, see `pack`, to its first `lengths` tokens, int (R,)."""
    kept = np.arange(tokens.shape[1]) < lengths[:, None]
    shorter = (~kept & (tokens >= 0)).any(axis=1)
    log_probs = np.where(kept, log_probs, np.float32(0))
    return np.where(kept, tokens, -1), log_probs, np.where(shorter, log_probs.sum(axis=1), scores)


def pad_rows(rows, value, width=0, dtype="int32"):
    """Lists of numbers as one array of at least `width` columns, padded on the right."""
    width = max(width, *map(len, rows))
    return np.array([row + [value] * (width - len(row)) for row in rows], dtype)


def empty_tables(log_probs, top_logprobs):
    """The tables before the first step, (..., k, N), a dict; `log_probs`, (..., N), is the state's table of zeros."""
    if not top_logprobs:
        return {}
    zeros = ops.repeat(log_probs[..., None, :], top_logprobs, axis=-2)
    return {"top_ids": ops.cast(zeros, "int32"), "top_log_probs": zeros}


def top_tokens(log_probs, top_logprobs):
    """The columns of a step for the tables, (R, k), a dict; `log_probs`, (R, V), covers all tokens."""
    if not top_logprobs:
        return {}
    values, ids = top_k(log_probs, top_logprobs)
    return {"top_ids": ids, "top_log_probs": values}


def top_results(state):
    """The tables of a state in the form of results: ids and log-probabilities, (..., N, k), or nothing."""
    return tuple(ops.swapaxes(state[name], -2, -1) for name in ("top_ids", "top_log_probs") if name in state)


def check_top_logprobs(top_logprobs, vocab_size, return_scores):
    """Returns the number of likeliest tokens that the caller asks for, 0 for None."""
    if top_logprobs is None:
        return 0
    if checks.positive_integer("top_logprobs", top_logprobs) > vocab_size:
        raise ValueError(
            f"`top_logprobs` must not exceed the vocabulary's size, {vocab_size}; received {short_repr(top_logprobs)}."
        )
    if not return_scores:
        raise ValueError(
            "`top_logprobs` is a part of the scores: it needs return_scores=True, which does not go with `stream`; "
            f"received {short_repr(top_logprobs)}."
        )
    return int(top_logprobs)


class State:
    """The memory of sequences that `generate(..., return_state=True)` has read and written.

    `generate(next_turn, state=state)` reads only the new tokens. A state can be used many times: a call does not change
    the state, and returns a new state on request. The memory belongs to the weights at the time of the call: after a
    training step, read the texts again. A state cannot be pickled: keep its `ids` instead, and read the texts again.

    Attributes:
        ids: for each row the list of all its tokens.
        real: for each row, which tokens are not padding. A generated padding token is real, as within one call.
    """

    def __init__(self, engine, ids, real, ends, memory):
        self._engine, self.ids, self.real, self._ends, self._memory = weakref.ref(engine), ids, real, ends, memory

    def __len__(self):
        return len(self.ids)

    def __repr__(self):
        return f"<State of {len(self)} sequences of up to {max(map(len, self.ids))} tokens>"

    def check(self, engine, rows):
        """Raises ValueError for a state of another model, or a number of prompts that differs from the rows."""
        if self._engine() is not engine:
            raise ValueError(
                "`state` must come from the same model and `cache`, with the present adapters and variables; "
                f"received {self}."
            )
        if rows != len(self):
            raise ValueError(f"`state` must have one row for each of the {rows} prompts; received {self}.")

    def tensors(self, prompts, new, length):
        """The `state` of a `Request`.

        Args:
            prompts: for each row the list of all its tokens, new tokens included.
            new: how many columns are read.
            length: P, the number of prompt columns of the request.
        """
        counts = np.array([len(row) - len(read) for row, read in zip(prompts, self.ids)], "int32")
        is_new = np.arange(new, dtype="int32")[None] >= new - counts[:, None]
        return {**self._memory, "shift": length - 1 - counts - self._ends, "new": is_new}


def check_state(state):
    """Raises ValueError for an object that is not a `State`."""
    if not isinstance(state, State):
        raise ValueError(
            f"`state` must be the state that `generate(..., return_state=True)` returns; received {short_repr(state)}."
        )
    return state


def check_state_options(sampler, state, return_state, stop_strings, assistant=None):
    """Raises ValueError for options that do not work with a state."""
    if (state is not None or return_state) and hasattr(sampler, "decoding_loop"):
        raise ValueError(
            '`state` and `return_state` need a sampler that chooses token by token, such as "greedy" and '
            f'"sampling"; received {short_repr(sampler)}.'
        )
    if state is not None and assistant is not None:
        raise ValueError("`state` does not go with `assistant`, which has not read the texts; received both.")
    for name, value in (("stop_strings", stop_strings), ("assistant", assistant)):
        if return_state and value:
            raise ValueError(f"`return_state` does not go with `{name}`; received return_state=True.")


class Stream:
    """The result of `generate(..., stream=True, return_state=True)`: an iterator of tokens, and the state after them.

    Attributes:
        tokens: the iterator that `generate` returns without `return_state`.
        state: a `State` once the iterator has ended, before that None.
    """

    tokens: typing.Iterator = iter(())
    state: State | None = None

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.tokens)


class WithState(typing.NamedTuple):
    """The result of `generate(..., return_state=True)`.

    Args:
        ids: the ids that `generate` returns without `return_state`.
        state: a `State`, for `generate(next_turn, state=state)`.
        scored: with `return_scores` the `Scored`, else None.
    """

    ids: typing.Any
    state: State
    scored: typing.Any = None
