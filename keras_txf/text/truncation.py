"""Rows of ids of a limited length, of one text or of two.

Legend: C texts, L length in tokens.
"""

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import tf
from keras_txf.text.tokenizer import cut


def row(tokenizer, texts, max_length):
    """Makes rows of `start`, the truncated text, `end`: int32 RaggedTensor (C, L)."""
    ids = tokenizer.tokenize(texts)
    if max_length is not None:
        ids = cut(ids, max_length - len(tokenizer.start) - len(tokenizer.end), tokenizer.truncation_side)
    return tokenizer._between(ids)


def pair_row(tokenizer, first, second, separator, max_length, share):
    """Makes rows of `start`, the first text, the separator, the second text, `end`.

    Args:
        separator: list of special tokens.
        share: function of the two texts' lengths (C,) and the room for both, which returns the length to keep of each.

    Returns:
        The ids, int32 RaggedTensor (C, L), and the number of tokens before the second text, int64 (C,).
    """
    first, second = tokenizer.tokenize(first), tokenizer.tokenize(second)
    if max_length is not None:
        room = tf.constant(max_length - len(tokenizer.start) - len(separator) - len(tokenizer.end), tf.int64)
        kept = share(first.row_lengths(), second.row_lengths(), room)
        first, second = (cut_each(*pair, tokenizer.truncation_side) for pair in zip((first, second), kept))
    between = tf.constant([[tokenizer.special_tokens[token] for token in separator]], "int32", [1, len(separator)])
    ids = tokenizer._between(tf.concat([first, tf.repeat(between, first.nrows(), axis=0), second], axis=1))
    return ids, first.row_lengths() + len(tokenizer.start) + len(separator)


def types_of_pair(ids, before):
    """The token type ids of rows of `pair_row`: 0 up to the separator, 1 from the second text on."""
    place = tf.ragged.range(ids.row_lengths()).flat_values
    return ids.with_values(tf.cast(place >= tf.gather(before, ids.value_rowids()), tf.int32))


def cut_each(rows, lengths, side):
    """Truncates each row to its own length."""
    place = tf.ragged.range(rows.row_lengths()).flat_values
    first = rows.row_lengths() - lengths if side == "left" else tf.zeros_like(lengths)
    first, last = (tf.gather(limits, rows.value_rowids()) for limits in (first, first + lengths))
    return tf.ragged.boolean_mask(rows, rows.with_values((place >= first) & (place < last)))


def longer_first(first, second, room):
    """Truncates the longer text to the length of the shorter, then both.

    The longer text, or the second of two equal ones, keeps an odd token.
    """
    shorter = tf.minimum(tf.minimum(first, second), room // 2)
    longer = tf.minimum(tf.maximum(first, second), room - shorter)
    return tf.where(first > second, longer, shorter), tf.where(first > second, shorter, longer)


def second_only(first, second, room):
    """Truncates the second text; the first only if it has no room alone."""
    kept = tf.minimum(first, room)
    return kept, tf.minimum(second, room - kept)


def joining(tokenizer, separator):
    """Returns the tokens between two texts: the caller's, else the tokenizer's `end`, as in BERT."""
    tokens = tokenizer.end if separator is None else tokenizer._special("separator", separator)
    if not tokens:
        raise ValueError(
            f"`separator` must be a special token, of {sorted(tokenizer.special_tokens)}, or a list of them, to join "
            f"pairs of texts, for the tokenizer has no `end`; received {short_repr(separator)}."
        )
    return tokens
