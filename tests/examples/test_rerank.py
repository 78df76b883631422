"""The example of a reranker, from start to end, on a checkpoint of a few thousand weights."""

import re

import pytest
import rerank
import script_cases


def test_lines_are_found_by_their_words():
    lines = ["a cat sits", "the man eats", "a cat sits", "a cat", "the man plays the flute"]
    assert rerank.by_words("a cat sits", lines, 2) == ["a cat", "the man eats"]
    assert rerank.by_words("who plays the flute", lines, 1) == ["the man plays the flute"]
    assert rerank.by_words("a cat", ["a cat"], 3) == ["a cat"]


@pytest.mark.slow
def test_it_trains_and_orders(tmp_path):
    bert = script_cases.write_bert(tmp_path / "bert", "a the man eats food plays flute cat sits on mat film".split())
    script_cases.write_similarities(tmp_path)
    common = ("--out", tmp_path / "out", "--count", 3)
    out = script_cases.output("rerank", "--checkpoint", bert, "--data", tmp_path, "--quick", "--batch", 2, *common)
    assert re.search(r"^Spearman -?\d+\.\d\d, Pearson -?\d+\.\d\d on 4 pairs of STS-B dev$", out, re.M)
    script_cases.assert_kept(tmp_path / "out", out, log=1)
    (tmp_path / "lines.txt").write_text("a man plays\n\na cat sits on the mat\nthe film\na cat\n")
    again = script_cases.output("rerank", tmp_path / "lines.txt", "a cat sits", *common)
    query, header, *ranked = again.splitlines()
    assert query == "a cat sits" and {line.split()[1] for line in ranked} < {"1", "2", "3", "4"}
    assert len(ranked) == 3
    scores = [float(line.split()[0]) for line in ranked]
    assert scores == sorted(scores, reverse=True)
