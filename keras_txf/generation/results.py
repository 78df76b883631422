"""The results of `generate`."""

import typing

import numpy as np


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

    The tokens show how sure the model was, and what it would have chosen instead. Those tokens of a beam are the
    likeliest after the past of the same beam.

    Args:
        ids, log_probs, scores: see `Scored`.
        top_ids: the likeliest tokens at the place of each new token, best first, equal ones in any order: int32
            (B, new tokens, k), padding after the end, or lists.
        top_log_probs: their log-probabilities, computed as `log_probs` are: float32 (B, new tokens, k), 0 after the
            end, or lists. Forbidden tokens come last: -inf where a processor forbids them, -1e30 for the padding.
    """

    ids: typing.Any
    log_probs: typing.Any
    scores: typing.Any
    top_ids: typing.Any
    top_log_probs: typing.Any


def pack(found, prefixes, num_return_sequences, pad_id, padded, return_scores):
    """The engine's arrays in the form that the caller asked for.

    Args:
        found: what `Engine.generate` returns.
        prefixes: for each prompt the ids that the result has before the new ones.
        num_return_sequences: rows for each prompt, or None for one row and no axis of sequences.
        pad_id: pads the arrays.
    """
    tokens, log_probs, scores, *top = found
    each = num_return_sequences or 1
    lengths = (tokens >= 0).sum(axis=1)
    ids = [[*prefixes[row // each], *tokens[row, :length].tolist()] for row, length in enumerate(lengths)]
    scores = scores.astype("float32")  # -inf of a beam that found nothing
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
    """The engine's arrays, see `pack`, of which each row keeps its first `lengths` tokens, int (R,)."""
    kept = np.arange(tokens.shape[1]) < lengths[:, None]
    shorter = (~kept & (tokens >= 0)).any(axis=1)
    log_probs = np.where(kept, log_probs, np.float32(0))
    return np.where(kept, tokens, -1), log_probs, np.where(shorter, log_probs.sum(axis=1), scores)


def pad_rows(rows, value, width=0, dtype="int32"):
    """Lists of numbers as one array of at least `width` columns, padded on the right."""
    width = max(width, *map(len, rows))
    return np.array([row + [value] * (width - len(row)) for row in rows], dtype)
