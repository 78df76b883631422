"""Tagged words: files of them (CoNLL), and rows of whole words that a model reads at once.

A file has a word and its tag in each line, and a blank line between texts.

Legend: W words of a text, L length of a row.
"""

import re

import numpy as np

from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import reading
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import characters_before_bytes
from keras_txf.text.tags import has_blanks_in_tokens, split_into_words, tokens_of_words
from keras_txf.text.tokenizer import add_start_and_end

CONLL = (".conll", ".conllu", ".iob", ".bio", ".txt", ".tsv")
# The names of columns in a first line, as files in use have them.
WORD_NAMES = ("word", "words", "token", "tokens", "form")
TAG_NAMES = ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "pos_tags", "upos")
FORM, UPOS, FIELDS = 1, 3, 10  # of CoNLL-U
PART_OF_WORD = r"\d+[-.]\d+"  # the ID of CoNLL-U for a range of words that is one token, or for a word left unsaid
NUMBERS = "be the numbers of the columns of the words and the tags, from 0 on"


def read_conll(path, columns=None):
    """Returns lists of the words and of the tags of each text, from a file in UTF-8.

    A blank line ends a text. Blanks or tabs separate the columns of a line. The first column is the word, the last the
    tag; in CoNLL-U FORM and UPOS. A first line may name the columns, such as "word" and "tag". Left out are the lines
    of CoNLL-U's multiword tokens and empty nodes, lines that begin with -DOCSTART-, and comments. A comment is a line
    like "# text = Ada" before the words of a text. In a file with tabs any line without tabs that begins with "#" is a
    comment.

    Args:
        path: a `pathlib.Path`.
        columns: the columns of the words and of the tags: two numbers that count from 0 (-1 is the last column), or two
            names in the first line.

    Raises:
        ValueError: a missing file, a line without the columns, a file without words; without `columns`, a first column
            that does not hold words.
    """
    shown = short_repr(str(path))
    if not path.is_file():
        raise ValueError(f"`words` must be a file that exists; received {shown}.")
    texts = _texts(path)
    if texts and len(texts[0][0][1]) > 1:
        columns = _by_name(shown, texts[0], columns)
    texts = [text for text in texts if text]
    if not texts:
        raise ValueError(f"`words` must have words and their tags; received none in {shown}.")
    # GermEval's files have a comment of several columns before word number 1.
    texts = [text[1:] if len(text) > 1 and text[0][1][0] == "#" and text[1][1][0] == "1" else text for text in texts]
    if _counts(texts) and all(len(fields) == FIELDS for text in texts for _, fields in text):
        columns = (FORM, UPOS) if columns is None else columns
        texts = [[line for line in text if not re.fullmatch(PART_OF_WORD, line[1][0])] for text in texts]
    if columns is None:
        _check_first_column(shown, texts)
        columns = (0, -1)
    least = max(2, *(column + 1 if column >= 0 else -column for column in columns))
    for number, fields in (line for text in texts for line in text):
        if len(fields) < least:
            more = "" if least == 2 else f", {least} columns"
            raise ValueError(
                f"{shown} must have a word and its tag in each line{more}; received {short_repr(' '.join(fields))} in "
                f"line {number}."
            )
    return [[[fields[column].strip() for _, fields in text] for text in texts] for column in columns]


def _texts(path):
    """Returns the lines of each text: (number of the line, fields)."""
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


def _by_name(shown, text, columns):
    """Returns the indices of the columns of words and tags. Removes the line of names from the first text."""
    names = text[0][1]
    is_pair = isinstance(columns, (list, tuple)) and len(columns) == 2
    if columns is None:
        known = [[i for i, name in enumerate(names) if name.lower() in known] for known in (WORD_NAMES, TAG_NAMES)]
        if not all(known):
            return None
        if [len(indices) for indices in known] != [1, 1]:
            which = f"say which of the columns of {shown}, {short_repr(names)}, are the words and the tags"
            raise bad_argument("columns", which, None)
        numbers = (known[0][0], known[1][0])
    elif is_pair and all(type(one) is int for one in columns):
        return tuple(columns)
    elif is_pair and all(one in names for one in columns):
        numbers = tuple(names.index(one) for one in columns)
    else:
        must = f"{NUMBERS}, or their names in the first line of {shown}, {short_repr(names)}"
        raise bad_argument("columns", must, columns)
    del text[0]
    return numbers


def _counts(texts):
    """Whether lines have three columns or more, and the first numbers the words of a text."""
    for text in texts:
        ids = [fields[0] for _, fields in text if not re.fullmatch(PART_OF_WORD, fields[0])]
        if ids != [str(number) for number in range(1, len(ids) + 1)] or any(len(fields) < 3 for _, fields in text):
            return False
    return True


def _check_first_column(shown, texts):
    """Raises ValueError if the first of three columns numbers the words of a text, or is the same in all its lines."""
    firsts = [[fields[0] for _, fields in text] for text in texts]
    is_wide = all(len(fields) > 2 for text in texts for _, fields in text)
    same = is_wide and max(map(len, firsts)) > 1 and all(len(set(first)) == 1 for first in firsts)
    if same or _counts(texts):
        what = "is the same in all lines" if same else "counts the words"
        line = short_repr(" ".join(texts[0][0][1]))
        must = f"{NUMBERS}, such as (1, -1): the first column of {shown} {what} of a text, as in the line {line}"
        raise bad_argument("columns", must, None)


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
        """Returns the rows of texts, and the words of each row.

        Args:
            texts: list of lists of W words.

        Returns:
            rows: list of int32 (L,).
            owners: for each row the index of its text, and two int arrays: the positions of words' first tokens in the
                row, and the indices of these words in the text.
        """
        words = tf.ragged.constant(texts, tf.string, 1)
        ids, word_of, first = tokens_of_words(self.tokenizer, words, self.blanks)
        splits, before = ids.row_splits.numpy(), words.row_splits.numpy()
        word_of, first = word_of.flat_values.numpy(), first.flat_values.numpy()
        parts, owners = [], []
        for text in range(len(texts)):
            for start, stop in word_limits(word_of, splits[text], splits[text + 1], self.room):
                tokens = np.flatnonzero(first[start:stop])
                parts.append((start, stop))
                owners.append((text, tokens + len(self.tokenizer.start), word_of[start:stop][tokens] - before[text]))
        lengths = [stop - start for start, stop in parts]
        rows = tf.RaggedTensor.from_row_lengths(ids.flat_values, lengths)  # the windows hold all tokens in order
        rows = add_start_and_end(self.tokenizer, rows)
        return np.split(rows.flat_values.numpy(), rows.row_splits.numpy()[1:-1]) if parts else [], owners

    def split(self, texts):
        """Returns the words of texts, and the spans (begin, end) of the words in characters."""
        words, begins, ends = split_into_words(tf.constant(texts, tf.string))
        decoded = [[word.decode() for word in row] for row in words.to_list()]
        spans = []
        for text, *limits in zip(texts, begins.to_list(), ends.to_list()):
            characters = characters_before_bytes(text)
            spans.append([(int(characters[begin]), int(characters[end])) for begin, end in zip(*limits)])
        return decoded, spans


def word_limits(word_of, start, stop, room):
    """Yields the limits of windows of at most `room` tokens, for the tokens from `start` to `stop`.

    `word_of` holds the index of the word of each token.
    """
    while start < stop:
        end = min(start + room, stop)
        if end < stop and word_of[end] == word_of[end - 1]:
            first = start + int(np.searchsorted(word_of[start:end], word_of[end]))
            end = first if first > start else end  # a word of more tokens than a window
        yield start, end
        start = end


def words_of(name, texts):
    """Returns lists of words. Raises ValueError for other values."""
    must = "be a list of lists of strings"
    texts = texts.tolist() if hasattr(texts, "tolist") else texts
    if not isinstance(texts, (list, tuple)):
        raise bad_argument(name, must, texts)
    rows = []
    for index, row in enumerate(texts):
        row = row.tolist() if hasattr(row, "tolist") else row
        if not isinstance(row, (list, tuple)) or not all(isinstance(word, str) for word in row):
            raise bad_argument(name, must, row, index)
        rows.append(list(row))
    return rows
