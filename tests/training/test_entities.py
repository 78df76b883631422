"""Entities of tags, against nervaluate for well-formed tags, otherwise against the definition of the CoNLL script."""

import random

import pytest
from nervaluate.evaluator import Evaluator

from keras_txf.training import entities, entity_scores

KINDS = ["PER", "LOC", "a-b"]


def draw(words):
    """Well-formed tags in IOB2 of about so many words."""
    tags = []
    while len(tags) < words:
        kind = random.choice([None, *KINDS])
        tags += ["O"] if kind is None else [f"B-{kind}", *[f"I-{kind}"] * random.randint(0, 2)]
    return tags


def test_scores_are_those_of_nervaluate():
    random.seed(3)
    true = [draw(random.randint(1, 9)) for _ in range(60)]
    predicted = [random.choice([tags, draw(len(tags))])[: len(tags)] for tags in true]
    results = Evaluator(true, predicted, tags=KINDS, loader="list").evaluate()
    result, names = results["overall"]["strict"], ("precision", "recall", "f1")
    found = entity_scores(true, predicted)
    assert 0.3 < found["f1"] < 0.9
    assert found == pytest.approx({name: getattr(result, name) for name in names})
    by_type = entity_scores(true, predicted, by_type=True)
    assert list(by_type) == sorted(KINDS)
    for kind, scores in by_type.items():
        of_kind = results["entities"][kind]["strict"]
        expected = {name: getattr(of_kind, name) for name in names}
        assert scores == pytest.approx({**expected, "support": of_kind.possible})


@pytest.mark.parametrize("tags, expected", [
    ("I-a I-a O I-b I-a", [("a", 0, 2), ("b", 3, 4), ("a", 4, 5)]),  # IOB1: no B without a neighbour of its kind
    ("I-a B-a I-a", [("a", 0, 1), ("a", 1, 3)]),
    ("B-a I-b O", [("a", 0, 1), ("b", 1, 2)]),
    ("B-a E-a S-a S-b I-b", [("a", 0, 2), ("a", 2, 3), ("b", 3, 4), ("b", 4, 5)]),
    ("B-a-b I-a-b", [("a-b", 0, 2)]),
    ("O O", []),
    ("", []),
])  # fmt: skip
def test_entities_of_other_tags(tags, expected):
    assert entities(tags.split()) == expected


def test_nothing_to_find():
    assert entity_scores([["O"], []], [["O"], []]) == {"precision": 0, "recall": 0, "f1": 0}


@pytest.mark.parametrize("tag", ["PER", "B", "B-", "X-PER", "O-PER", ""])
def test_other_tags_raise_value_errors(tag):
    with pytest.raises(ValueError, match="`tags` must be 'O' or like 'B-PER'"):
        entities([tag])


def test_other_lengths_raise_value_errors():
    with pytest.raises(ValueError, match="`predicted_tags` must have the lengths of `true_tags`"):
        entity_scores([["O", "O"]], [["O"]])
