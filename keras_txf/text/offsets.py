"""Offsets of tokens: the characters of a text that each token is of.

Legend: L length in tokens.
"""

import numpy as np

from keras_txf.text import bert
from keras_txf.text.lazy_imports import tf


def characters_before_bytes(text):
    """Returns int (bytes + 1,): how many characters of the text begin before each byte of its UTF-8, and in all."""
    starts = (np.frombuffer(text.encode(), "uint8") & 0xC0) != 0x80
    return np.cumsum([0, *starts])


def from_bytes(text, begins, ends):
    """Converts offsets in bytes of UTF-8 to offsets in characters, int32 (L, 2): a part of a character is all of it."""
    before = characters_before_bytes(text)
    ends = before[ends]
    begins = np.append(before[1:] - 1, len(text))[begins]
    return pairs(np.minimum(begins, ends), ends)


def of_words(texts, words, pieces, sizes, options):
    """Finds the offsets of pieces of BERT's words, which are of normalised text.

    Each character becomes some normalised characters, or none; the words are these, one after the other.

    Args:
        texts: list of N strings.
        words: the result of `bert.words` of the texts.
        pieces: for each word the ids of its pieces.
        sizes: int, the characters of each token of the vocabulary; 0 for the unknown token, which is a whole word.
        options: the further arguments of `bert.words`.

    Returns:
        List of N int32 (L, 2).
    """
    alphabet = sorted({character for text in texts for character in text})
    _, lengths, splits = bert.words(tf.constant(alphabet, tf.string), *options)
    ends = np.cumsum([0, *lengths.numpy()])[splits.numpy()]
    counts = dict(zip(alphabet, ends[1:] - ends[:-1]))
    lengths, splits = words[1].numpy(), words[2].numpy()
    found = []
    for text, first, last in zip(texts, splits, splits[1:]):
        sources = np.repeat(np.arange(len(text)), [counts[character] for character in text])
        begins, ends, place = [], [], 0
        for length, ids in zip(lengths[first:last], pieces[first:last]):
            limits = place + np.cumsum([0, *(sizes[ids] if sizes[ids].all() else [length])])
            begins.append(limits[:-1])
            ends.append(limits[1:])
            place += length
        begins, ends = (np.concatenate([*parts, np.zeros(0, "int64")]).astype("int64") for parts in (begins, ends))
        found.append(pairs(sources[begins], sources[ends - 1] + 1))
    return found


def pairs(begins, ends):
    return np.stack([begins, ends], axis=1).astype("int32")
