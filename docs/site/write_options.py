"""Writes the tables of docs/options.md from the tables of options in the package: `python docs/site/write_options.py`."""

import pathlib
import re

from keras_txf.layers import option_tables as layers
from keras_txf.models import option_tables as models

PAGE = pathlib.Path(__file__).parents[1] / "options.md"
SECTIONS = {  # heading on the page -> tables whose options are listed, and those whose options are not
    "Attention": ([layers.HeadOptions, layers.PlaceOptions, layers.CausalOptions], []),
    "Blocks": ([layers.BlockOptions], [layers.HeadOptions, layers.PlaceOptions]),
    "The whole model": ([models.StackOptions], []),
    "Tokens and positions": ([models.EmbeddingOptions], [models.StackOptions]),
    "Float vectors": ([models.SequenceEncoderOptions], [models.EncoderOptions]),
    "Images": ([models.ImageOptions], [layers.BlockOptions, layers.CausalOptions, models.StackOptions]),
}


def table(listed, left_out):
    """The Markdown table of the options of some tables without those of others, unless their defaults differ."""
    rows = {name: row for one in listed for name, row in layers._fields(one).items()}
    known = {name: default for one in left_out for name, default in layers.default_options(one).items()}
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for name, (_, default, meaning) in rows.items():
        if name not in known or known[name] != default:
            shown = f'"{default}"' if isinstance(default, str) else default
            lines.append(f"| `{name}` | `{shown}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def page(text):
    """The text of the page with the tables of today."""
    for heading, tables in SECTIONS.items():
        text, count = re.subn(
            rf"(## {heading}\n.*?)\n\| option .*?(?=\n\n)",
            lambda match: f"{match[1]}\n{table(*tables)}",
            text,
            flags=re.S,  # noqa: B023
        )
        assert count == 1, heading
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
