"""Files of shared tasks: tagged words (CoNLL), and questions with answers (SQuAD).

CoNLL: a word and its tag in a line, a blank line between texts.
SQuAD: {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers"}]}]}]}.
"""

import os
import pathlib
import re

from keras_txf.checks import short_repr
from keras_txf.reading import read_json, reading
from keras_txf.tasks.errors import bad_argument

CONLL = (".conll", ".conllu", ".iob", ".bio", ".txt", ".tsv")
SQUAD = (".json",)
# The names of columns in a first line, as files in use have them.
WORD_NAMES = ("word", "words", "token", "tokens", "form")
TAG_NAMES = ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "pos_tags", "upos")
FORM, UPOS, FIELDS = 1, 3, 10  # of CoNLL-U
PART_OF_WORD = r"\d+[-.]\d+"  # the ID of CoNLL-U for a range of words that is one token, or for a word left unsaid
NUMBERS = "be the numbers of the columns of the words and the tags, from 0 on"


def is_file(data, suffixes):
    """Whether `data` is the path of a file that ends in one of `suffixes`."""
    return isinstance(data, (str, os.PathLike)) and pathlib.Path(data).suffix.lower() in suffixes


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
        ValueError: no such file, a line without the columns, a file without words; a first column that does not hold
            words, if `columns` is None.
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
    # A comment of several columns, as GermEval's files have it before the word that is number 1, is left out.
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


def _by_name(shown, text, columns):
    """The numbers of the columns, if the first line has names; then removes it from its text."""
    names = text[0][1]
    is_pair = isinstance(columns, (list, tuple)) and len(columns) == 2
    if columns is None:
        known = [[i for i, name in enumerate(names) if name.lower() in known] for known in (WORD_NAMES, TAG_NAMES)]
        if not all(known):
            return None
        if [len(places) for places in known] != [1, 1]:
            which = f"say which of the columns of {shown}, {short_repr(names)}, are the words and the tags"
            raise bad_argument("columns", which, None)
        found = (known[0][0], known[1][0])
    elif is_pair and all(type(one) is int for one in columns):
        return tuple(columns)
    elif is_pair and all(one in names for one in columns):
        found = tuple(names.index(one) for one in columns)
    else:
        must = f"{NUMBERS}, or their names in the first line of {shown}, {short_repr(names)}"
        raise bad_argument("columns", must, columns)
    del text[0]
    return found


def _counts(texts):
    """Whether the first of three columns or more is the number of the word in its text."""
    for text in texts:
        ids = [fields[0] for _, fields in text if not re.fullmatch(PART_OF_WORD, fields[0])]
        if ids != [str(number) for number in range(1, len(ids) + 1)] or any(len(fields) < 3 for _, fields in text):
            return False
    return True


def _check_first_column(shown, texts):
    """Raises ValueError if the first of three columns counts the words of a text, or is the same in all its lines."""
    firsts = [[fields[0] for _, fields in text] for text in texts]
    is_wide = all(len(fields) > 2 for text in texts for _, fields in text)
    same = is_wide and max(map(len, firsts)) > 1 and all(len(set(first)) == 1 for first in firsts)
    if same or _counts(texts):
        kind = "is the same in all lines" if same else "counts the words"
        line = short_repr(" ".join(texts[0][0][1]))
        must = f"{NUMBERS}, such as (1, -1): the first column of {shown} {kind} of a text, as in the line {line}"
        raise bad_argument("columns", must, None)


def read_squad(path):
    """Returns the questions, the contexts and the answers of a file of SQuAD 1.1 or 2.0.

    The answers of a question are a dict of `text` and `answer_start`, two lists. They are empty where the file says
    that the question has no answer: "plausible answers" do not count.

    Raises:
        ValueError: no such file, or one of another form.
    """
    content, shown = read_json(path, "questions"), short_repr(str(path))
    try:
        found = [
            (item["question"], paragraph["context"], _columns(item["answers"]))
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for item in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{shown} must be in SQuAD's format, data > paragraphs > context, qas > question, answers > text, "
            f"answer_start; received another form: {type(error).__name__} {error}."
        ) from None
    if not found:
        raise ValueError(f"`questions` must hold a question at least; received none in {shown}.")
    return [list(column) for column in zip(*found)]


def _columns(answers):
    return {"text": [one["text"] for one in answers], "answer_start": [one["answer_start"] for one in answers]}


def answers_of(values, contexts):
    """Returns for each question the list of its answers, (text, place in the context in characters).

    Args:
        values: for each question a text, "" for no answer; a list of texts; or a dict of lists `text` and
            `answer_start`. A text alone stands where the context has it first.
        contexts: list of the texts that hold the answers.

    Raises:
        ValueError: another value, or an answer that is not in the context.
    """
    return [_answers(value, context, place) for place, (value, context) in enumerate(zip(values, contexts))]


def _answers(value, context, place):
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
    else:
        texts, starts = ([value] if value else []) if isinstance(value, str) else value, None
    texts, starts = (one.tolist() if hasattr(one, "tolist") else one for one in (texts, starts))
    are_texts = isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)
    if starts is None and are_texts and not isinstance(value, dict):
        starts = [context.find(text) for text in texts]
    are_starts = isinstance(starts, (list, tuple)) and all(type(start) is int for start in starts)
    if not are_texts or not are_starts or len(texts) != len(starts):
        must = "hold a string, a list of strings, or a dict of lists `text` and `answer_start`"
        raise bad_argument("answers", must, value, place)
    for text, start in zip(texts, starts):
        if not text.strip() or start < 0 or context[start : start + len(text)] != text:
            where = "" if start < 0 else f" from character {start} on"
            raise ValueError(
                "`answers` must be parts of their contexts, with a character that is not a blank; received "
                f"{short_repr(text)} at place {place}, which the context does not have{where}."
            )
    return list(zip(texts, starts))
