"""Writes the tables of docs/reference/options.md from those of the package: `python docs/site/write_options.py`."""

import pathlib
import re

from keras_txf.layers import option_tables as layers
from keras_txf.layers import shown_options
from keras_txf.layers.shown_options import shown_type
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
ARXIV = "https://arxiv.org/abs/"
VASWANI, DOSOVITSKIY = ("Vaswani et al. 2017", "1706.03762"), ("Dosovitskiy et al. 2020", "2010.11929")
PAPERS = {  # option -> papers that it comes from; an option of images may have others
    "num_key_value_heads": [("multi-query, Shazeer 2019", "1911.02150"), ("grouped, Ainslie et al. 2023", "2305.13245")],
    "window": [("Beltagy et al. 2020", "2004.05150")],
    "position": [
        ("rotary, Su et al. 2021", "2104.09864"),
        ("ALiBi, Press et al. 2021", "2108.12409"),
        ("T5, Raffel et al. 2019", "1910.10683"),
    ],
    "causal": [VASWANI],
    "qk_norm": [("Henry et al. 2020", "2010.04245")],
    "sinks": [("Xiao et al. 2023", "2309.17453")],
    "output_gate": [("Qiu et al. 2025", "2505.06708")],
    "output_projection": [VASWANI, ("graphs, Veličković et al. 2017", "1710.10903")],
    "activation": [("GELU, Hendrycks & Gimpel 2016", "1606.08415")],
    "gated": [("Shazeer 2020", "2002.05202")],
    "norm": [("layer, Ba et al. 2016", "1607.06450"), ("RMS, Zhang & Sennrich 2019", "1910.07467")],
    "norm_placement": [("Xiong et al. 2020", "2002.04745")],
    "residual": [
        ("stochastic depth, Huang et al. 2016", "1603.09382"),
        ("layer scale, Touvron et al. 2021", "2103.17239"),
    ],
    "share_blocks": [("ALBERT, Lan et al. 2019", "1909.11942")],
    "position_encoding": [VASWANI],
    "scale_embedding": [VASWANI],
    "token_types": [("BERT, Devlin et al. 2018", "1810.04805")],
    "tie_embeddings": [("Press & Wolf 2016", "1608.05859")],
    "distillation_token": [("Touvron et al. 2020", "2012.12877")],
    "register_tokens": [("Darcet et al. 2023", "2309.16588")],
}
PAPERS_OF_IMAGES = dict.fromkeys(["norm_placement", "position_encoding", "class_token"], [DOSOVITSKIY])


def table(listed, left_out):
    """The Markdown table of the options of some tables without those of others, unless their defaults differ."""
    rows = {name: row for one in listed for name, row in shown_options.fields(one).items()}
    known = {name: default for one in left_out for name, default in shown_options.default_options(one).items()}
    papers = PAPERS | PAPERS_OF_IMAGES if models.ImageOptions in listed else PAPERS
    lines = ["| option | meaning |", "| --- | --- |"]
    for name, (type_, default, meaning) in rows.items():
        if name not in known or known[name] != default:
            links = "; ".join(f"[{label}]({ARXIV}{number})" for label, number in papers.get(name, []))
            code = value(type_, default).replace("|", "&#124;")  # a table has no other `|` in code
            text = meaning.replace("|", r"\|") + (f"<br>From {links}" if links else "")
            lines.append(f"| `{name}`<br><code>{code}</code> | {text} |")
    return "\n".join(lines)


def value(type_, default):
    """The type and the default, such as `int | None = None`; any type goes without saying."""
    default = f'"{default}"' if isinstance(default, str) else str(default)
    return f"= {default}" if shown_type(type_) == "Any" else f"{shown_type(type_)} = {default}"


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
