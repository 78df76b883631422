"""Exact match and F1 of answers, by the definition of SQuAD."""

import random
import string

import pytest

from keras_txf.training import answer_scores


def slow_words(text):
    """Lower case, no punctuation, no articles, and no blanks: letter by letter, word by word."""
    letters = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return [word for word in letters.split() if word not in ("a", "an", "the")]


def slow_f1(true, found):
    if not true or not found:
        return float(true == found)
    rest, common = list(true), 0
    for word in found:
        if word in rest:
            rest.remove(word)
            common += 1
    precision, recall = common / len(found), common / len(true)
    return 2 * precision * recall / (precision + recall) if common else 0.0


def test_scores_are_those_of_a_slow_reading():
    random.seed(2)
    pool = ["The", "the", "a", "An", "Rhine", "rhine.", "1,871", "1871", "U.S.", "us", "—", "river", "(river)", ""]
    for _ in range(200):
        true = [
            [" ".join(random.choices(pool, k=random.randint(0, 3))) for _ in range(random.randint(0, 3))]
            for _ in range(4)
        ]
        found = [" ".join(random.choices(pool, k=random.randint(0, 3))) for _ in range(4)]
        exact, f1 = 0.0, 0.0
        for answers, one in zip(true, found):
            answers = [answer for answer in answers if slow_words(answer)] or [""]
            exact += max(slow_words(answer) == slow_words(one) for answer in answers) / 4
            f1 += max(slow_f1(slow_words(answer), slow_words(one)) for answer in answers) / 4
        assert answer_scores(true, found) == pytest.approx({"exact_match": exact, "f1": f1})


@pytest.mark.parametrize("true, found, name", [
    ("Bonn", ["Bonn"], "true_answers"), ([3], ["Bonn"], "true_answers"), (["Bonn"], "Bonn", "predicted_answers"),
    (["Bonn"], [], "predicted_answers"), ([[None]], ["Bonn"], "true_answers"),
])  # fmt: skip
def test_other_values_raise_value_errors(true, found, name):
    with pytest.raises(ValueError, match=f"`{name}` must"):
        answer_scores(true, found)
