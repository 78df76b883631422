"""The example of instruction tuning, from start to end, on its own data and on a file."""

import json
import re

import pytest
import script_cases
import tune_instructions

import keras_txf as txf

SMALL = ["--epochs", "1", "--dim", "8", "--layers", "1", "--answers", "4", "--length", "4"]


def test_instructions_have_one_answer_and_come_once():
    conversations = tune_instructions.make(300, seed=1)
    assert conversations == tune_instructions.make(300, seed=1) != tune_instructions.make(300, seed=2)
    answers = {question["content"]: answer["content"] for question, answer in conversations}
    assert len(answers) == 300
    for prompt, answer in answers.items():
        if match := re.fullmatch(r"Write (\d+)-0?(\d+)-0?(\d+) in (German|Polish|English)\.", prompt):
            assert match.group(1) in answer and re.search(rf"\b{match.group(3)}\b", answer)


@pytest.mark.parametrize("line, words", [
    ('{"prompt": "a"}', "line 2 of"), ("[", "line 2 of"),
    ('{"messages": [{"role": "user", "content": "a"}]}', "must end"),
    ('{"prompt": "a", "response": "b"}', "must have 20 conversations or more; it has 2"),
])  # fmt: skip
def test_a_file_of_another_form_is_refused(line, words, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "response": "b"}\n' + line)
    with pytest.raises(SystemExit, match=words):
        tune_instructions.read(tmp_path / "a.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "messages", "pairs"])
def test_it_trains_and_counts(kind, tmp_path):
    rows = [{"prompt": f"{i}", "response": f"{i}!"} for i in range(40)]
    if kind == "messages":
        rows = [{"messages": tune_instructions.conversation(**row)} for row in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ["--count", "80"] if kind == "own" else [tmp_path / "a.jsonl"]
    printed = script_cases.output("tune_instructions", *data, *SMALL, "--out", tmp_path / "out")
    assert re.search(r"cross-entropy of an answer's token [\d.]+ before and [\d.]+ after, \d of 4 held-out", printed)
    assert isinstance(txf.tasks.TextGenerator.load(tmp_path / "out" / "generator").chat("1", 2), str)
