"""examples/look_at_attention.py: what it prints of weights made by hand, then all on a checkpoint of random ones."""

import json
import re

import look_at_attention
import numpy as np
import pytest
from script_cases import SPECIAL, output, run, write_bert

import keras_txf as txf

WORDS = "the animal didn ' t cross street because it was too tired wide . a cat sat".split()
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """The weights of a new model attend to all tokens nearly alike: these are larger."""
    return write_bert(tmp_path_factory.mktemp("bert"), WORDS, layers=2, dim=12, heads=3, length=18, spread=0.5)


def weights_of_it(folder, sentence):
    """From the model itself, dict of "layer head number" -> weights of "it" (T,), and the tokens."""
    tokens = ["[CLS]", *re.findall(r"\w+|[^\w\s]", sentence.lower()), "[SEP]"]
    ids = np.array([[(SPECIAL + WORDS).index(token) for token in tokens]])
    scores = txf.visualize.attention_scores(txf.checkpoints.load(folder, "encoder"), ids)
    row = tokens.index("it")
    rows = {f"{layer} head {head}": weights[0, head, row] for layer, weights in scores.items() for head in range(3)}
    return rows, tokens


def shown(path):
    """What the page at `path` shows."""
    return json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S)[1])


@pytest.mark.slow
def test_both_sentences_side_by_side(bert, tmp_path):
    printed = output("look_at_attention", "--checkpoint", bert, "--out", tmp_path / "out")
    sentences = [look_at_attention.SENTENCE.format(ending) for ending in ("tired", "wide")]
    (tired, tokens), (wide, _) = (weights_of_it(bert, sentence) for sentence in sentences)
    tables = dict(re.findall(r'^weight of "it" on "(\w+)" .*\n((?: .*\n)+)', printed, re.M))
    assert list(tables) == ["animal", "street"]
    for noun, table in tables.items():
        i = tokens.index(noun)
        *rows, (_, *mean) = re.findall(r"^  (.+?) +([\d.]+) +([\d.]+) +([-+][\d.]+)$", table, re.M)
        first = sorted(tired, key=lambda name: -max(tired[name][i], wide[name][i]))[: look_at_attention.ROWS]
        assert [name for name, *_ in rows] == first
        for name, *numbers in rows:
            expected = tired[name][i], wide[name][i], wide[name][i] - tired[name][i]
            np.testing.assert_allclose(np.array(numbers, float), expected, atol=6e-4)
        means = [np.mean([weights[i] for weights in sentence.values()]) for sentence in (tired, wide)]
        np.testing.assert_allclose(np.array(mean[:2], float), means, atol=6e-4)
    for name in ("tired", "wide"):
        page = shown(tmp_path / "out" / f"{name}.html")
        assert page["tokens"] == [*tokens[:-3], name, ".", "[SEP]"]
        assert [layer["heads"] for kind in page["kinds"] for layer in kind["layers"]] == [3, 3]
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_a_sentence_of_ones_own(bert, tmp_path):
    out = output("look_at_attention", "--checkpoint", bert, "--out", tmp_path, "A cat sat because it was tired.")
    weights, tokens = weights_of_it(bert, "A cat sat because it was tired.")
    flat = [(weight, name, token) for name, row in weights.items() for weight, token in zip(row, tokens)]
    others = [row for row in flat if row[2] not in ("[CLS]", "[SEP]", "it")]
    first = sorted(others, reverse=True)[: 2 * look_at_attention.ROWS]
    printed = re.findall(r"^  (.+?) +(\d\.\d{3})  (\S+)$", out, re.M)
    assert [(name, token) for name, _, token in printed] == [(name, token) for _, name, token in first]
    np.testing.assert_allclose([float(weight) for _, weight, _ in printed], [weight for weight, *_ in first], atol=6e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentence.html", "sentence.png"]
    assert shown(tmp_path / "sentence.html")["tokens"] == tokens


@pytest.mark.slow
@pytest.mark.parametrize("arguments, reason", [
    (["A cat sat."], 'error: "it" is not one of the tokens [CLS] a cat sat . [SEP].'),
    (["A cat sat.", "--word", "dog"], 'error: "dog" is not one of the tokens [CLS] a cat sat . [SEP].'),
    (["it"], 'error: the sentence has no other token than "it".'),
])  # fmt: skip
def test_a_sentence_without_the_word_is_refused(arguments, reason, bert, tmp_path):
    done = run("look_at_attention", "--checkpoint", bert, "--out", tmp_path, *arguments)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == reason
    assert not list(tmp_path.iterdir())


def test_heads_that_change_sides_are_counted(capsys):
    tokens = ["it", "animal", "street"]
    # The first head changes sides as a reader does, the second the other way, the third stays, the last is even.
    tired = np.array([[0.1, 0.5, 0.4], [0.3, 0.1, 0.6], [0.0, 0.9, 0.1], [0.4, 0.3, 0.3]])
    wide = np.array([[0.3, 0.2, 0.5], [0.3, 0.4, 0.3], [0.2, 0.7, 0.1], [0.2, 0.4, 0.4]])
    heads = [("encoder_0/attention", head) for head in range(4)]
    highest = look_at_attention.compare([(tokens, tired), (tokens, wide)], heads, "it")
    np.testing.assert_array_equal(highest, [0.5, 0.6, 0.9, 0.4])
    *_, changes, conclusion = capsys.readouterr().out.split("\n\n")
    names = re.findall(r"head (\d) +(-?\d\.\d{3}) +(-?\d\.\d{3}) +([-+]\d\.\d{3})$", changes, re.M)
    first = [("1", "-0.500", "0.100", "+0.600"), ("0", "0.100", "-0.300", "-0.400"), ("2", "0.800", "0.600", "-0.200")]
    assert names[:3] == first
    assert conclusion.startswith("1 of 4 heads attend more") and conclusion.endswith("; 1 do the opposite.\n")


def test_a_word_is_found_whatever_marks_the_space_before_it():
    assert look_at_attention.position(["<s>", "The", "Ġcat", "Ġit"], "IT") == 3
    assert look_at_attention.position(["▁It", "▁sat"], "it") == 0
    with pytest.raises(SystemExit, match='^error: "it" is not one of the tokens vis ##it.$'):
        look_at_attention.position(["vis", "##it"], "it")
