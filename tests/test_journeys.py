"""The scripts of docs/journeys are short, and the table of their lines counts them."""

import pathlib
import re
import subprocess
import sys

import pytest

JOURNEYS = pathlib.Path(__file__).parents[1] / "docs" / "journeys"
PAGES = sorted(path.stem for path in JOURNEYS.glob("*.md") if path.stem not in ("index", "other_libraries"))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (JOURNEYS / f"{page}.md").read_text(), flags=re.S | re.M)


def lines(code):
    """How many lines of code there are, without blank ones and comments."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


def others():
    """The scripts of KerasHub and of transformers, by page."""
    text = (JOURNEYS / "other_libraries.md").read_text()
    parts = re.findall(r"^## .*?\((\w+)\.md\)\n(.*?)(?=^## |\Z)", text, flags=re.S | re.M)
    return {page: re.findall(r"^```py\n(.*?)^```", part, flags=re.S | re.M) for page, part in parts}


def test_there_are_twelve_scripts_of_less_than_20_lines():
    assert len(PAGES) == 12
    assert all(lines(blocks(page, "python")[0]) < 20 for page in PAGES)


def test_the_table_counts_the_lines():
    table = re.findall(
        r"^\| \[.*?\]\((\w+)\.md\).*? \| (\d+) \| (\d+) \| (\d+) \|", (JOURNEYS / "index.md").read_text(), flags=re.M
    )
    counted = {page: [lines(blocks(page, "python")[0]), *map(lines, others()[page])] for page in PAGES}
    assert {page: [*map(int, counts)] for page, *counts in table} == counted


@pytest.mark.parametrize("page", PAGES)
def test_all_scripts_have_one_format(page):
    """Lines are counted in the format of ruff, of 120 characters."""
    for code in [blocks(page, "python")[0], *others()[page]]:
        command = [sys.executable, "-m", "ruff", "format", "--line-length", "120", "-"]
        assert subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout == code
