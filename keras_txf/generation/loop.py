"""Decoding with a sampler: reads the prompts once, then chooses token after token until every row has stopped.

Legend: B batch, R rows (each prompt has `num_return_sequences` rows), P prompt length, N new tokens at most, L = P + N,
V vocabulary, S stops of M tokens, W tokens of a row in one step.
"""

import typing

import keras
import numpy as np
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.generation.logits import bounded, gather_rows, log_probabilities
from keras_txf.generation.parameters import StepSeed, with_parameters
from keras_txf.generation.results import empty_tables, top_results, top_tokens


class History(typing.NamedTuple):
    """The history that a logits processor receives: all tokens so far, where the prompts end, and the stops.

    For your own processors, functions of `(logits, history)`, logits float32 (R, V). With several beams the logits are
    log-probabilities. A processor is compiled: write it with `keras.ops`, and read no values in Python.

    Args:
        tokens: int32 (R, L), each token in its column; -1 at padding and in the columns of future tokens.
        prompt_length: P, the number of columns of the prompts. Generated tokens stand in the columns P, P + 1, ...
        count: int32 (), how many tokens have been generated. The next token belongs to column P + count.
        stops: int32 (S, M), a stop at the right end of each row, after entries of -2, which match any token. A row of
            -3 is an empty row without a stop.

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


class Request(typing.NamedTuple):
    """The tensors of one call of `generate`.

    Args:
        ids: int (B, P), the prompts, padded on the left.
        attention_mask: bool (B, cache columns), True at the real tokens of the prompts. The cache has columns for the
            new tokens too.
        inputs: dict, the other inputs of the model.
        history: int (B, L), the prompts, and -1 at padding and in the columns of new tokens.
        limits: int (B,), how many new tokens each row may have, from 1 to N.
        stops: int (S, M), see `History`.
        seed: int (2,).
        parameters: list of dicts, the floats of the sampler and of each processor, see `generation.parameters`.
        state: the memory of an earlier call, empty or a dict: `cache`, `constant`, `logits` (B, V) of the next token,
            `shift`, int (B,), by how many columns the tokens move, and `new`, bool (B, T), True at the tokens of the
            last T prompt columns that are not in the cache.
    """

    ids: object
    attention_mask: object
    inputs: dict
    history: object
    limits: object
    stops: object
    seed: object
    parameters: list
    state: dict = {}

    @property
    def prompt_length(self):
        return ops.shape(self.ids)[1]

    @property
    def max_new_tokens(self):
        return ops.shape(self.history)[1] - self.prompt_length


class Strategy(typing.NamedTuple):
    """How `generate` chooses tokens.

    Args:
        sampler: a function of logits and a seed, see `SampledDecoding`, or an object with a method
            `decoding_loop(models, processors, num_return_sequences, top_logprobs)`.
        processors: tuple of functions of logits and `History`.
        num_return_sequences: how many sequences for each prompt, at least one.
        stops: lists of ids that end a row.
        top_logprobs: how many of the likeliest tokens the results have for each step.
        keeps_state: see `SampledDecoding`.
    """

    sampler: typing.Any
    processors: tuple = ()
    num_return_sequences: int = 1
    stops: tuple | list = ()
    top_logprobs: int = 0
    keeps_state: bool = False


def decoding_loop(strategy, models):
    """The loop that `generate` runs: a search has its own loop, every other sampler chooses token by token.

    Args:
        strategy: a `Strategy`.
        models: function of `width` and `return_hidden_states` that returns a `GraphDecoder`.

    Returns:
        An object with the methods of `SampledDecoding`, and its `models`.
    """
    sampler, processors, each, _, top_logprobs, keeps_state = strategy
    if hasattr(sampler, "decoding_loop"):
        return sampler.decoding_loop(models, processors, each, top_logprobs)
    return SampledDecoding(models(), sampler, processors, each, top_logprobs, keeps_state)


class SampledDecoding:
    """The loop of a sampler that chooses one token after the other.

    Args:
        models: a `GraphDecoder` of width 1.
        sampler: function of logits, float32 (R, V), and a seed for `keras.random`, that returns ids (R,).
        processors: functions of logits and `History`.
        num_return_sequences: how many sequences for each prompt.
        top_logprobs: how many of the likeliest tokens the results have for each step.
        keeps_state: whether another call can continue from the last state, see `close`.
    """

    def __init__(self, models, sampler, processors, num_return_sequences, top_logprobs=0, keeps_state=False):
        self.models, self.sampler, self.processors = models, sampler, processors
        self.num_return_sequences, self.top_logprobs = num_return_sequences, top_logprobs
        self.keeps_state = keeps_state

    def read(self, request):
        """Reads the prompts alone: `cache`, `logits` (R, V) of the next token, and `constant`, see `start`."""
        outputs, cache, constant = self.models.run_prefill(request, self.num_return_sequences)
        logits = ops.repeat(outputs["logits"], self.num_return_sequences, axis=0)
        return {"cache": cache, "logits": logits, "constant": constant}

    def start(self, request):
        """Reads the prompts and chooses the first tokens: the state, and the tensors that all steps share, dicts."""
        repeats = self.num_return_sequences
        outputs, cache, constant = self.models.run_prefill(request, repeats)
        history = ops.repeat(request.history, repeats, axis=0)
        state = {
            "count": ops.zeros((), "int32"),
            "history": history,
            "attention_mask": ops.repeat(request.attention_mask, repeats, axis=0),
            "log_probs": ops.zeros_like(history[:, : request.max_new_tokens], "float32"),
            "running": ops.ones_like(history[:, 0], "bool"),
        }
        state |= empty_tables(state["log_probs"], self.top_logprobs)
        logits = ops.repeat(outputs["logits"], repeats, axis=0)
        next_logits = {"logits": logits} if self.keeps_state else {}
        return {**self._append(state, logits, request), **next_logits, "cache": cache}, constant

    def advance(self, state, constant, request, until):
        """Chooses tokens until each row has `until` of them, or has stopped."""

        def step(state):
            if self.keeps_state:
                closed = self.close(state, constant, request)
                return {**self._append(state, closed["logits"], request), **closed}
            cache_position = request.prompt_length + state["count"] - 1
            logits, cache, _ = self.models.run_step(
                state["tokens"], state["attention_mask"], cache_position, state["cache"], constant, request
            )
            return {**self._append(state, logits[:, 0], request), "cache": cache}

        return run_steps(step, state, until)

    def close(self, state, constant, request):
        """Reads the last tokens: `cache`, and `logits` (R, V) of the next token.

        A row that has ended keeps its logits, so the rows of another call may end at different columns.
        """
        column = request.prompt_length + state["count"] - 1
        new = ops.take(state["attention_mask"], column[None], axis=1)
        outputs, cache = self.models.read(
            state["tokens"], state["attention_mask"], new, column, state["cache"], constant
        )
        return {"cache": cache, "logits": ops.where(new, outputs["logits"][:, 0], state["logits"])}

    def results(self, state, request):
        """The new tokens, int (R, N), -1 after the end; their log-probabilities (R, N); the sums of these (R,).

        With `top_logprobs`, also ids and log-probabilities of the likeliest tokens (R, N, k).
        """
        tokens = state["history"][:, request.prompt_length :]
        return tokens, state["log_probs"], ops.sum(state["log_probs"], axis=1), *top_results(state)

    def _append(self, state, logits, request):
        """The state without its cache, with one more token in each row; logits are (R, V)."""
        sampler = with_parameters(self.sampler, request.parameters[0])
        logits = process_logits(self.processors, logits, state["history"], state["count"], request)
        tokens = check_ids(sampler(logits, StepSeed(request.seed, state["count"])), logits)
        return self._write(state, logits, tokens, request)

    def _write(self, state, logits, tokens, request):
        """The state without its cache, with the next tokens (R,), chosen from logits (R, V)."""
        count, history, running = state["count"], state["history"], state["running"]
        column = request.prompt_length + count
        log_probs = log_probabilities(logits)
        top = top_tokens(log_probs, self.top_logprobs)
        log_probs = gather_rows(log_probs, tokens[:, None])[:, 0]
        history = write_column(history, column, ops.where(running, tokens, -1))
        limits = ops.repeat(request.limits, self.num_return_sequences)
        ended = ops.logical_or(ends_with_stop(latest_tokens(history, count, request), request), count + 1 >= limits)
        return {
            "count": count + 1,
            "tokens": ops.where(running, tokens, 0)[:, None],
            "history": history,
            "attention_mask": write_column(state["attention_mask"], column, running),
            "log_probs": write_column(state["log_probs"], count, ops.where(running, log_probs, 0.0)),
            "running": ops.logical_and(running, ops.logical_not(ended)),
            **{name: write_column(state[name], count, values) for name, values in top.items()},
        }


def run_steps(step, state, until):
    """Calls `step`, a function from a state to the next state, until there are `until` tokens or no row is running."""

    def unfinished(state):
        return ops.logical_and(state["count"] < until, ops.any(state["running"]))

    (state,) = ops.while_loop(unfinished, lambda state: (step(state),), (state,))
    return state


def process_logits(processors, logits, history, count, request):
    """The logits after all processors, float32 (R, V), clipped so that their sums are finite."""
    logits = ops.cast(logits, "float32")
    logits = bounded(logits, logits)
    past = History(history, request.prompt_length, count, request.stops)
    for processor, parameters in zip(processors, request.parameters[1:], strict=True):
        try:
            changed = check_logits(with_parameters(processor, parameters)(logits, past), logits)
        except Exception as error:  # a user's processor may raise any exception
            error.add_note(
                f"`processors`: {short_repr(processor)} raised this error; a graph may call it, see `History`."
            )
            raise
        logits = bounded(changed, changed)
    return logits


def check_ids(ids, logits):
    """Returns the ids of a sampler, perhaps the caller's own, as int32 (R,)."""
    fits = hasattr(ids, "shape") and len(ids.shape) == 1 and len({ids.shape[0], logits.shape[0]} - {None}) < 2
    if not fits or "int" not in keras.backend.standardize_dtype(ids.dtype):
        raise ValueError(
            "`sampler` must return integers of shape (rows,), an id for each row of logits; received "
            f"{short_repr(ids)}."
        )
    return ops.cast(ids, "int32")


def check_logits(changed, logits):
    """Returns the logits of a processor, perhaps the caller's own, as float32 (R, V)."""
    if not hasattr(changed, "shape") or len(changed.shape) != 2 or changed.shape[1] != logits.shape[1]:
        raise ValueError(
            f"`processors` must return logits of shape {tuple(logits.shape)}; received {short_repr(changed)}."
        )
    return ops.cast(changed, "float32")


def latest_tokens(history, count, request):
    """The last M new tokens of each row, (..., M), from a history (..., L) with `count + 1` of them.

    -1 stands before the first new token: a stop must lie in the new tokens, not in the prompt.
    """
    length = request.stops.shape[1]
    positions = count - (length - 1) + ops.arange(length, dtype="int32")
    tokens = ops.take(history, request.prompt_length + positions, axis=-1)
    return ops.where(positions >= 0, tokens, -1)


def ends_with_stop(tokens, request):
    """Whether the latest tokens, (..., M), end with one of the stops, (...)."""
    same = ops.logical_or(tokens[..., None, :] == request.stops, request.stops == -2)
    return ops.any(ops.all(same, axis=-1), axis=-1)


def write_column(table, column, values):
    """A table (..., columns) with `values`, (...), in one column."""
    # Without `slice_update`: outside a loop, TensorFlow would have XLA compile each call separately.
    return ops.where(ops.arange(ops.shape(table)[-1], dtype="int32") == column, values[..., None], table)


def stop_table(stops):
    """The stops as rows of one table, see `History`. Few sizes of tables are possible: each size is compiled."""
    rows, length = _power_of_two(max(4, len(stops))), _power_of_two(max(map(len, stops), default=1))
    table = np.full((rows, length), -3, "int32")
    for row, stop in enumerate(stops):
        table[row] = [-2] * (length - len(stop)) + list(stop)
    return table


def _power_of_two(number):
    """The smallest power of two that is not below the number."""
    return 2 ** (number - 1).bit_length()


def bucket(length, smallest=32):
    """Rounds a length up to one of a few lengths, by at most a quarter: one compiled function serves them all."""
    step = max(smallest, 2 ** (int(length).bit_length() - 3))
    return max(1, -(-length // step)) * step
