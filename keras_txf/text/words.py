"""Words as the units of a text: text split into words, and words split into tokens.

Legend: N texts, W words of a text, L length in tokens.
"""

from keras_txf.text.lazy_imports import tf, tf_text
from keras_txf.text.tokenizer import cut

# Of letters, marks and digits a word consists; any other character that is no blank is a word of its own.
ALONE = r"[^\s\p{Z}\p{L}\p{M}\p{N}_]"


def split_into_words(texts):
    """Splits texts at blanks and around punctuation.

    Args:
        texts: string (N,).

    Returns:
        words, begins, ends: RaggedTensors (N, W), string and int64: the words, and their places in the text in bytes.
    """
    return tf_text.regex_split_with_offsets(texts, rf"[\s\p{{Z}}]+|{ALONE}", ALONE)


def has_blanks_in_tokens(tokenizer):
    """Whether the blank before a word belongs to the word's first token, and the tokenizer does not add it itself."""
    alone, after_blank, both = tokenizer.tokenize(["a", " a", "a a"]).to_list()
    return alone != after_blank and both != alone + alone


def tokens_of_words(tokenizer, words, blanks):
    """Tokenizes each word alone, as Hugging Face does with `is_split_into_words`.

    Args:
        tokenizer: the tokenizer.
        words: string RaggedTensor (N, W).
        blanks: the result of `has_blanks_in_tokens`: every word but the first of a text is then tokenized with a blank
            before it.

    Returns:
        ids: int32 RaggedTensor (N, L), without `start` and `end`.
        places: int64 RaggedTensor (N, L), the place in all texts' words of the word that a token is of.
        first: bool RaggedTensor (N, L), whether a token is the first of its word.
    """
    flat = words.flat_values
    if blanks:
        place = tf.ragged.range(words.row_lengths()).flat_values
        flat = tf.strings.join([tf.where(place == 0, "", " "), flat])
    pieces = tokenizer.tokenize(flat)
    ids = tf.RaggedTensor.from_row_splits(pieces, words.row_splits).merge_dims(1, 2)
    first = tf.ragged.range(pieces.row_lengths()).flat_values == 0
    return ids, ids.with_flat_values(pieces.value_rowids()), ids.with_flat_values(first)


def between(tokenizer, ids, others, max_length):
    """Truncates rows, and puts `start` and `end` around them.

    Args:
        ids: RaggedTensor (N, L).
        others: list of (RaggedTensor (N, L), the value for `start` and `end`).
        max_length: number of tokens, or None.

    Returns:
        The rows of ids, and a list of the rows of the others.
    """
    start, end = len(tokenizer.start), len(tokenizer.end)
    if max_length is not None:
        room = max_length - start - end
        ids = cut(ids, room, tokenizer.truncation_side)
        others = [(cut(rows, room, tokenizer.truncation_side), value) for rows, value in others]

    def filled(rows, value):
        parts = [tf.fill([rows.nrows(), count], tf.cast(value, rows.dtype)) for count in (start, end)]
        return tf.concat([parts[0], rows, parts[1]], axis=1)

    return tokenizer._between(ids), [filled(*pair) for pair in others]
