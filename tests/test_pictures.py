"""The script of the pictures in docs/the_model.md draws each of them, and the page shows each."""

import importlib
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.mark.slow
def test_all_pictures_are_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.syspath_prepend(DOCS / "site")
    importlib.import_module("draw_the_model").main(tmp_path / "pictures", steps=20)
    drawn = {path.name for path in (tmp_path / "pictures").iterdir()}
    shown = set(re.findall(r"\(pictures/(\w+\.png)\)", (DOCS / "the_model.md").read_text()))
    assert drawn == shown == {path.name for path in (DOCS / "pictures").iterdir()}
