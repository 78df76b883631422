"""Vocabularies: tokens and their ids, files of tokens, and the text for training a vocabulary."""

import collections.abc
import difflib
import io
import os
import re

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import reading, refuse_pointer
from keras_txf.progress import bar

LARGEST_VOCABULARY = 10**7  # in training: `tokenizers` allocates memory for all tokens before it reads text


class Vocabulary:
    """The tokens in the order of their ids.

    Args:
        tokens: list of str, each once.

    Raises:
        ValueError: no tokens, an empty token, a token that occurs twice, a token that is not a string.
    """

    def __init__(self, tokens):
        self.tokens = tuple(as_list(tokens))
        self.index = {}
        for index, token in enumerate(self.tokens):
            if not isinstance(token, str) or not token:
                raise bad_argument("vocabulary", "hold strings that are not empty", token, index)
            if token in self.index:
                raise ValueError(
                    f"`vocabulary` must hold each token once; received {short_repr(token)} at the indices "
                    f"{self.index[token]} and {index}."
                )
            self.index[token] = index
        try:
            "".join(self.tokens).encode()
        except UnicodeEncodeError as error:
            must = "hold text, without half of a surrogate pair"
            raise bad_argument("vocabulary", must, error.object[error.start]) from None
        if not self.tokens:
            raise ValueError("`vocabulary` must hold at least one token; received none.")

    def __len__(self):
        return len(self.tokens)

    def id_of(self, name, token):
        """Returns the id of a token. Raises ValueError if it is not in the vocabulary."""
        if not isinstance(token, str) or token not in self.index:
            near = difflib.get_close_matches(token, self.tokens, 1) if isinstance(token, str) else []
            hint = f" Did you mean {short_repr(near[0])}?" if near else ""
            raise ValueError(
                f"`{name}` must be among the {len(self)} tokens of the vocabulary; received {short_repr(token)}.{hint}"
            )
        return self.index[token]

    def token_of(self, name, number):
        return self.tokens[checks.id_below(name, number, len(self))]


def from_files(make, files, options, kwargs):
    """Makes a tokenizer with the options of files and of the caller. An error that the files cause names the files."""
    try:
        return make(**{**options, **kwargs})
    except Exception:
        with reading(*files):
            make(**options)
        raise


def as_list(tokens):
    """Returns the list of tokens. Raises ValueError for a value without an order."""
    if isinstance(tokens, (str, bytes, dict, set)) or not hasattr(tokens, "__iter__"):
        raise bad_argument("vocabulary", "be a list of tokens (`from_file` reads one)", tokens)
    return list(tokens)


def read_bytes(name, path):
    """Reads a file. Raises ValueError if it is missing or empty."""
    path = checks.path(name, path)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "missing"
        raise ValueError(f"`{name}` must be a file; received {short_repr(str(path))}, which is {what}.")
    refuse_pointer(path)
    content = path.read_bytes()
    if not content:
        raise ValueError(f"`{name}` must hold something; received {short_repr(str(path))}, which is empty.")
    return content


def read_text(name, path):
    """Reads the text of a file in UTF-8."""
    try:
        return read_bytes(name, path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(name, path, error) from None


def read_tokens(name, path):
    """Reads the lines of a vocabulary file: one token in each line, as in BERT's `vocab.txt`."""
    lines = [line.removesuffix("\r") for line in read_text(name, path).removesuffix("\n").split("\n")]
    if "" in lines:
        raise ValueError(
            f"`{name}` must hold one token a line; received {short_repr(str(path))}, whose line {lines.index('') + 1} "
            "is empty."
        )
    return lines


def not_utf8(name, path, error):
    return ValueError(
        f"`{name}` must be text in UTF-8; received {short_repr(str(path))}, which has "
        f"the byte 0x{error.object[error.start]:02x} at {error.start}: {error.reason}."
    )


def lines(source, keep_ends=False, verbose=0):
    """Yields the lines of files, or the strings of an iterable.

    Args:
        source: path of a text file in UTF-8, or a list of paths; or an iterable of str, of UTF-8 bytes, or of string
            tensors such as a `tf.data.Dataset`. The strings of a list are paths if each string is the path of a file.
            The strings of an iterator are always text, and a `pathlib.Path` is always a file.
        keep_ends: whether the lines of a file keep their last character, the end of the line.
        verbose: see `progress.bar`.

    Raises:
        ValueError: a file that is missing or not in UTF-8, an item that is not a string, strings that look like paths
            of missing files, only blanks.
    """
    if isinstance(source, (str, os.PathLike)):
        strings_of_source = lines_of_file(source, keep_ends)
    elif hasattr(source, "__iter__") and not isinstance(source, (bytes, dict)):
        strings_of_source = strings(source, are_files(source), keep_ends)
    else:
        raise bad_argument("source", "be the path of a text file, a list of paths or an iterable of strings", source)
    blank = True
    for line in bar(strings_of_source, unit="line", name="reading", verbose=verbose):
        blank = blank and not line.strip()
        yield line
    if blank:
        raise ValueError(f"`source` must hold text to learn from; received none in {short_repr(source)}.")


def lines_of_file(path, keep_ends):
    """Returns the lines of a file. Other separators of lines, such as U+2028, are text."""
    file_lines = list(io.StringIO(read_text("source", path), newline=""))
    return file_lines if keep_ends else [line.removesuffix("\n").removesuffix("\r") for line in file_lines]


def strings(source, are_paths, keep_ends):
    for index, line in enumerate(source):
        if are_paths or isinstance(line, os.PathLike):
            yield from lines_of_file(line, keep_ends)
            continue
        line = line.numpy() if hasattr(line, "numpy") else line
        try:
            line = line.decode() if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            raise not_utf8("source", f"the string at index {index}", error) from None
        if not isinstance(line, str):
            raise bad_argument("source", "hold strings", line, index)
        yield line


def are_files(source):
    """Whether the strings of a collection are paths. Raises ValueError for strings like paths of missing files."""
    if not isinstance(source, collections.abc.Collection):
        return False
    any_path = any(isinstance(item, os.PathLike) for item in source)
    missing = None
    for item in source:
        if not isinstance(item, (str, os.PathLike)):
            return False
        if not os.path.isfile(item):
            if not any_path and not looks_like_path(item):
                return False
            missing = item if missing is None else missing
    if missing is not None:
        raise ValueError(
            f"`source` must be paths of files that exist, or texts; received {short_repr(missing)}, which seems to "
            f"be a path and is {'a folder' if os.path.isdir(missing) else 'no file'}. An iterator, iter(source), makes "
            "them text."
        )
    return len(source) > 0


def looks_like_path(text):
    """Whether a text looks like a path, as "train.txt", "data/train" and "my data/train.txt" do.

    "and/or we", "node.js is" and the date "3/3/2018" do not.
    """
    has_extension = re.search(r"[^\s.]\.[A-Za-z]\w{0,5}$", text) is not None
    parts = re.split(r"[/\\]", text)
    has_folder = len(parts) > 1 and (
        parts[0] in ("", ".", "..", "~") or all(re.search(r"[^\W\d]", part) for part in parts)
    )
    return has_extension and has_folder if re.search(r"\s", text) else has_extension or has_folder


def first_tokens(special_tokens):
    """Returns the special tokens that a vocabulary begins with. Raises ValueError if a token occurs twice."""
    special_tokens = checks.strings("special_tokens", special_tokens)
    if len(set(special_tokens)) < len(special_tokens):
        raise bad_argument("special_tokens", "hold each token once", special_tokens)
    return special_tokens
