"""Inputs and targets of generative models, from NumPy arrays or from tensors inside `tf.data`'s `map`."""

from typing import Any

import keras
import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr


def teacher_forcing(source_ids: Any, target_ids: Any) -> tuple[dict[str, Any], Any]:
    """Returns the inputs and targets of an encoder-decoder: at each position the decoder reads the earlier tokens.

    Args:
        source_ids: int (B, S).
        target_ids: int (B, T), from the start token to the stop token, padded.

    Returns:
        ({"source_ids": (B, S), "target_ids": (B, T - 1)}, targets (B, T - 1)).

    Raises:
        ValueError: ids that are not integers, target rows of fewer than two tokens, different numbers of rows.

    Example:

    >>> inputs, targets = txf.training.teacher_forcing(np.array([[7, 8]]), np.array([[1, 5, 6, 2]]))
    >>> inputs["target_ids"], targets
    (array([[1, 5, 6]]), array([[5, 6, 2]]))
    """
    inputs, targets = _shift("target_ids", target_ids)
    source_ids = _as_array("source_ids", source_ids)
    rows, others = source_ids.shape[:-1], targets.shape[:-1]
    if len(rows) != len(others) or any(None not in pair and pair[0] != pair[1] for pair in zip(rows, others)):
        raise ValueError(
            "`source_ids` and `target_ids` must have the same rows; received source_ids of shape "
            f"{tuple(source_ids.shape)} and targets of shape {tuple(targets.shape)}."
        )
    return {"source_ids": source_ids, "target_ids": inputs}, targets


def shift_labels(ids: Any) -> tuple[Any, Any]:
    """Returns the inputs and targets of a language model: the target at each position is the next token.

    Args:
        ids: int (..., T), T at least 2.

    Returns:
        Inputs (..., T - 1) and targets (..., T - 1).

    Raises:
        ValueError: ids that are not integers, rows of fewer than two tokens.

    Example:

    >>> txf.training.shift_labels(np.array([[5, 6, 7]]))
    (array([[5, 6]]), array([[6, 7]]))
    """
    return _shift("ids", ids)


def _shift(name, ids):
    ids = _as_array(name, ids)
    if ids.shape[-1] is not None and ids.shape[-1] < 2:
        raise ValueError(f"`{name}` must hold two tokens or more in each row; received shape {tuple(ids.shape)}.")
    return ids[..., :-1], ids[..., 1:]


def _as_array(name, ids):
    try:
        ids = ids if hasattr(ids, "shape") else np.asarray(ids)
        dtype = keras.backend.standardize_dtype(ids.dtype)
    except (TypeError, ValueError):  # rows of unequal lengths, or values that are not numbers
        raise ValueError(
            f"`{name}` must be an array or a tensor of ids, as of a tokenizer with length='longest'; received "
            f"{short_repr(ids)}."
        ) from None
    if ids.shape == ():
        raise ValueError(f"`{name}` must hold rows of ids; received {short_repr(ids)}.")
    if "int" not in dtype:
        raise ValueError(f"`{name}` must be integers; received {dtype}.")
    return ids


def next_token_windows(ids: Any, length: int, stride: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a text into windows for next-token training.

    Args:
        ids: int (number of tokens,), the whole text.
        length: tokens in each window's input.
        stride: tokens from one window to the next; default `length`, so that each token except the first is a target
            once. Tokens at the end that do not fill a window are dropped.

    Returns:
        Inputs and targets, NumPy (windows, length) each; views of `ids`, not copies.

    Raises:
        ValueError: ids that are not integers, a text shorter than one window and its target.

    Example:

    >>> txf.training.next_token_windows(np.arange(7), length=3)
    (array([[0, 1, 2],
           [3, 4, 5]]), array([[1, 2, 3],
           [4, 5, 6]]))
    """
    ids = np.asarray(_as_array("ids", ids))
    if ids.ndim != 1:
        raise ValueError(f"`ids` must have shape (number of tokens,); received shape {ids.shape}.")
    checks.positive_integer("length", length)
    stride = checks.positive_integer("stride", length if stride is None else stride)
    if len(ids) < length + 1:
        raise ValueError(f"`ids` must hold length + 1 = {length + 1} tokens or more; received {len(ids)}.")
    windows = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::stride]
    return shift_labels(windows)
