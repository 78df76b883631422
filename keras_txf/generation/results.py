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


def pack(tokens, log_probs, scores, prefixes, num_return_sequences, pad_id, padded, return_scores):
    """The engine's arrays in the form that the caller asked for.

    Args:
        tokens: int (R, N), -1 after the end. log_probs: (R, N). scores: (R,).
        prefixes: for each prompt the ids that the result has before the new ones.
        num_return_sequences: rows for each prompt, or None for one row and no axis of sequences.
        pad_id: pads the arrays.
    """
    each = num_return_sequences or 1
    lengths = (tokens >= 0).sum(axis=1).tolist()
    ids = [list(prefixes[row // each]) + tokens[row, :length].tolist() for row, length in enumerate(lengths)]
    log_probs = [log_probs[row, :length].tolist() for row, length in enumerate(lengths)]
    scores = scores.astype("float32")  # -inf of a beam that found nothing
    shape = (len(ids),) if num_return_sequences is None else (len(ids) // each, each)
    if padded:
        ids, log_probs = pad_rows(ids, pad_id), pad_rows(log_probs, 0.0, dtype="float32")
        ids, log_probs = (x.reshape(*shape, x.shape[1]) for x in (ids, log_probs))
    elif num_return_sequences is not None:
        ids, log_probs = (
            [rows[start : start + each] for start in range(0, len(rows), each)] for rows in (ids, log_probs)
        )
    return Scored(ids, log_probs, scores.reshape(shape)) if return_scores else ids


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
