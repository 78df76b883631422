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
from keras_txf.checks import short_repr
from keras_txf.disk import atomic_file, writing
from keras_txf.visualize.scores import KINDS, attention_kind

TEMPLATE = pathlib.Path(__file__).with_name("page.html")
DATA = "{{data}}"  # the mark of the tokens and weights in the template


def view_attention(
    scores: dict[str, Any],
    tokens: Sequence[str],
    source_tokens: Sequence[str] | None = None,
    path: str | os.PathLike | None = None,
    example: int = 0,
) -> "AttentionPage":
    """Makes a page that shows attention weights: lines between tokens for one head, and a small map of every head.

    Use it to look through all layers and heads of a model, in a notebook (the result shows itself) or in a browser
    (`path`). The page is one HTML file: it loads nothing, so it also works without a network. A reader selects the type
    of attention, the layer, the head and the token with the mouse, by touch or with the keyboard.

    The name of a layer says which sequence attends to which. If its last part contains "cross_attention", `tokens`
    attend to `source_tokens`. With `source_tokens`, a layer whose name starts with "encoder" belongs to the encoder:
    `source_tokens` attend to themselves. In every other layer `tokens` attend to themselves.

    Args:
        scores: dict of layer names -> weights of shape (B, N, T, S), from 0 to 1, in the order of the model, as
            `attention_scores` returns it. B batch, N heads, T queries, S keys. The page also shows a row of zeros.
        tokens: list of strings, the sequence of the queries; for an encoder-decoder the target. If the list is shorter
            than the weights, the padding on the right is left out.
        source_tokens: list of strings, the encoder's sequence; None for a model with one sequence.
        path: the file of the page, written atomically; missing folders are made. None writes nothing.
        example: the row of the batch that is shown.

    Returns:
        An `AttentionPage`. The page shows weights to within 0.005, because it keeps 8 bits of each square root: 12
        layers of 12 heads over 128 tokens are 3.2 MB.

    Raises:
        ValueError: more tokens than a layer has weights for, a layer of cross-attention without `source_tokens`,
            weights below 0 or above 1, or a path that cannot be written to.

    Example:

    >>> scores = {"encoder_0/attention": np.full((1, 2, 3, 3), 1 / 3)}  # or the result of `attention_scores`
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
    # Without a "<" no token can end the script element that holds the data. JSON itself escapes all but ASCII.
    data = json.dumps({**sequences, "kinds": kinds}).replace("<", "\\u003c")
    page = AttentionPage(TEMPLATE.read_text(encoding="utf-8").replace(DATA, data))
    if path is not None:
        page.save(path)
    return page


class AttentionPage:
    """A page that shows attention, the result of `view_attention`. As the last value of a cell a notebook shows it.

    Args:
        html: the whole page, a string.
    """

    def __init__(self, html: str):
        self.html = checks.string("html", html)

    def _repr_html_(self):
        """The page in its own frame, which separates its ids, styles and keys from the notebook and other pages."""
        style = "width: 100%; height: 680px; border: 0"
        page = html.escape(self.html)
        return f'<iframe title="Attention" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'

    def save(self, path: str | os.PathLike) -> None:
        """Writes the page atomically: to a temporary path, then renames it.

        Raises:
            ValueError: `path` cannot be written to; an older file is then unchanged.
        """
        with writing("path", checks.path("path", path)), atomic_file(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")


def _some_strings(name, value):
    if not checks.strings(name, value):
        raise ValueError(f"`{name}` must hold a string for each token; received {short_repr(value)}.")
    return list(value)


def _sequence(name, side, sequences):
    """Returns (argument, tokens) of one side of the layer with this name."""
    if side not in sequences:
        raise ValueError(
            f"`source_tokens` must be given for {short_repr(name)}, which attends to another sequence; received None."
        )
    return side, sequences[side]


def _weights(name, value, example, queries, keys):
    """The weights of one example, (N, T, S), cut to the tokens; `queries` and `keys` are pairs (argument, tokens)."""
    try:
        array = np.asarray(keras.ops.convert_to_numpy(value), "float32")
    except Exception:  # each backend raises another exception
        array = np.array(None)
    if array.ndim != 4 or not array.size:
        received = f"shape {array.shape}" if array.ndim else short_repr(value)
        raise ValueError(
            f"`scores` must hold weights (batch, heads, queries, keys); received {received} for {short_repr(name)}."
        )
    for (argument, tokens), length, axis in ((queries, array.shape[2], "queries"), (keys, array.shape[3], "keys")):
        if len(tokens) > length:
            raise ValueError(
                f"`{argument}` must have at most as many items as {short_repr(name)} has {axis}, {length} in weights "
                f"of shape {array.shape}; received {len(tokens)} tokens."
            )
    array = array[checks.integer_between("example", example, 0, len(array) - 1), :, : len(queries[1]), : len(keys[1])]
    if not (array.min() >= 0 and array.max() <= 1.01):  # half precision rounds; NaN fails too
        raise ValueError(
            f"`scores` must be from 0 to 1; received {array.min()} to {array.max()} for {short_repr(name)}."
        )
    return np.minimum(array, 1)
