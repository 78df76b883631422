"""The likeliest tokens of each step, for `generate(..., top_logprobs=k)`: two more tables in the state of a loop.

Legend: R rows, N new tokens at most, V vocabulary. With `top_logprobs` 0 there are no tables, and nothing is computed.
"""

from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.top_k import top_k


def empty_tables(log_probs, top_logprobs):
    """The tables before the first step, (..., k, N), a dict; `log_probs`, (..., N), is the state's table of zeros."""
    if not top_logprobs:
        return {}
    zeros = ops.repeat(log_probs[..., None, :], top_logprobs, axis=-2)
    return {"top_ids": ops.cast(zeros, "int32"), "top_log_probs": zeros}


def top_tokens(log_probs, top_logprobs):
    """The columns of a step for the tables, (R, k), a dict; `log_probs`, (R, V), is of all tokens."""
    if not top_logprobs:
        return {}
    values, ids = top_k(log_probs, top_logprobs)
    return {"top_ids": ids, "top_log_probs": values}


def top_results(state):
    """The tables of a state in the form of results: ids and log-probabilities, (..., N, k), or nothing."""
    return tuple(ops.swapaxes(state[name], -2, -1) for name in ("top_ids", "top_log_probs") if name in state)


def check_top_logprobs(top_logprobs, vocab_size, return_scores):
    """How many of the likeliest tokens the caller asks for, 0 for None."""
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
