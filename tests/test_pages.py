"""The code of README and docs/ runs as it stands, block after block; pages name what there is."""

import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import page_files
import pytest

from keras_txf.layers.shown_options import default_options
from keras_txf.models.option_tables import DecoderOptions, ImageOptions, SequenceEncoderOptions

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("examples/*/README.md")), *sorted(DOCS.rglob("*.md"))]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    page_files.write_files(folder)
    return folder


def with_code():
    """Every page with code. The two that users read first always run."""
    for page in PAGES:
        if "```python" in page.read_text():
            name = str(page.relative_to(ROOT))
            always = [pytest.mark.drawn(1)] if name in ("README.md", "docs/tutorials/getting_started.md") else []
            yield pytest.param(page, id=name, marks=always)


@pytest.mark.slow
@pytest.mark.parametrize("page", [*with_code()])
def test_the_code_runs(page, files, tmp_path):
    """In a process of its own: TensorFlow keeps the memory of all that it has compiled."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, page_files.__file__, page], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_name_scripts_and_options_that_are_there(page):
    """Of each `python examples/x.py --option` in a block or in backticks."""
    for script, options in re.findall(r"((?:examples(?:/\w+)?|benchmarks)/\w+\.py)([^`\n]*)", page.read_text()):
        assert (ROOT / script).is_file(), script
        source = "".join(path.read_text() for path in (ROOT / script).parent.glob("*.py"))
        assert not [option for option in re.findall(r"--[\w-]+", options) if f'"{option}"' not in source], script


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(((?!https?:|#)[^)#\s]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_the_examples_of_the_three_protocols_are_short():
    text = (DOCS / "how_to" / "parts_of_your_own.md").read_text()
    classes = re.findall(r"(@keras\.saving.*?)(?=\n\n\n[im]|\n```)", text, flags=re.S)
    assert len(classes) == 7 and all(len(code.splitlines()) <= 40 for code in classes)


def test_the_page_of_options_is_that_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "site")
    write_options = importlib.import_module("write_options")
    text = (DOCS / "reference" / "options.md").read_text()
    assert text == write_options.page(text), "run `python docs/site/write_options.py`"
    named = set(re.findall(r"`(\w+)", text))
    for table in (DecoderOptions, ImageOptions, SequenceEncoderOptions):
        assert not default_options(table).keys() - named


@pytest.mark.parametrize("page", sorted((DOCS / "reference").glob("*.md")), ids=lambda page: page.stem)
def test_the_groups_of_a_reference_page_hold_each_public_name_once(page):
    listed = re.findall(r"^::: keras_txf\.(\w+)\.(\w+)$", page.read_text(), flags=re.M)
    if page.stem == "options":
        assert not listed
        return
    names = [name for module, name in listed if module == page.stem]
    assert len(names) == len(listed)
    assert sorted(names) == sorted(importlib.import_module(f"keras_txf.{page.stem}").__all__)


def test_the_files_that_contributing_names_are_there():
    names = set(re.findall(r"`?((?:keras_txf|tests|docs)/[\w/.]+\w)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert len(names) > 15 and not [name for name in names if not (ROOT / name).exists()]


@pytest.mark.slow
def test_all_pictures_are_drawn_and_shown(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.syspath_prepend(DOCS / "site")
    importlib.import_module("draw_the_model").main(tmp_path / "pictures", steps=20)
    drawn = {path.name for path in (tmp_path / "pictures").iterdir()}
    shown = set(re.findall(r"\(../pictures/(\w+\.png)\)", (DOCS / "tutorials" / "the_model.md").read_text()))
    assert drawn == shown == {path.name for path in (DOCS / "pictures").iterdir()}


def test_the_bars_of_the_gallery_are_numbers_of_its_page(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.syspath_prepend(DOCS / "site")
    draw_gallery = importlib.import_module("draw_gallery")
    text = (DOCS / "gallery.md").read_text()
    measured = set(re.findall(r"\d+\.\d+", re.sub(r"!\[.*\]", "", text)))  # without the words for pictures
    for _, rows in draw_gallery.BARS.values():
        assert {number for numbers in rows.values() for number in numbers} <= measured
    monkeypatch.setattr(draw_gallery, "FOLDER", tmp_path)
    draw_gallery.main(tmp_path / "no_runs")
    assert {path.stem for path in tmp_path.iterdir()} == draw_gallery.BARS.keys()
    shown = set(re.findall(r"\(gallery/(\w+\.png)\)", text))
    assert shown == {path.name for path in (DOCS / "gallery").iterdir()}
    assert {path.stem for path in tmp_path.iterdir()} == {path.removesuffix(".png") for path in shown} - {
        "digits",
        "dates",
        "scenes",
    }
