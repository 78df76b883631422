"""Texts, alone or two together, as rows of ids of a limited length.

Legend: C texts, L length in tokens.
"""

from keras_txf.checks import short_repr
from keras_txf.text.lazy import tf
from keras_txf.text.tokenizer import cut


def row(tokenizer, texts, max_length):
    """`start`, the text, `end`: int32 RaggedTensor (C, L). Too long a text is cut, not what is added to it."""
    ids = tokenizer.tokenize(texts)
    if max_length is not None:
        ids = cut(ids, max_length - len(tokenizer.start) - len(tokenizer.end), tokenizer.truncation_side)
    return tokenizer._between(ids)


def pair_row(tokenizer, first, second, separator, max_length, share):
    """`start`, the first text, the separator, the second text, `end`.

    Args:
        separator: list of special tokens.
        share: function of the two texts' lengths (C,) and the room for both, to what is kept of each.

    Returns:
        The ids, int32 RaggedTensor (C, L), and the lengths of all before the second text, int64 (C,).
    """
    first, second = tokenizer.tokenize(first), tokenizer.tokenize(second)
    if max_length is not None:
        room = tf.constant(max_length - len(tokenizer.start) - len(separator) - len(tokenizer.end), tf.int64)
        kept = share(first.row_lengths(), second.row_lengths(), room)
        first, second = (cut_each(*pair, tokenizer.truncation_side) for pair in zip((first, second), kept))
    between = tf.constant([[tokenizer.special_tokens[token] for token in separator]], "int32", [1, len(separator)])
    ids = tokenizer._between(tf.concat([first, tf.repeat(between, first.nrows(), axis=0), second], axis=1))
    return ids, first.row_lengths() + len(tokenizer.start) + len(separator)


def cut_each(rows, lengths, side):
    """Each row, cut to a length of its own."""
    place = tf.ragged.range(rows.row_lengths()).flat_values
    first = rows.row_lengths() - lengths if side == "left" else tf.zeros_like(lengths)
    first, last = (tf.gather(limits, rows.value_rowids()) for limits in (first, first + lengths))
    return tf.ragged.boolean_mask(rows, rows.with_values((place >= first) & (place < last)))


def longer_first(first, second, room):
    """The longer text is cut down to the shorter, then both alike; an odd token is the longer's, or the second's."""
    shorter = tf.minimum(tf.minimum(first, second), room // 2)
    longer = tf.minimum(tf.maximum(first, second), room - shorter)
    return tf.where(first > second, longer, shorter), tf.where(first > second, shorter, longer)


def second_only(first, second, room):
    """The second text is cut; the first only where it alone is too long."""
    kept = tf.minimum(first, room)
    return kept, tf.minimum(second, room - kept)


def joining(tokenizer, separator):
    """The tokens between two texts: those of the caller, else the tokenizer's `end`, as BERT has it."""
    tokens = tokenizer.end if separator is None else tokenizer._special("separator", separator)
    if not tokens:
        raise ValueError(
            f"`separator` must be a special token, of {sorted(tokenizer.special_tokens)}, or a list of them, for the "
            f"tokenizer has no `end`; received {short_repr(separator)}."
        )
    return tokens
