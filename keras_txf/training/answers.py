"""Answers of extractive question answering: exact match and F1, as SQuAD's script computes them."""

import collections
import re
import string
from collections.abc import Sequence
from typing import Any

from keras_txf import checks
from keras_txf.checks import short_repr

PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_scores(true_answers: Sequence[Any], predicted_answers: Sequence[str]) -> dict[str, float]:
    """Returns exact match and F1 of answers to questions, as the script of SQuAD 2.0 computes them.

    Both compare words: without case, punctuation and the articles "a", "an" and "the". An answer is an exact match
    where all words are those of a true answer. F1 is that of the words that both have. Of several true answers the best
    one counts, then the mean over the questions.

    Args:
        true_answers: list of N items: the true answer of a question, or a list of its true answers. "" or an empty list
            says that the question has no answer.
        predicted_answers: list of N answers; "" says that the question has no answer.

    Returns:
        A dict of `exact_match` and `f1`, from 0 to 1, where SQuAD's script shows percent; 0 without questions.

    Raises:
        ValueError: lists of other lengths or of other values.

    Reference:
        [SQuAD](https://arxiv.org/abs/1606.05250), section 6.1; [SQuAD 2.0](https://arxiv.org/abs/1806.03822).

    Example:

    >>> txf.training.answer_scores([["the river Rhine", "Rhine"], "1871"], ["The Rhine.", "in 1871"])
    {'exact_match': 0.5, 'f1': 0.8333333333333333}
    """
    predicted = checks.strings("predicted_answers", predicted_answers)
    if not isinstance(true_answers, (list, tuple)):
        raise ValueError(f"`true_answers` must be a list of answers; received {short_repr(true_answers)}.")
    true = [checks.strings("true_answers", [one] if isinstance(one, str) else one) for one in true_answers]
    if len(true) != len(predicted):
        raise ValueError(
            f"`predicted_answers` must be as many as `true_answers`, {len(true)}; received {len(predicted)}."
        )
    exact, shared = 0.0, 0.0
    for answers, found in zip(true, predicted):
        wanted = [words for words in map(answer_words, answers) if words] or [[]]
        words = answer_words(found)
        exact += words in wanted
        shared += max(_f1(one, words) for one in wanted)
    count = max(len(true), 1)
    return {"exact_match": exact / count, "f1": shared / count}


def answer_words(text):
    """The words of an answer that count."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split()


def _f1(true, found):
    if not true or not found:
        return float(true == found)
    common = sum((collections.Counter(true) & collections.Counter(found)).values())
    return 2 * common / (len(true) + len(found))
