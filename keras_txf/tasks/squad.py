"""Questions, contexts and answers: files in SQuAD's format, and answers in the forms that data sets have."""

import os
import pathlib

from keras_txf.checks import short_repr
from keras_txf.reading import read_json

SUFFIX = ".json"


def is_squad(data):
    """Whether data is the path of a file in SQuAD's format."""
    return isinstance(data, (str, os.PathLike)) and pathlib.Path(data).suffix.lower() == SUFFIX


def read_squad(path):
    """Returns the questions, the contexts and the answers of a file of SQuAD 1.1 or 2.0.

    The answers of a question are a dict of `text` and `answer_start`, two lists. They are empty where the file says
    that the question has no answer: "plausible answers" are none.

    Args:
        path: of a JSON file: {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers"}]}]}]}.

    Raises:
        ValueError: no such file, or one of another form.
    """
    content = read_json(path, "questions")
    try:
        found = [
            (item["question"], paragraph["context"], _columns(item["answers"]))
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for item in paragraph["qas"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{short_repr(str(path))} must be in SQuAD's format, data > paragraphs > context, qas > question, "
            f"answers > text, answer_start; received another form: {type(error).__name__} {error}."
        ) from None
    if not found:
        raise ValueError(f"`questions` must hold a question at least; received none in {short_repr(str(path))}.")
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
        raise ValueError(
            "`answers` must hold a string, a list of strings, or a dict of lists `text` and `answer_start`; received "
            f"{short_repr(value)} at place {place}."
        )
    for text, start in zip(texts, starts):
        if not text.strip() or start < 0 or context[start : start + len(text)] != text:
            where = "" if start < 0 else f" from character {start} on"
            raise ValueError(
                f"`answers` must be parts of their contexts, with a character that is no blank; received "
                f"{short_repr(text)} at place {place}, which the context does not have{where}."
            )
    return list(zip(texts, starts))
