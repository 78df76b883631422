"""Pictures with matplotlib: maps of attention, and positions."""

import io
import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.positions import ALiBi, RelativeBias, Rotary
from keras_txf.ops.rotary import rotary_frequencies
from keras_txf.visualize.kinds import KINDS, attention_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE = 0.14  # inches that a label takes
SMALL, LARGE = 1.7, 5.0  # inches of a map
WIDE = 16.0  # inches of all maps of a row, where they need not be smaller than SMALL


def plot_attention(
    scores: dict[str, Any],
    tokens: Sequence[str] | None = None,
    source_tokens: Sequence[str] | None = None,
    layers: str | Sequence[str] | None = None,
    heads: int | str | Sequence[int] | None = None,
    example: int = 0,
) -> "Figure":
    """Draws attention weights as heat maps: a row of maps for each layer, a map for each head, tokens on the axes.

    Queries stand on the y axis and keys on the x axis. All maps share one scale of colours, from 0 to the
    highest weight.

    The name of a layer says what attends to what. Where its last part has "cross_attention" in it, `tokens` attend to
    `source_tokens`. With `source_tokens`, a layer whose name starts with "encoder" is the encoder's: `source_tokens`
    attend to themselves. In every other layer `tokens` attend to themselves.

    Args:
        scores: dict of layer names -> weights (B, N, T, S), as `attention_scores` returns it. B batch, N heads,
            T queries, S keys.
        tokens: list of strings, the sequence that attends; of an encoder-decoder the target's. Fewer than T leave the
            padding on the right out. None: numbers.
        source_tokens: list of strings, the encoder's sequence; None for a model with one sequence, or, with
            `tokens=None`, for numbers.
        layers: name or list of names of the layers that are drawn. Default all.
        heads: index or list of indices of the heads that are drawn, or "mean": one map of the heads' mean. Default all.
        example: the row of the batch.

    Returns:
        A `matplotlib.figure.Figure`: it shows itself in a notebook, and has `savefig`.

    Raises:
        ValueError: a layer, head or example that is not there, or more tokens than the weights have.
        ImportError: matplotlib is not installed.

    Example:

    >>> scores = {"encoder_0/attention": np.full((1, 2, 3, 3), 1 / 3)}  # or attention_scores(model, inputs)
    >>> figure = txf.visualize.plot_attention(scores, ["the", "cat", "sat"])
    >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
    ['encoder_0/attention\\nhead 0', 'head 1']
    """
    checks.optional(checks.strings, "source_tokens", source_tokens)
    rows, chosen = [], chosen_layers(scores, layers)
    has_source = any(attention_kind(name, False) == "cross" for name in scores)
    reads_source = any(attention_kind(name, has_source) != "decoder" for name in chosen)
    if isinstance(tokens, (list, tuple)) and source_tokens is None and has_source and reads_source:
        raise ValueError(
            "`source_tokens` must be given with `tokens` where `scores` have a cross-attention; received None."
        )
    for name, weights in chosen.items():
        queries, keys = axis_tokens(name, weights.shape, tokens, source_tokens)
        maps = chosen_heads(name, weights[checks.integer_between("example", example, 0, len(weights) - 1)], heads)
        rows.append((name, queries, keys, {title: map[: len(queries), : len(keys)] for title, map in maps.items()}))
    highest = max(map.max() for *_, maps in rows for map in maps.values())
    columns = max(len(maps) for *_, maps in rows)
    largest = max(SMALL, min(LARGE, WIDE / columns))
    heights = [_inches(queries, largest) for _, queries, _, _ in rows]
    width = max(_inches(keys, largest) for _, _, keys, _ in rows)
    figure = new_figure(columns * width + 1.6, sum(heights) + 0.9 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    for line, height, (name, queries, keys, maps) in zip(grid, heights, rows):
        for axes in line[len(maps) :]:
            axes.remove()
        for column, (axes, (title, map)) in enumerate(zip(line, maps.items())):
            image = axes.imshow(map, cmap="Blues", vmin=0, vmax=highest or 1, aspect="equal")
            axes.set_anchor("W")
            _label(axes, "x", keys, width)
            _label(axes, "y", queries if column == 0 else [], height)
            axes.set_title(as_text(title if column else f"{name}\n{title}"), fontsize=9, loc="left")
    figure.colorbar(image, ax=figure.axes, shrink=min(1.0, 3 / sum(heights)), fraction=0.05, label="weight")
    return figure


def axis_tokens(name, shape, tokens, source_tokens):
    """The labels of the queries and of the keys of a layer with weights of this shape, (B, N, T, S)."""
    _, *sides = KINDS[attention_kind(name, source_tokens is not None)]
    sequences, labels = {"tokens": tokens, "source_tokens": source_tokens}, []
    for argument, size, legend in zip(sides, shape[2:], ("queries", "keys")):
        words = sequences[argument]
        words = [str(i) for i in range(size)] if words is None else checks.strings(argument, words)
        if not 0 < len(words) <= size:
            raise ValueError(
                f"`{argument}` must be from 1 to {size} strings, for {short_repr(name)} has {size} {legend}; "
                f"received {len(words)}."
            )
        labels.append(words)
    return labels


def chosen_layers(scores, layers):
    """The dict of layer names -> NumPy weights (B, N, T, S) of those that are named."""
    if not isinstance(scores, dict) or not scores or not all(isinstance(name, str) for name in scores):
        raise ValueError(f"`scores` must be a dict of names -> weights (B, N, T, S); received {short_repr(scores)}.")
    layers = [layers] if isinstance(layers, str) else layers
    names = list(scores) if layers is None else checks.strings("layers", layers)
    if not names:
        raise ValueError("`layers` must name at least one layer; received none.")
    for name in names:
        if name not in scores:
            raise ValueError(f"`layers` must be of {short_repr(list(scores))}; received {short_repr(name)}.")
    chosen = {name: ops.convert_to_numpy(scores[name]) for name in names}
    for name, weights in chosen.items():
        checks.rank(f"scores[{short_repr(name)}]", weights, (4, "(batch, heads, queries, keys)"))
    return chosen


def chosen_heads(name, weights, heads):
    """The dict of titles -> maps (T, S) of weights (N, T, S), or of maps (B, T, S) of weights (N, B, T, S)."""
    heads = (
        list(heads)
        if hasattr(heads, "__iter__") and not isinstance(heads, str) and not getattr(heads, "shape", None) == ()
        else heads
    )
    if isinstance(heads, str) and heads == "mean":
        return {"mean of heads": weights.mean(axis=0)}
    indices = range(len(weights)) if heads is None else [heads] if isinstance(heads, numbers.Integral) else heads
    there = f"{short_repr(name)} has heads 0 to {len(weights) - 1}"
    if isinstance(indices, str) or not hasattr(indices, "__iter__") or not len(indices):
        raise ValueError(f'`heads` must be indices, "mean" or None, and {there}; received {short_repr(heads)}.')
    for head in indices:
        if isinstance(head, bool) or not isinstance(head, numbers.Integral) or not 0 <= head < len(weights):
            raise ValueError(f"`heads` must be of heads that are there, and {there}; received {short_repr(head)}.")
    return {f"head {head}": weights[head] for head in indices}


def new_figure(width, height):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'keras_txf[visualize]'.") from error

    class ShownFigure(Figure):
        """A figure that a notebook shows. Of figures without pyplot it would show the name of the class."""

        def _repr_png_(self):
            with io.BytesIO() as file:
                self.savefig(file, format="png")
                return file.getvalue()

    return ShownFigure(figsize=(width, height), layout="constrained")


def _inches(labels, largest):
    return min(max(LINE * len(labels), SMALL), largest)


def _label(axes, axis, labels, inches):
    """Labels the places, or every n-th where all would overlap."""
    step = max(1, math.ceil(len(labels) * LINE / (inches + 1e-6)))
    short = [label if len(label) <= 16 else f"{label[:15]}…" for label in labels[::step]]
    steep = {"rotation": 90} if axis == "x" and max(map(len, short), default=0) > 1 else {}
    short = list(map(as_text, short))
    getattr(axes, f"set_{axis}ticks")(range(0, len(labels), step), short, fontsize=7, **steep)


def as_text(label):
    """The label as matplotlib shows it: a "$" would begin mathematics, and half a surrogate pair has no glyph."""
    return label.replace("$", r"\$").encode("utf-8", "replace").decode()


def plot_positions(layer: Any, length: int | None = None, dim: int = 64, num_heads: int = 8, head: int = 0) -> "Figure":
    """Draws what a position layer knows: its encoding on the left, on the right how alike positions are to each other.

    Args:
        layer: a `PositionalEmbedding`, `Rotary`, `ALiBi` or `RelativeBias`, or a name: "sinusoidal", "rotary", "alibi",
            or "relative", a new `RelativeBias`: random numbers, which show what distances share one.
        length: number of positions. Default 64, or the layer's `max_length`.
        dim: width of what is drawn for "sinusoidal"; for rotary positions the width of a head.
        num_heads: number of heads for "alibi" and "relative".
        head: the head whose bias is drawn on the right, for `ALiBi` and `RelativeBias`.

    Returns:
        A `matplotlib.figure.Figure`. Embeddings: the vectors, and their cosine similarity. Rotary: the cosines of the
        angles, and the mean cosine of the angles between two positions, which is the share of a logit that is left of
        two equal vectors. Biases: the bias of each head over the distance, and that of `head` for each query and key.

    Raises:
        ValueError: another layer or name, a layer with position_encoding=None, a length beyond `max_length`, a head
            that is not there.
        ImportError: matplotlib is not installed.

    Example:

    >>> figure = txf.visualize.plot_positions("sinusoidal", length=32, dim=16)
    >>> figure.axes[0].images[0].get_array().shape
    (32, 16)
    """
    checks.size("dim", dim)
    checks.size("num_heads", num_heads)
    checks.integer_between("head", head, 0, checks.LARGEST_INTEGER)
    names = {
        "sinusoidal": lambda: PositionalEmbedding(None, dim),
        "rotary": Rotary,
        "alibi": lambda: ALiBi(num_heads),
        "relative": lambda: RelativeBias(num_heads),
    }
    if not isinstance(layer, (PositionalEmbedding, Rotary, ALiBi, RelativeBias)):
        if not isinstance(layer, str) or layer not in names:
            raise ValueError(
                "`layer` must be a PositionalEmbedding, Rotary, ALiBi, RelativeBias, or one of "
                f"{short_repr(list(names))}; received {short_repr(layer)}."
            )
        layer = names[layer]()
    most = getattr(layer, "max_length", None)
    length = (most or 64) if length is None else length
    checks.integer_between("length", length, 1, most or checks.LARGEST_INTEGER)
    if isinstance(layer, (ALiBi, RelativeBias)):
        return _draw_bias(layer, length, checks.integer_between("head", head, 0, layer.num_heads - 1))
    if isinstance(layer, Rotary):
        turning = round(dim * layer.fraction)
        if turning % 2 or not turning:
            raise ValueError(f"`dim` * fraction must be even, from 2 on; received {dim} * {layer.fraction}.")
        frequencies, _ = rotary_frequencies(turning, layer.base, layer.scaling, length)
        angles = np.arange(length)[:, None] * ops.convert_to_numpy(frequencies)
        waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        alike = waves @ waves.T / angles.shape[1]
        panels = (np.cos(angles), "cosine of the angle", "pair of features"), (alike, "mean cosine")
    elif layer.position_encoding is None:
        raise ValueError("`layer` must have positions; received one with position_encoding=None.")
    else:
        vectors = ops.convert_to_numpy(layer._vectors_at(ops.arange(length, dtype="int32"), known=True)).astype(
            "float64"
        )
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        panels = (vectors, f"{layer.position_encoding} encoding", "feature"), (units @ units.T, "cosine similarity")
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    (values, title, legend), (alike, similarity) = panels
    bound = np.abs(values).max() or 1
    image = left.imshow(values, cmap="RdBu", vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest")
    left.set(title=title, xlabel=legend, ylabel="position")
    figure.colorbar(image, ax=left)
    image = right.imshow(alike, cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest")
    right.set(title=f"{similarity} of two positions", xlabel="position", ylabel="position")
    figure.colorbar(image, ax=right)
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.get_major_locator().set_params(integer=True)
    return figure


def _draw_bias(layer, length, head):
    distances = np.arange(1 - length, length)
    curves = ops.convert_to_numpy(layer.bias(np.array([length - 1]), np.arange(2 * length - 1)))[0, :, 0]
    positions = np.arange(length)
    matrix = ops.convert_to_numpy(layer.bias(positions, positions))[0, head]
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    colors = (0.25 + 0.7 * i / max(layer.num_heads - 1, 1) for i in range(layer.num_heads))
    for number, (curve, color) in enumerate(zip(curves, colors)):
        left.plot(distances, curve, label=f"head {number}", color=str(1 - color), linewidth=1.2)
    left.lines[head].set(color="tab:red", zorder=3)
    left.set(title="bias of each head", xlabel="key position - query position", ylabel="added to the logit")
    if layer.num_heads <= 16:
        left.legend(fontsize=7, ncols=2)
    image = right.imshow(matrix, cmap="viridis", interpolation="nearest")
    right.set(title=f"bias of head {head}", xlabel="key position", ylabel="query position")
    figure.colorbar(image, ax=right)
    return figure
