"""The example of named entities, from start to end, on a small corpus."""

import json
import re

import pytest
import script_cases

LINES = ["Cancer B-Disease", "is O", "bad O", "", "We O", "saw O", "colon B-Disease", "cancer I-Disease", ". O", ""]


@pytest.fixture
def corpus(tmp_path):
    for name in ("train.tsv", "devel.tsv", "test.tsv"):
        (tmp_path / name).write_text("\n".join(line.replace(" ", "\t") for line in LINES * 12))
    return tmp_path


@pytest.mark.slow
def test_it_trains_and_finds(corpus):
    done = script_cases.run(
        "tag_entities", "--data", corpus, "--out", corpus / "out", "--epochs", 8, "--batch", 4, "--rate", 0.01
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"Test F1 ([\d.]+) of entities", done.stdout).group(1)) > 0.9
    assert json.loads((corpus / "out" / "scores.json").read_text())["f1"] > 0.9
    script_cases.assert_kept(corpus / "out", done.stdout)
    again = script_cases.run("tag_entities", "We saw colon cancer.", "--out", corpus / "out")
    assert re.fullmatch(r" +7-19 +Disease +\d+\.\d% +colon cancer\n", again.stdout)


def test_a_model_that_is_not_there_is_named(tmp_path):
    done = script_cases.run("tag_entities", "a text", "--out", tmp_path)
    assert done.returncode == 1 and "train a model first" in done.stderr


def test_options_of_training_are_refused_beside_a_text(tmp_path):
    done = script_cases.run("tag_entities", "a text", "--epochs", "2", "--out", tmp_path)
    assert done.returncode == 2 and "--epochs" in done.stderr
