"""What `generate` returns."""

import typing

import numpy as np


class Scored(typing.NamedTuple):
    """Sequences with their scores, from `generate(..., return_scores=True)`.

    Args:
        ids: what `generate` returns otherwise.
        log_probs: the log-probability of each new token, as the model and the processors have it, before
            temperature and filters: float32 (B, new tokens), 0 after the end, or lists.
        scores: float32 (B,): the sum of them, or a beam's score.
    """

    ids: object
    log_probs: object
    scores: object


def pack(tokens, log_probs, scores, shown, sequences, pad_id, padded, return_scores):
    """The engine's arrays as the caller asked for them.

    Args:
        tokens: int (R, N), -1 after the end. log_probs: (R, N). scores: (R,).
        shown: for each prompt the ids that stand before the new ones.
        sequences: rows for each prompt, or None: one, and no axis for it.
        pad_id: fills up the arrays.
    """
    each = sequences or 1
    lengths = (tokens >= 0).sum(axis=1).tolist()
    ids = [
        list(shown[row // each]) + tokens[row, :length].tolist() for row, length in enumerate(lengths)
    ]
    log_probs = [log_probs[row, :length].tolist() for row, length in enumerate(lengths)]
    scores = scores.astype("float32")  # -inf of a beam that found nothing
    lead = (len(ids),) if sequences is None else (len(ids) // each, each)
    if padded:
        ids, log_probs = pad_rows(ids, pad_id), pad_rows(log_probs, 0.0, dtype="float32")
        ids, log_probs = (x.reshape(*lead, x.shape[1]) for x in (ids, log_probs))
    elif sequences is not None:
        ids, log_probs = (
            [rows[start : start + each] for start in range(0, len(rows), each)] for rows in (ids, log_probs)
        )
    return Scored(ids, log_probs, scores.reshape(lead)) if return_scores else ids


def pad_rows(rows, value, width=0, dtype="int32"):
    """Lists of numbers as one array, filled up on the right."""
    width = max(width, *map(len, rows))
    return np.array([row + [value] * (width - len(row)) for row in rows], dtype)
