"""Finds in a text the tokens that are one token wherever they stand: special and added ones.

Legend: R texts, N pieces.
"""

import re

from keras_txf.text.lazy_imports import tf

LIMIT = b"\xff\xfe\xff\xfe\xfe\xff\xfe\xff"  # bytes that UTF-8 does not have, and more of them than in a damaged text


def split_at(texts, tokens, any_case=()):
    """Splits texts before and after each of the tokens; where several match, takes the longest.

    Args:
        texts: string (R,).
        tokens: dict of tokens and ids.
        any_case: those of the tokens that are found in capital and in small letters.

    Returns:
        pieces: string (N,), empty for the tokens.
        ids: int32 RaggedTensor (N, 0 or 1), the tokens.
        splits: int64 (R + 1,), the pieces of each text.
    """
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = "|".join(f"(?i:{re.escape(x)})" if x in any_case else re.escape(x) for x in longest_first)
    # tensorflow-text's `regex_split` would lose what follows a NUL.
    pieces = tf.strings.split(tf.strings.regex_replace(texts, f"({pattern})", LIMIT + rb"\1" + LIMIT), LIMIT)
    splits, pieces = pieces.row_splits, pieces.values
    whole = tf.strings.regex_full_match(pieces, pattern)
    found = tf.boolean_mask(pieces, whole)
    same = found[:, None] == tf.constant(longest_first)
    if any_case:
        folds = tf.constant([token in any_case for token in longest_first])
        same |= folds & (lower(found)[:, None] == lower(tf.constant(longest_first)))
    ids = tf.gather(tf.constant([tokens[token] for token in longest_first], "int32"), tf.argmax(same, axis=1))
    ids = tf.RaggedTensor.from_row_lengths(ids, tf.cast(whole, tf.int64), validate=False)
    return tf.where(whole, "", pieces), ids, splits


def lower(texts):
    return tf.strings.lower(texts, "utf-8")
