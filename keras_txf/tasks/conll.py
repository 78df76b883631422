"""Files of tagged words, as of the shared tasks of CoNLL: a word and its tag in a line, a blank line between texts."""

import os
import pathlib
import re

from keras_txf.checks import short_repr
from keras_txf.reading import reading

SUFFIXES = (".conll", ".conllu", ".iob", ".bio", ".txt", ".tsv")
# The names of columns in a first line, as files in use have them.
WORD_NAMES = ("word", "words", "token", "tokens", "form")
TAG_NAMES = ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "pos_tags", "upos")
FORM, UPOS, FIELDS = 1, 3, 10  # of CoNLL-U
PART_OF_WORD = r"\d+[-.]\d+"  # the ID of CoNLL-U for a range of words that is one token, or for a word left unsaid


def is_conll(data):
    """Whether data is the path of a file of CoNLL."""
    return isinstance(data, (str, os.PathLike)) and pathlib.Path(data).suffix.lower() in SUFFIXES


def read_conll(path, columns=None):
    """Returns lists of the words and of the tags of each text, from a file in UTF-8.

    A blank line ends a text. Blanks or tabs separate the columns of a line: the first is the word, the last the tag. Of
    CoNLL-U they are FORM and UPOS, and the lines of multiword tokens and of empty nodes are left out. A first line with
    the names of columns, such as "word" and "tag", says which they are. Lines that begin with -DOCSTART- are left out,
    and comments: before the words of a text a line like "# text = Ada", and in a file with tabs any line without one
    that begins with "#".

    Args:
        path: a `pathlib.Path`.
        columns: the columns of the words and of the tags, two numbers that count from 0 (-1 is the last), or two names
            of the first line.

    Raises:
        ValueError: no such file, a line without the columns, a file without words, or with a first column that is no
            word, where `columns` does not say which are.
    """
    if not path.is_file():
        raise ValueError(f"`words` must be a file that exists; received {short_repr(str(path))}.")
    texts = _texts(path)
    if texts and len(texts[0][0][1]) > 1:
        columns = _by_name(path, texts[0], columns)
    texts = [text for text in texts if text]
    if not texts:
        raise ValueError(f"`words` must have words and their tags; received none in {short_repr(str(path))}.")
    texts = _without_comments_of_ids(texts)
    if _counts(texts) and all(len(fields) == FIELDS for text in texts for _, fields in text):
        columns = (FORM, UPOS) if columns is None else columns
        texts = [[line for line in text if not re.fullmatch(PART_OF_WORD, line[1][0])] for text in texts]
    if columns is None:
        _refuse_other_first_column(path, texts)
        columns = (0, -1)
    least = max(2, *(column + 1 if column >= 0 else -column for column in columns))
    for number, fields in (line for text in texts for line in text):
        if len(fields) < least:
            raise ValueError(
                f"{short_repr(str(path))} must have a word and its tag in each line"
                f"{'' if least == 2 else f', {least} columns'}; received {short_repr(' '.join(fields))} in line "
                f"{number}."
            )
    return [[[fields[column].strip() for _, fields in text] for text in texts] for column in columns]


def _texts(path):
    """The lines of each text, with their numbers: (number, fields)."""
    with reading(path):
        content = path.read_text(encoding="utf-8-sig")
    comment = r"#\s*[\w.:-]+ =.*" + ("|#[^\t]*" if "\t" in content else "")
    texts = [[]]
    for number, line in enumerate(content.split("\n"), 1):
        line = line.rstrip()
        fields = line.split("\t") if "\t" in line else re.split(" +", line.strip())  # U+00A0 is part of a word
        if not line:
            texts.append([])
        elif not texts[-1] and re.fullmatch(comment, line):
            continue
        elif fields[0] != "-DOCSTART-":
            texts[-1].append((number, fields))
    return [text for text in texts if text]


def _by_name(path, text, columns):
    """The numbers of the columns, if the first line has names; then removes it from its text."""
    names = text[0][1]
    if columns is None:
        known = [[i for i, name in enumerate(names) if name.lower() in known] for known in (WORD_NAMES, TAG_NAMES)]
        if not all(known):
            return None
        if [len(places) for places in known] != [1, 1]:
            raise ValueError(
                f"`columns` must say which of the columns of {short_repr(str(path))}, {short_repr(names)}, are the "
                "words and the tags; received None."
            )
        found = (known[0][0], known[1][0])
    elif isinstance(columns, (list, tuple)) and len(columns) == 2 and all(type(one) is int for one in columns):
        return tuple(columns)
    elif isinstance(columns, (list, tuple)) and len(columns) == 2 and all(one in names for one in columns):
        found = tuple(names.index(one) for one in columns)
    else:
        raise ValueError(
            "`columns` must be the numbers of the columns of the words and the tags, from 0 on, or their names in the "
            f"first line of {short_repr(str(path))}, {short_repr(names)}; received {short_repr(columns)}."
        )
    del text[0]
    return found


def _counts(texts):
    """Whether the first of three columns or more is the number of the word in its text."""
    for text in texts:
        ids = [fields[0] for _, fields in text if not re.fullmatch(PART_OF_WORD, fields[0])]
        if ids != [str(number) for number in range(1, len(ids) + 1)] or any(len(fields) < 3 for _, fields in text):
            return False
    return True


def _without_comments_of_ids(texts):
    """Texts without a comment of several columns, as GermEval's have before the word that is number 1."""
    return [text[1:] if len(text) > 1 and text[0][1][0] == "#" and text[1][1][0] == "1" else text for text in texts]


def _refuse_other_first_column(path, texts):
    """Refuses a first column of numbers of words, or of one name for all words of a text, unless there are only two."""
    firsts = [[fields[0] for _, fields in text] for text in texts]
    is_wide = all(len(fields) > 2 for text in texts for _, fields in text)
    same = is_wide and max(map(len, firsts)) > 1 and all(len(set(first)) == 1 for first in firsts)
    if same or _counts(texts):
        raise ValueError(
            "`columns` must be the numbers of the columns of the words and the tags, from 0 on, such as (1, -1): the "
            f"first column of {short_repr(str(path))} {'is the same in all lines' if same else 'counts the words'} of "
            f"a text, as in the line {short_repr(' '.join(texts[0][0][1]))}; received None."
        )
