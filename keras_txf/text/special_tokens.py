"""Finds the special tokens in a text.

Legend: R texts, N pieces.
"""

import re

from keras_txf.text.lazy_imports import tf

LIMIT = b"\xff\xfe\xff\xfe\xfe\xff\xfe\xff"  # bytes that UTF-8 does not have, and more of them than in a damaged text


def split_at(texts, special_tokens):
    """Splits texts before and after each special token; where several match, takes the longest.

    Args:
        texts: string (R,).
        special_tokens: dict of tokens and ids.

    Returns:
        pieces: string (N,), empty for special tokens.
        ids: int32 RaggedTensor (N, 0 or 1), the special tokens.
        splits: int64 (R + 1,), the pieces of each text.
    """
    longest_first = sorted(special_tokens, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    # tensorflow-text's `regex_split` would lose what follows a NUL.
    pieces = tf.strings.split(tf.strings.regex_replace(texts, f"({pattern})", LIMIT + rb"\1" + LIMIT), LIMIT)
    splits, pieces = pieces.row_splits, pieces.values
    special = tf.strings.regex_full_match(pieces, pattern)
    found = tf.boolean_mask(pieces, special)
    which = tf.argmax(found[:, None] == tf.constant(longest_first), axis=1)
    ids = tf.gather(tf.constant([special_tokens[token] for token in longest_first], "int32"), which)
    ids = tf.RaggedTensor.from_row_lengths(ids, tf.cast(special, tf.int64), validate=False)
    return tf.where(special, "", pieces), ids, splits
