"""The example of named entities, from start to end, on a small corpus."""

import json
import re

import pytest
import script_cases

LINES = ["Cancer B-Disease", "is O", "bad O", "", "We O", "saw O", "colon B-Disease", "cancer I-Disease", ". O", ""]


@pytest.mark.slow
def test_it_trains_and_finds(tmp_path):
    for name in ("train.tsv", "devel.tsv", "test.tsv"):
        (tmp_path / name).write_text("\n".join(line.replace(" ", "\t") for line in LINES * 12))
    out = tmp_path / "out"
    printed = script_cases.output(
        "tag_entities", "--data", tmp_path, "--out", out, "--epochs", 8, "--batch", 4, "--rate", 0.01
    )
    assert float(re.search(r"Test F1 ([\d.]+) of entities", printed).group(1)) > 0.9
    assert json.loads((out / "scores.json").read_text())["f1"] > 0.9
    script_cases.assert_kept(out, printed)
    again = script_cases.output("tag_entities", "We saw colon cancer.", "--out", out)
    assert re.fullmatch(r" +7-19 +Disease +\d+\.\d% +colon cancer\n", again)
