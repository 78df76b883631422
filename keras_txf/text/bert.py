"""BERT's words: cleans, decomposes, lower-cases and splits text, character by character.

Tables decide, so that the words do not depend on the version of Unicode of TensorFlow or ICU; see `unicode.py`.

Legend: R texts, C characters, W words.
"""

import functools
import unicodedata

import numpy as np

from keras_txf.text import unicode
from keras_txf.text.lazy_imports import tf
from keras_txf.text.shapes import marked

# The new characters of a character have flags above their 21 bits, in this order.
CHARACTER = (1 << 21) - 1
MORE = 1 << 21  # further characters follow
MOVES = 1 << 22  # an accent that stays, and is sorted among the accents
SPACE = 1 << 23  # ends a word
ALONE = 1 << 24  # is a word
STARTER = 1 << 25  # an accent that is dropped, and ends a run of sorted accents
DROPPED = 1 << 26
PAGE = 256


def words(texts, lowercase, strip_accents, split_chinese, clean):
    """Splits texts into words, as `BertNormalizer` and `BertPreTokenizer` of Hugging Face do.

    Args:
        texts: string (R,).
        lowercase, strip_accents, split_chinese, clean: bools, the normaliser's options.

    Returns:
        words: string (W,).
        lengths: int64 (W,), their characters.
        splits: int64 (R + 1,), the words of each text.
    """
    table = tables(lowercase, strip_accents, split_chinese, clean)
    characters = changed(tf.strings.unicode_decode(texts, "UTF-8"), *table)
    if strip_accents:
        moves = tf.reduce_any(tf.bitwise.bitwise_and(characters.values, MOVES) > 0)
        characters = tf.cond(moves, lambda: in_canonical_order(characters), lambda: characters)
    return split(without(characters, STARTER))


def changed(codes, first, rest, page_of):
    """Normalises code points, RaggedTensor (R, C): returns as many, fewer or more, with their flags."""
    code = codes.values
    page = tf.gather(page_of, tf.bitwise.right_shift(code, 8))
    place = page * PAGE + tf.bitwise.bitwise_and(code, PAGE - 1)
    values = tf.bitwise.bitwise_xor(tf.gather(first, place), code)

    def several():
        wide = tf.reshape(tf.concat([values[:, None], tf.gather(rest, place)], axis=1), [-1])
        splits = codes.row_splits * (1 + rest.shape[1])
        return tf.RaggedTensor.from_row_splits(wide, splits, validate=False)

    more = tf.reduce_any(tf.bitwise.bitwise_and(values, MORE) > 0)
    return without(tf.cond(more, several, lambda: codes.with_values(values)), DROPPED)


def without(ragged, flag):
    """Returns the values below the flag; where all are below it, which is usual, at no cost."""
    kept = ragged.values < flag

    def some():
        before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], 0)
        splits = tf.gather(before, ragged.row_splits)
        return tf.RaggedTensor.from_row_splits(tf.boolean_mask(ragged.values, kept), splits, validate=False)

    return tf.cond(tf.reduce_all(kept), lambda: ragged, some)


def in_canonical_order(characters):
    """Sorts the accents between two letters by their classes: RaggedTensor (R, C) -> RaggedTensor (R, C)."""
    values = characters.values
    codes, classes = accents()
    moves = tf.bitwise.bitwise_and(values, MOVES) > 0
    place = tf.where(moves, tf.searchsorted(codes, tf.bitwise.bitwise_and(values, CHARACTER)), 0)
    letter = tf.cumsum(tf.cast(~moves, tf.int64)) + characters.value_rowids()
    key = letter * 256 + tf.where(moves, tf.gather(classes, place), 0)
    return characters.with_values(tf.gather(values, tf.argsort(key, stable=True)))


@functools.cache
def accents():
    """Returns the accents that stay, int32, sorted, and their canonical combining classes, int64."""
    codes = sorted(unicode.code_points(unicode.REORDERED))
    return np.array(codes, "int32"), np.array([unicodedata.combining(chr(code)) for code in codes], "int64")


def split(characters):
    """Splits characters with flags, RaggedTensor (R, C), into words; see `words`."""
    values, splits = characters.values, characters.row_splits
    ends, alone = values >= SPACE, values >= ALONE
    after_end = tf.concat([[True], ends], 0)[:-1]
    space = ends & ~alone
    begins = (alone | after_end | marked(splits, values)) & ~space
    letters = tf.boolean_mask(tf.bitwise.bitwise_and(values, CHARACTER), ~space)
    starts = tf.where(tf.boolean_mask(begins, ~space))[:, 0]
    limits = tf.concat([starts, [tf.size(letters, tf.int64)]], 0)
    words = tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(letters, limits, validate=False), "UTF-8")
    before = tf.searchsorted(tf.where(begins)[:, 0], splits, out_type=tf.int64)
    return words, limits[1:] - limits[:-1], before


@functools.cache
def tables(lowercase, strip_accents, split_chinese, clean):
    """Makes the tables of the new characters of each code point; equal pages of 256 code points are stored once.

    Returns:
        first: int32 (cells,), the exclusive or of the code point and its first new character: 0 for no change.
        rest: int32 (cells, 0 to 2), its further new characters.
        page_of: int32 (4352,), the page of every 256 code points.
    """
    names = (
        unicode.WHITESPACE,
        unicode.PUNCTUATION,
        unicode.CHINESE,
        unicode.MARKS,
        unicode.CONTROL,
        unicode.REORDERED,
    )
    whitespace, punctuation, chinese, marks, control, reordered = (
        frozenset(unicode.code_points(name)) for name in names
    )

    def parts(character):
        """Yields the new characters of a character."""
        for part in unicode.decompose(character) if strip_accents else character:
            if not strip_accents or ord(part) not in marks:
                yield from map(ord, unicode.lower(part) if lowercase else part)
            elif not unicodedata.combining(part):
                yield STARTER

    def flag(code):
        moves = MOVES if strip_accents and code in reordered else 0
        return moves | (SPACE if code in whitespace else ALONE if code in punctuation else 0)

    width = 3 if strip_accents else 2 if lowercase else 1
    cells = np.full((0x110000, width), DROPPED, "int32")
    cells[:, 0] = 0
    for code in {*whitespace, *punctuation, *marks, *reordered, *unicode.letters()}:
        new = [part | flag(part) for part in parts(chr(code))] or [DROPPED]
        new[0] ^= (code if new[0] < STARTER else 0) | (MORE if len(new) > 1 else 0)
        cells[code, : len(new)] = new
    if split_chinese:
        cells[list(chinese), 0] |= ALONE
    if clean:
        cells[list(control)] = DROPPED
    pages = {}
    page_of = [pages.setdefault(page.tobytes(), len(pages)) for page in cells.reshape(-1, PAGE * width)]
    cells = np.frombuffer(b"".join(pages), "int32").reshape(-1, width)
    return np.ascontiguousarray(cells[:, 0]), cells[:, 1:], np.array(page_of, "int32")
