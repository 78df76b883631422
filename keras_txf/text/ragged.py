"""Texts and ids of any shape as rows and back; rows truncated, padded or split; offsets of tokens.

Legend: R texts or rows, N pieces, L length in tokens.
"""

import re

import keras
import numpy as np

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import tf

LIMIT = b"\xff\xfe\xff\xfe\xfe\xff\xfe\xff"  # bytes that UTF-8 lacks, in a sequence that no damaged text has


def as_text(value, name="`text`"):
    """Converts a str, nested lists, an array or a tensor to a string tensor, dense or ragged."""
    expected = f"{name} must be a string, nested lists of strings, or a string tensor"
    nested = isinstance(value, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in value)
    make = tf.ragged.constant if nested and not is_even(value) else tf.convert_to_tensor
    try:
        text = value if tf.is_tensor(value) else make(value, dtype=tf.string)
    except (TypeError, ValueError):
        why = ", which has a lone surrogate, not a character" if has_surrogate(value) else ""
        raise ValueError(f"{expected}; received {short_repr(value)}{why}.") from None
    if text.dtype != tf.string:
        raise ValueError(f"{expected}; received a tensor of {text.dtype.name}.")
    if text.shape.rank is None:
        raise ValueError(f"{expected} of known rank; received {short_repr(value)}.")
    return text


def has_surrogate(value):
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" for letter in value)
    return isinstance(value, (list, tuple, np.ndarray)) and any(map(has_surrogate, value))


def as_ids(value, vocab_size):
    """Converts nested lists, an array or a tensor of any backend to an int32 tensor, dense or ragged."""
    expected = f"`ids` must be token ids from 0 to {vocab_size - 1}, in a list or tensor of at least one axis"
    if not tf.is_tensor(value):
        value = keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value
        try:
            value = tf.convert_to_tensor(np.asarray(value)) if is_even(value) else tf.ragged.constant(value)
        except (TypeError, ValueError):
            raise ValueError(f"{expected}; received {short_repr(value)}.") from None
    size = None if value.shape.rank is None else value.shape.num_elements()
    if not value.shape.rank or not (value.dtype.is_integer or size == 0):
        raise ValueError(f"{expected}; received {short_repr(value)}.")
    if tf.executing_eagerly():
        flat = (value.flat_values if isinstance(value, tf.RaggedTensor) else value).numpy()
        if flat.size and (flat.min() < 0 or flat.max() >= vocab_size):
            raise ValueError(f"{expected}; received ids from {flat.min()} to {flat.max()}.")
    return tf.cast(value, tf.int32)


def as_ragged(rows):
    """Converts rows (R, L) to a RaggedTensor."""
    return rows if isinstance(rows, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(rows)


def is_even(value):
    """Whether nested lists make an array: all lists of a level have one length."""
    try:
        return np.asarray(value).dtype != object
    except ValueError:
        return False


def flatten(tensor, inner=0):
    """Returns the rows of a tensor, and a function that restores the tensor's shape.

    Args:
        tensor: dense or ragged. Its last `inner` axes, 0 or 1, belong to the rows.

    Returns:
        rows: (R,) or ragged (R, L).
        restore: function of a tensor (R, ...).
    """
    rank = tensor.shape.rank
    if rank == inner:
        rows, restore = tensor[None], lambda answer: answer[0]
    elif isinstance(tensor, tf.RaggedTensor):
        tensor = all_ragged(tensor.with_row_splits_dtype(tf.int64))
        splits = tensor.nested_row_splits[: rank - 1 - inner]
        rows = tensor.flat_values
        if inner:
            rows = tf.RaggedTensor.from_row_splits(rows, tensor.nested_row_splits[-1], validate=False)
        restore = lambda answer: in_rows(answer, splits)  # noqa: E731
    else:
        outer = tensor.shape[: rank - inner]
        shape = tf.shape(tensor, tf.int64)
        rows = tf.reshape(tensor, tf.concat([[tf.reduce_prod(shape[: rank - inner])], shape[rank - inner :]], 0))
        restore = lambda answer: stacked(answer, shape[: rank - inner], outer)  # noqa: E731
    if inner and not isinstance(rows, tf.RaggedTensor):
        rows = tf.RaggedTensor.from_tensor(rows)
    return rows, restore


def all_ragged(tensor):
    """Makes every axis except the first ragged."""
    values = tensor.flat_values
    if values.shape.rank == 1:
        return tensor
    return tensor.with_flat_values(tf.RaggedTensor.from_tensor(values, ragged_rank=values.shape.rank - 1))


def in_rows(answer, splits):
    return tf.RaggedTensor.from_nested_row_splits(answer, splits, validate=False) if splits else answer


def stacked(answer, shape, static):
    """Gives rows a dense shape. With ragged rows every axis except the first is ragged."""
    if isinstance(answer, tf.RaggedTensor):
        for axis in range(len(static) - 1, 0, -1):
            count = tf.reduce_prod(shape[:axis])
            answer = tf.RaggedTensor.from_uniform_row_length(answer, shape[axis], nrows=count, validate=False)
        return answer
    shaped = tf.reshape(answer, tf.concat([shape, tf.shape(answer, tf.int64)[1:]], 0))
    shaped.set_shape(static.concatenate(answer.shape[1:]))
    return shaped


def as_strings(tensor):
    """Converts a string tensor to nested lists of str, or to one str."""
    values = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy()
    return _decoded(values.tolist() if isinstance(values, np.ndarray) else values)


def _decoded(value):
    return [_decoded(item) for item in value] if isinstance(value, list) else value.decode("utf-8", "replace")


def marked(splits, values):
    """Marks the first value of each row with True."""
    marks = tf.scatter_nd(splits[:, None], tf.ones_like(splits), [tf.size(values, tf.int64) + 1])
    return marks[:-1] > 0


def truncate(rows, length, side):
    if side == "right":
        return rows[:, :length]
    return rows[:, ::-1][:, :length][:, ::-1]


def pad(rows, length, pad_id, side):
    """Pads rows to dense ids (R, length). None means the length of the longest row."""
    if side == "right":
        return rows.to_tensor(pad_id, shape=[None, length])
    return rows[:, ::-1].to_tensor(pad_id, shape=[None, length])[:, ::-1]


def split_at(texts, tokens, any_case=()):
    """Splits texts before and after each of the tokens. Of several matches the longest wins.

    Args:
        texts: string (R,).
        tokens: dict of tokens and ids.
        any_case: the tokens that match capital and small letters.

    Returns:
        pieces: string (N,), empty for the tokens.
        ids: int32 RaggedTensor (N, 0 or 1), the tokens.
        splits: int64 (R + 1,), the pieces of each text.
    """
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = "|".join(f"(?i:{re.escape(x)})" if x in any_case else re.escape(x) for x in longest_first)
    # tensorflow-text's `regex_split` would lose the text after a NUL.
    pieces = tf.strings.split(tf.strings.regex_replace(texts, f"({pattern})", LIMIT + rb"\1" + LIMIT), LIMIT)
    splits, pieces = pieces.row_splits, pieces.values
    whole = tf.strings.regex_full_match(pieces, pattern)
    matches = tf.boolean_mask(pieces, whole)
    same = matches[:, None] == tf.constant(longest_first)
    if any_case:
        folds = tf.constant([token in any_case for token in longest_first])
        same |= folds & (lower(matches)[:, None] == lower(tf.constant(longest_first)))
    ids = tf.gather(tf.constant([tokens[token] for token in longest_first], "int32"), tf.argmax(same, axis=1))
    ids = tf.RaggedTensor.from_row_lengths(ids, tf.cast(whole, tf.int64), validate=False)
    return tf.where(whole, "", pieces), ids, splits


def lower(texts):
    return tf.strings.lower(texts, "utf-8")


def characters_before_bytes(text):
    """Returns int (bytes + 1,): the number of characters that begin before each byte of the UTF-8, and in total."""
    starts = (np.frombuffer(text.encode(), "uint8") & 0xC0) != 0x80
    return np.cumsum([0, *starts])


def from_bytes(text, begins, ends):
    """Converts offsets in bytes of UTF-8 to offsets in characters, int32 (L, 2). Parts of characters count whole."""
    before = characters_before_bytes(text)
    ends = before[ends]
    begins = np.append(before[1:] - 1, len(text))[begins]
    return pairs(np.minimum(begins, ends), ends)


def pairs(begins, ends):
    return np.stack([begins, ends], axis=1).astype("int32")
