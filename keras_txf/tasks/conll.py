"""Files of tagged words, as of the shared tasks of CoNLL: a word in a line, its tag in the last column."""

import os
import pathlib
import re

from keras_txf.checks import short_repr
from keras_txf.reading import reading

SUFFIXES = (".conll", ".iob", ".bio", ".txt", ".tsv")


def conll_columns(data, tags):
    """Returns the columns of words and of tags: of a file of CoNLL where `data` is its path, else those given."""
    if not isinstance(data, (str, os.PathLike)) or pathlib.Path(data).suffix not in SUFFIXES:
        return data, tags
    if tags is not None:
        raise ValueError("`tags` must be left out where `words` is a file of both; received both.")
    return read_conll(pathlib.Path(data))


def read_conll(path):
    """Returns lists of the words and of the tags of each text, from a file in UTF-8.

    A blank line ends a text. Blanks or tabs separate the columns of a line: the first is the word, the last the tag.
    Lines that begin with -DOCSTART- are left out, and comments: before the words of a text a line like "# text = Ada",
    and in a file with tabs any line without one that begins with "#".

    Raises:
        ValueError: no such file, a line without a tag, a file without words.
    """
    if not path.is_file():
        raise ValueError(f"`words` must be a file that exists; received {short_repr(str(path))}.")
    texts = [([], [])]
    with reading(path):
        content = path.read_text(encoding="utf-8-sig")
    comment = "#[^\t]*" if "\t" in content else r"#\s*[\w.:-]+ =.*"
    for number, line in enumerate(content.split("\n"), 1):
        line = line.rstrip()
        fields = line.split("\t") if "\t" in line else line.split()
        if not line:
            texts.append(([], []))
        elif not texts[-1][0] and re.fullmatch(comment, line):
            continue
        elif fields[0] != "-DOCSTART-":
            if len(fields) < 2:
                raise ValueError(
                    f"{short_repr(str(path))} must have a word and its tag in each line; received {short_repr(line)} "
                    f"in line {number}."
                )
            texts[-1][0].append(fields[0])
            texts[-1][1].append(fields[-1].lstrip())
    texts = [text for text in texts if text[0]]
    if not texts:
        raise ValueError(f"{short_repr(str(path))} must have words and their tags; received none.")
    return [list(column) for column in zip(*texts)]
