"""The notebooks of docs/ run from top to bottom, with quick settings; the outputs that they keep are fit for a page."""

import importlib
import json
import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
NAMES = ["classify", "fine_tune", "look_at_attention", "translate"]


def outputs(notebook):
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def printed(notebook):
    return "".join("".join(output["text"]) for output in outputs(notebook) if output["output_type"] == "stream")


def check_outputs(notebook):
    assert {output.get("name", "stdout") for output in outputs(notebook)} == {"stdout"}  # nothing on stderr
    assert not re.search("warning|error", printed(notebook), flags=re.I)
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_all_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept(name):
    """Outputs of one run from top to bottom, without warnings, without paths of a machine, small."""
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert 8 <= len(notebook["cells"]) <= 15
    assert len(text) < 300_000
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    check_outputs(notebook)
    assert not re.search(r"/(tmp|home|root|work|Users|opt)/|site-packages| at 0x[0-9a-f]+", text)
    prose = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert not re.search(r"\]\((?!https?:)", prose)  # mkdocs does not turn a link to a file into one to its page


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    for setting in ("KERAS_TXF_DATA", "KERAS_TXF_CHECKPOINT", "KERAS_BACKEND"):  # of whoever runs the tests
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    monkeypatch.setenv("KERAS_TXF_QUICK", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = importlib.import_module("run_notebooks").execute(FOLDER / f"{name}.ipynb", tmp_path)
    check_outputs(notebook)
    text = printed(notebook)
    # What the small models learn shows that the cells do what they say.
    if name == "classify":
        assert float(re.search(r"^encoder +([\d.]+)", text, flags=re.M)[1]) > 0.9
    if name == "translate":
        assert float(re.search(r"^beam of 4 +BLEU ([\d.]+)", text, flags=re.M)[1]) > 90
        assert text.endswith("True\n")
    if name == "fine_tune":
        assert float(re.search(r"largest difference of a probability: (\S+)", text)[1]) < 1e-5
        assert all(before == after for before, after in re.findall(r"(\S+) positive, with the file +(\S+):", text))
    if name == "look_at_attention":
        assert any("text/html" in output.get("data", {}) for output in outputs(notebook))
