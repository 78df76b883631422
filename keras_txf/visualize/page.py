"""A page that shows a model's attention in the browser or a notebook, as BertViz does for PyTorch."""

import base64
import html
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_txf import checks
from keras_txf.atomic_write import atomic_file, writing
from keras_txf.checks import short_repr
from keras_txf.visualize.scores import KINDS, attention_kind

TEMPLATE = pathlib.Path(__file__).with_name("page.html")
DATA = "{{data}}"  # where the template takes the tokens and weights


def view_attention(
    scores: dict[str, Any],
    tokens: Sequence[str],
    source_tokens: Sequence[str] | None = None,
    path: str | os.PathLike | None = None,
    example: int = 0,
) -> "AttentionPage":
    """Makes a page that shows attention weights: lines between tokens for one head, and a small map of every head.

    Use it to look through all layers and heads of a model, in a notebook (the result shows itself) or in a browser
    (`path`). The page is one HTML file: it loads nothing, so it also works without a network. The kind of attention,
    the layer, the head and the token are chosen with the mouse, by touch or with the keyboard.

    The name of a layer says what attends to what. Where its last part has "cross_attention" in it, `tokens` attend to
    `source_tokens`. With `source_tokens`, a layer whose name starts with "encoder" is the encoder's: `source_tokens`
    attend to themselves. In every other layer `tokens` attend to themselves.

    Args:
        scores: dict of layer names -> weights of shape (B, N, T, S), from 0 to 1, in the order of the model, as
            `attention_scores` returns it. B batch, N heads, T queries, S keys. A row of zeros is shown as such.
        tokens: list of strings, the sequence that attends; of an encoder-decoder the target's. A list that is shorter
            than the weights leaves the padding on the right out.
        source_tokens: list of strings, the encoder's sequence; None for a model with one sequence.
        path: where the page is written to, atomically, in a folder that is made; None writes nothing.
        example: the row of the batch that is shown.

    Returns:
        An `AttentionPage`. It shows weights to within 0.005, for it keeps 8 bits of each square root: 12 layers of 12
        heads over 128 tokens are 3.2 MB.

    Raises:
        ValueError: more tokens than a layer has weights for, a layer of cross-attention without `source_tokens`,
            weights below 0 or above 1, or a path that cannot be written to.

    Example:

    >>> scores = {"encoder_0/attention": np.full((1, 2, 3, 3), 1 / 3)}  # or those of `attention_scores`
    >>> page = txf.visualize.view_attention(scores, ["the", "cat", "sat"])
    >>> page.html[:15]
    '<!doctype html>'
    """
    if not isinstance(scores, dict) or not scores or not all(isinstance(name, str) for name in scores):
        raise ValueError(f"`scores` must be a dict of layer names -> weights; received {short_repr(scores)}.")
    sequences = {"tokens": _some_strings("tokens", tokens)}
    if source_tokens is not None:
        sequences["source_tokens"] = _some_strings("source_tokens", source_tokens)
    path = checks.optional(checks.path, "path", path)
    layers = {kind: [] for kind in KINDS}
    for name, weights in scores.items():
        kind = attention_kind(name, source_tokens is not None)
        array = _weights(name, weights, example, *(_sequence(name, side, sequences) for side in KINDS[kind][1:]))
        code = base64.b64encode(np.rint(255 * np.sqrt(array)).astype("uint8").tobytes()).decode()
        layers[kind].append({"name": name, "heads": len(array), "weights": code})
    names = ("title", "queries", "keys")
    kinds = [{**dict(zip(names, row)), "layers": layers[kind]} for kind, row in KINDS.items() if layers[kind]]
    # Without a "<" no token can end the script element that holds the data. JSON escapes all beyond ASCII by itself.
    data = json.dumps({**sequences, "kinds": kinds}).replace("<", "\\u003c")
    page = AttentionPage(TEMPLATE.read_text(encoding="utf-8").replace(DATA, data))
    if path is not None:
        page.save(path)
    return page


class AttentionPage:
    """A page that shows attention, as `view_attention` makes it: the last value of a notebook's cell shows itself.

    Args:
        html: the whole page, a string.
    """

    def __init__(self, html: str):
        self.html = checks.string("html", html)

    def _repr_html_(self):
        """The page in a frame of its own: its ids, styles and keys stay apart from the notebook's and other pages'."""
        style = "width: 100%; height: 680px; border: 0"
        page = html.escape(self.html)
        return f'<iframe title="Attention" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'

    def save(self, path: str | os.PathLike) -> None:
        """Writes the page atomically: to a temporary path, then renames it.

        Raises:
            ValueError: `path` cannot be written to; an older file is as it was.
        """
        with writing("path", checks.path("path", path)), atomic_file(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")


def _some_strings(name, value):
    if not checks.strings(name, value):
        raise ValueError(f"`{name}` must hold a string for each token; received {short_repr(value)}.")
    return list(value)


def _sequence(name, side, sequences):
    """(argument, tokens) of one side of the layer of that name."""
    if side not in sequences:
        raise ValueError(
            f"`source_tokens` must be given for {short_repr(name)}, which attends to another sequence; received None."
        )
    return side, sequences[side]


def _weights(name, value, example, queries, keys):
    """The weights of one example, (N, T, S) as there are tokens; `queries` and `keys` are pairs (argument, tokens)."""
    try:
        array = np.asarray(keras.ops.convert_to_numpy(value), "float32")
    except Exception:  # each backend has its own
        array = np.array(None)
    if array.ndim != 4 or not array.size:
        received = f"shape {array.shape}" if array.ndim else short_repr(value)
        raise ValueError(
            f"`scores` must hold weights (batch, heads, queries, keys); received {received} for {short_repr(name)}."
        )
    for (argument, tokens), length, axis in ((queries, array.shape[2], "queries"), (keys, array.shape[3], "keys")):
        if len(tokens) > length:
            raise ValueError(
                f"`{argument}` must be no more than the {axis} of {short_repr(name)}, {length} in weights of shape "
                f"{array.shape}; received {len(tokens)} tokens."
            )
    array = array[checks.integer_between("example", example, 0, len(array) - 1), :, : len(queries[1]), : len(keys[1])]
    if not (array.min() >= 0 and array.max() <= 1.01):  # half precision rounds; NaN fails too
        raise ValueError(
            f"`scores` must be from 0 to 1; received {array.min()} to {array.max()} for {short_repr(name)}."
        )
    return np.minimum(array, 1)
