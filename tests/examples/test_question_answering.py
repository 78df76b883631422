"""The example of extractive question answering, from start to end, on a small file."""

import json
import re

import pytest
import question_answering
import script_cases

NAMES = ["Ada", "Bo", "Cem", "Dee", "Eve", "Fay"]


def write(path, articles=12, impossible=False):
    """Each article says of two names who sings and who runs."""
    found = []
    for number in range(articles):
        one, other = NAMES[number % 6], NAMES[(number + 1 + number // 6) % 6]
        context = f"{one} sings here, and {other} runs there."
        asked = [("Who sings?", one), ("Who runs?", other), *[("Who sleeps?", None)] * impossible]
        items = [
            {"question": text, "answers": [{"text": name, "answer_start": context.index(name)}] if name else []}
            for text, name in asked
        ]
        found.append({"title": str(number), "paragraphs": [{"context": context, "qas": items}]})
    path.write_text(json.dumps({"version": "1.1", "data": found}))
    return path


def test_articles_are_split_and_sentences_are_found(tmp_path):
    path = write(tmp_path / "data.json")
    options = question_answering.argparse.Namespace(data=path, test=None)
    training, held = question_answering.split(options)
    assert len(training[0]) == 20 and len(held[0]) == 4 and not {*training[1]} & {*held[1]}
    assert held[2][0] == {"text": ["Fay"], "answer_start": [0]}
    options.test = write(tmp_path / "test.json", 3)
    assert [len(part[0]) for part in question_answering.split(options)] == [24, 6]
    context = "The river flows. Where is the old bridge? The bridge spans the river."
    assert question_answering.nearest_sentences(["what spans the river"], [context]) == ["The bridge spans the river."]


@pytest.mark.slow
@pytest.mark.parametrize("impossible", [False, True])
def test_it_trains_and_answers(impossible, tmp_path):
    path, out = write(tmp_path / "data.json", 24, impossible), tmp_path / "out"
    printed = script_cases.output(
        "question_answering", "--data", path, "--test", path, "--out", out, "--epochs", 20, "--batch", 8, "--rate",
        0.005, "--layers", 1, "--dim", 32,
    )  # fmt: skip
    exact, f1 = map(float, re.search(r"Exact match ([\d.]+), F1 ([\d.]+) on", printed).groups())
    assert 0.8 < exact <= f1 == round(json.loads((out / "scores.json").read_text())["f1"], 4)
    script_cases.assert_kept(out, printed, log=20)
    (tmp_path / "text.txt").write_text("Bo sings here, and Eve runs there.")
    again = script_cases.output("question_answering", "Who sings?", tmp_path / "text.txt", "--out", out)
    assert re.match(r"Who sings\?\n +0-2 +\d+\.\d%  Bo\n", again), again
