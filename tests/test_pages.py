"""The code of the pages in docs/ runs as it stands, block after block; pages name what there is."""

import pathlib
import re

import pytest

from keras_txf.layers.option_tables import default_options
from keras_txf.models.option_tables import DecoderOptions, ImageOptions, SequenceEncoderOptions

PAGES = pathlib.Path(__file__).parents[1] / "docs"
RUN = ("parts_of_your_own.md",)  # the code of other pages is in tests of the examples that they quote


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_code_runs(page, tmp_path, monkeypatch, capsys, uncompiled):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), flags=re.S):
        exec(compile(block, page, "exec"), names)
    assert capsys.readouterr().out.splitlines() == ["(1, 7)", "(2, 4)", "(2, 5)", "(2, 6)"]


def test_the_examples_of_the_two_protocols_are_short():
    text = (PAGES / "parts_of_your_own.md").read_text()
    classes = re.findall(r"(@keras\.saving.*?)\n\n\nmodel", text, flags=re.S)
    assert len(classes) == 2 and all(len(code.splitlines()) <= 40 for code in classes)


def test_the_readme_names_every_option_of_the_builders():
    named = set(re.findall(r"`(\w+)", (PAGES.parent / "README.md").read_text()))
    for table in (DecoderOptions, ImageOptions, SequenceEncoderOptions):
        assert not default_options(table).keys() - named


def test_the_files_that_contributing_names_are_there():
    names = set(re.findall(r"`?((?:keras_txf|tests|docs)/[\w/.]+\w)", (PAGES.parent / "CONTRIBUTING.md").read_text()))
    assert len(names) > 15 and not [name for name in names if not (PAGES.parent / name).exists()]
