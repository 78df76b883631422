"""Words in rows that a model reads at once: a long text is several rows.

Legend: W words of a text, L length in tokens.
"""

import numpy as np

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import characters_before_bytes
from keras_txf.text.tags import has_blanks_in_tokens, split_into_words, tokens_of_words


class WordWindows:
    """Tokenizes words into rows of at most `max_length` tokens, which end where a word ends.

    Args:
        tokenizer: the tokenizer.
        max_length: number of tokens of a row, with `start` and `end`.
    """

    def __init__(self, tokenizer, max_length):
        self.tokenizer = tokenizer
        self.room = max_length - len(tokenizer.start) - len(tokenizer.end)
        self.blanks = has_blanks_in_tokens(tokenizer)

    def rows(self, texts):
        """Returns the rows of texts, and whose they are.

        Args:
            texts: list of lists of W words.

        Returns:
            rows: list of int32 (L,).
            owners: for each row the place of its text, and int arrays of the places of words' first tokens in the row,
                and of these words in the text.
        """
        words = tf.ragged.constant(texts, tf.string, 1)
        ids, places, first = tokens_of_words(self.tokenizer, words, self.blanks)
        splits, before = ids.row_splits.numpy(), words.row_splits.numpy()
        places, first = places.flat_values.numpy(), first.flat_values.numpy()
        parts, owners = [], []
        for text in range(len(texts)):
            for start, stop in windows(places, splits[text], splits[text + 1], self.room):
                tokens = np.flatnonzero(first[start:stop])
                parts.append((start, stop))
                owners.append((text, tokens + len(self.tokenizer.start), places[start:stop][tokens] - before[text]))
        lengths = [stop - start for start, stop in parts]
        rows = tf.RaggedTensor.from_row_lengths(ids.flat_values, lengths)  # the windows hold all tokens, in order
        rows = self.tokenizer._add_special_tokens(rows)
        return np.split(rows.flat_values.numpy(), rows.row_splits.numpy()[1:-1]) if parts else [], owners

    def split(self, texts):
        """Returns the words of texts, and the places of the words in characters, lists of (begin, end)."""
        words, begins, ends = split_into_words(tf.constant(texts, tf.string))
        found = [[word.decode() for word in row] for row in words.to_list()]
        places = []
        for text, *limits in zip(texts, begins.to_list(), ends.to_list()):
            characters = characters_before_bytes(text)
            places.append([(int(characters[begin]), int(characters[end])) for begin, end in zip(*limits)])
        return found, places


def windows(places, start, stop, room):
    """Yields the limits of windows of at most `room` of the tokens from `start` to `stop`; `places` are their words."""
    while start < stop:
        end = min(start + room, stop)
        if end < stop and places[end] == places[end - 1]:
            first = start + int(np.searchsorted(places[start:end], places[end]))
            end = first if first > start else end  # a word of more tokens than there is room
        yield start, end
        start = end


def words_of(name, texts):
    """Checks lists of words."""
    texts = texts.tolist() if hasattr(texts, "tolist") else texts
    if not isinstance(texts, (list, tuple)):
        raise ValueError(f"`{name}` must be a list of lists of strings; received {short_repr(texts)}.")
    rows = []
    for place, row in enumerate(texts):
        row = row.tolist() if hasattr(row, "tolist") else row
        if not isinstance(row, (list, tuple)) or not all(isinstance(word, str) for word in row):
            raise ValueError(
                f"`{name}` must be a list of lists of strings; received {short_repr(row)} at place {place}."
            )
        rows.append(list(row))
    return rows
