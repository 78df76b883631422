"""Writes the tables of docs/reference/options.md from those of the package: `python docs/site/write_options.py`."""

import pathlib
import re

from keras_txf.layers import option_tables as layers
from keras_txf.layers import shown_options
from keras_txf.models import option_tables as models

PAGE = pathlib.Path(__file__).parents[1] / "reference" / "options.md"
SECTIONS = {  # heading on the page -> tables whose options are listed, and those whose options are not
    "Attention": ([layers.HeadOptions, layers.PositionOptions, layers.CausalOptions], []),
    "Attention as a part": ([layers.AttentionOptions], [layers.HeadOptions]),
    "Blocks": ([layers.BlockOptions], [layers.HeadOptions, layers.PositionOptions]),
    "The whole model": ([models.StackOptions], []),
    "Tokens and positions": (
        [models.EmbeddingOptions, models.EncoderOptions],
        [layers.BlockOptions, layers.CausalOptions, models.StackOptions],
    ),
    "Float vectors": ([models.SequenceEncoderOptions], [models.EncoderOptions]),
    "Heads of classes": ([models.SequenceHeadOptions], []),
    "Logits of tokens": ([models.GeneratorHeadOptions], []),
    "Images": ([models.ImageOptions], [layers.BlockOptions, layers.CausalOptions, models.StackOptions]),
}


def table(listed, left_out):
    """The Markdown table of the options of some tables without those of others, unless their defaults differ."""
    rows = {name: row for one in listed for name, row in shown_options.fields(one).items()}
    known = {name: default for one in left_out for name, default in shown_options.default_options(one).items()}
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for name, (_, default, meaning) in rows.items():
        if name not in known or known[name] != default:
            shown = f'"{default}"' if isinstance(default, str) else default
            lines.append(f"| `{name}` | `{shown}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def page(text):
    """The text of the page with the tables of today: each takes the place of the one under its heading."""
    parts = re.split(r"^(## .*)$", text, flags=re.M)
    for i, part in enumerate(parts):
        if part.removeprefix("## ") in SECTIONS:
            start = parts[i + 1].index("| option")
            end = parts[i + 1].index("\n\n", start)
            parts[i + 1] = parts[i + 1][:start] + table(*SECTIONS[part.removeprefix("## ")]) + parts[i + 1][end:]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
