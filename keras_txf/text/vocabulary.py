"""Tokens and their ids, and the reading of files with them."""

import difflib

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.reading import reading, refuse_pointer


class Vocabulary:
    """The tokens in the order of their ids.

    Args:
        tokens: list of str, each once.

    Raises:
        ValueError: no tokens, an empty token, a token that occurs twice, a token that is no string.
    """

    def __init__(self, tokens):
        self.tokens = tuple(as_list(tokens))
        self.index = {}
        for place, token in enumerate(self.tokens):
            if not isinstance(token, str) or not token:
                raise ValueError(
                    f"`vocabulary` must hold strings that are not empty; received {short_repr(token)} at place {place}."
                )
            if token in self.index:
                raise ValueError(
                    f"`vocabulary` must hold each token once; received {short_repr(token)} at the places "
                    f"{self.index[token]} and {place}."
                )
            self.index[token] = place
        try:
            "".join(self.tokens).encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                "`vocabulary` must hold text; received half of a surrogate pair, "
                f"{short_repr(error.object[error.start])}."
            ) from None
        if not self.tokens:
            raise ValueError("`vocabulary` must hold at least one token; received none.")

    def __len__(self):
        return len(self.tokens)

    def id_of(self, name, token):
        """Returns the id of a token; refuses a token that is not in the vocabulary."""
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
    """Makes a tokenizer with the options of files and of the caller; names the files where these cause an error."""
    try:
        return make(**{**options, **kwargs})
    except Exception:
        with reading(*files):
            make(**options)
        raise


def as_list(tokens):
    """Returns the list of tokens; refuses values without an order."""
    if isinstance(tokens, (str, bytes, dict, set)) or not hasattr(tokens, "__iter__"):
        raise ValueError(
            f"`vocabulary` must be a list of tokens (`from_file` reads one); received {short_repr(tokens)}."
        )
    return list(tokens)


def read_bytes(name, path):
    """Reads a file; refuses a missing or empty one."""
    path = checks.path(name, path)
    if not path.is_file():
        raise ValueError(
            f"`{name}` must be a file; received {short_repr(str(path))}, which is "
            f"{'a folder' if path.is_dir() else 'missing'}."
        )
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
    lines = read_text(name, path).split("\n")
    if not lines[-1]:
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
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
