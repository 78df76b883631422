"""Where vocabularies are trained from: a file of text, or anything that yields lines."""

import os

from keras_txf.checks import short_repr
from keras_txf.text.vocabulary import not_utf8, read_text


def lines(source, keep_ends=False):
    """The lines of a file, or the strings of an iterable.

    Args:
        source: path of a text file in UTF-8; or an iterable of str, of UTF-8 bytes, or of string tensors such as a
            `tf.data.Dataset`.
        keep_ends: whether the lines of a file keep the character that ends them.

    Raises:
        ValueError: a file that is missing or not in UTF-8, what is no string, nothing but blanks.
    """
    if isinstance(source, (str, os.PathLike)):
        found = read_text("source", source).splitlines(keep_ends)
    elif hasattr(source, "__iter__") and not isinstance(source, (bytes, dict)):
        found = strings(source)
    else:
        raise ValueError(f"`source` must be the path of a text file or an iterable of strings; received {short_repr(source)}.")
    blank = True
    for line in found:
        blank = blank and not line.strip()
        yield line
    if blank:
        raise ValueError(f"`source` must hold text to learn from; received none in {short_repr(source)}.")


def strings(source):
    for place, line in enumerate(source):
        line = line.numpy() if hasattr(line, "numpy") else line
        try:
            line = line.decode() if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            raise not_utf8("source", f"the string at place {place}", error) from None
        if not isinstance(line, str):
            raise ValueError(f"`source` must hold strings; received {short_repr(line)} at place {place}.")
        yield line
