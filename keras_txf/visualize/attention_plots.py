"""Pictures of attention: maps of layers and heads, and maps over an image."""

import math
import numbers
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.visualize.plots import new_figure
from keras_txf.visualize.scores import KINDS, as_floats, attention_kind, attention_rollout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE = 0.14  # inches that a label takes
SMALL, LARGE = 1.7, 5.0  # inches of a map
WIDE = 16.0  # inches of all maps of a row, unless a map would be smaller than SMALL


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

    The name of a layer says which sequence attends to which. If its last part contains "cross_attention", `tokens`
    attend to `source_tokens`. With `source_tokens`, a layer whose name starts with "encoder" belongs to the encoder:
    `source_tokens` attend to themselves. In every other layer `tokens` attend to themselves.

    Args:
        scores: dict of layer names -> weights (B, N, T, S), as `attention_scores` returns it. B batch, N heads,
            T queries, S keys.
        tokens: list of strings, the sequence of the queries; for an encoder-decoder the target. If the list is shorter
            than T, the padding on the right is left out. None shows numbers.
        source_tokens: list of strings, the encoder's sequence; None for a model with one sequence, or, with
            `tokens=None`, for numbers.
        layers: name or list of names of the layers that are drawn. Default all.
        heads: index or list of indices of the heads that are drawn, or "mean": one map of the heads' mean. Default all.
        example: the row of the batch.

    Returns:
        A `matplotlib.figure.Figure`. It shows itself in a notebook, and has `savefig`.

    Raises:
        ValueError: a layer, head or example that does not exist, or more tokens than the weights have.
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
            "`source_tokens` must be given with `tokens` if `scores` have a cross-attention; received None."
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
                f"`{argument}` must be from 1 to {size} strings, because {short_repr(name)} has {size} {legend}; "
                f"received {len(words)}."
            )
        labels.append(words)
    return labels


def chosen_layers(scores, layers):
    """Returns a dict of layer names -> NumPy weights (B, N, T, S) of the selected layers."""
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
    """Returns a dict of titles -> maps (T, S) of weights (N, T, S), or maps (B, T, S) of weights (N, B, T, S)."""
    if isinstance(heads, str) and heads == "mean":
        return {"mean of heads": weights.mean(axis=0)}
    if heads is None:
        heads = range(len(weights))
    elif isinstance(heads, numbers.Integral):
        heads = [heads]
    elif hasattr(heads, "__iter__") and not isinstance(heads, str) and getattr(heads, "shape", None) != ():
        heads = list(heads)
    existing = f"{short_repr(name)} has heads 0 to {len(weights) - 1}"
    if isinstance(heads, str) or not hasattr(heads, "__iter__") or not len(heads):
        raise ValueError(f'`heads` must be indices, "mean" or None, and {existing}; received {short_repr(heads)}.')
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, numbers.Integral) or not 0 <= head < len(weights):
            raise ValueError(f"`heads` must be existing heads, and {existing}; received {short_repr(head)}.")
    return {f"head {head}": weights[head] for head in heads}


def _inches(labels, largest):
    return min(max(LINE * len(labels), SMALL), largest)


def _label(axes, axis, labels, inches):
    """Labels the positions of an axis, or every n-th position if all labels would overlap."""
    step = max(1, math.ceil(len(labels) * LINE / (inches + 1e-6)))
    short = [label if len(label) <= 16 else f"{label[:15]}…" for label in labels[::step]]
    steep = {"rotation": 90} if axis == "x" and max(map(len, short), default=0) > 1 else {}
    short = list(map(as_text, short))
    getattr(axes, f"set_{axis}ticks")(range(0, len(labels), step), short, fontsize=7, **steep)


def as_text(label):
    """Escapes a label for matplotlib: a "$" would start mathematics, and half a surrogate pair has no glyph."""
    return label.replace("$", r"\$").encode("utf-8", "replace").decode()


def plot_attention_on_image(
    image: Any,
    scores: dict[str, Any],
    patch_size: int | tuple[int, int],
    rollout: bool = True,
    layers: str | Sequence[str] | None = None,
    heads: int | str | Sequence[int] | None = "mean",
    example: int = 0,
) -> "Figure":
    """Draws images and heat maps over their patches, which show where a vision transformer looks.

    With a class token the maps are its attention to the patches. Without a class token they are the mean over the
    queries. Each map has its own scale of colours, from the lowest to the highest weight of a patch.

    Args:
        image: floats (height, width, channels), or a batch (B, height, width, channels), which gets a row for each
            image. One channel or three; the values are stretched to the range of colours.
        scores: dict of layer names -> weights (B, N, T, T), as `attention_scores` returns it. T is the number of
            patches, row by row from the top left, plus one for a class token, which comes first.
        patch_size: height and width of a patch in pixels, a pair or one number for both.
        rollout: whether the second picture is `attention_rollout` of all layers.
        layers: name or list of names of layers whose own attention is drawn as well. Default none.
        heads: heads of these layers: "mean", index or list of indices, or None for all.
        example: the row of the batch of `scores` for a single `image`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: patches that do not divide the image or do not fit T, a layer, head or example that does not exist.
        ImportError: matplotlib is not installed.

    Reference:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix D.7.

    Example:

    >>> scores = {"encoder_0/attention": np.full((1, 2, 5, 5), 1 / 5)}  # or attention_scores(model, images)
    >>> figure = txf.visualize.plot_attention_on_image(np.zeros((8, 8, 1)), scores, patch_size=4)
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['image', 'rollout']
    """
    images = as_floats("image", image)
    checks.rank("image", images, (3, "(height, width, channels)"), (4, "(batch, height, width, channels)"))
    if images.shape[-1] not in (1, 3):
        raise ValueError(f"`image` must have one channel or three; received shape {images.shape}.")
    everything = chosen_layers(scores, None)
    if not len(images):
        raise ValueError("`image` must hold at least one image; received none.")
    batch = len(next(iter(everything.values())))
    if images.ndim == 3:
        images, examples = images[None], [checks.integer_between("example", example, 0, batch - 1)]
    elif len(images) > batch:
        raise ValueError(f"`image` must have at most the {batch} rows of `scores`; received {len(images)}.")
    else:
        examples = range(len(images))
    grid = _patches(images.shape[1:3], checks.pair("patch_size", patch_size), everything)
    columns = [("rollout", attention_rollout(everything))] if checks.boolean("rollout", rollout) else []
    for name, weights in everything.items():  # checks `heads`, even if no layer is drawn
        chosen_heads(name, weights.swapaxes(0, 1), heads)
    for name, weights in ({} if layers is None else chosen_layers(scores, layers)).items():
        of_heads = chosen_heads(name, weights.swapaxes(0, 1), heads)
        columns += [(f"{name}\n{title}", maps) for title, maps in of_heads.items()]
    figure = new_figure(1.9 * (1 + len(columns)) + 0.6, 1.9 * len(images) + 0.6)
    from matplotlib.cm import ScalarMappable  # after `new_figure`, whose error names a missing matplotlib

    axes = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for row, picture, number in zip(axes, images, examples):
        span = picture.max() - picture.min()
        picture = (picture - picture.min()) / (span or 1)
        for panel in row:
            panel.set_axis_off()
            dim = 1 if panel is row[0] else 0.3  # under a map: light and dark would change its colours
            shade = 0.5 + dim * (picture - 0.5)
            panel.imshow(shade[..., 0] if shade.shape[-1] == 1 else shade, cmap="gray", vmin=0, vmax=1)
        for panel, (_, maps) in zip(row[1:], columns):
            heat = maps[number][0, 1:] if maps.shape[-1] > grid[0] * grid[1] else maps[number].mean(axis=0)
            patch = [pixels // patches for pixels, patches in zip(picture.shape, grid)]
            heat = np.kron(heat.reshape(grid), np.ones(patch))
            drawn = panel.imshow(heat, cmap="inferno", alpha=0.75)
    for panel, title in zip(axes[0], ["image", *(title for title, _ in columns)]):
        panel.set_title(as_text(title), fontsize=8)
    if columns:
        bar = figure.colorbar(
            ScalarMappable(cmap=drawn.cmap), ax=axes, alpha=0.75, shrink=min(1.0, 2 / len(images)), fraction=0.04
        )
        bar.set_ticks([0, 1], labels=["least", "most"], fontsize=7)
        bar.set_label("weight in its map", fontsize=7)
    return figure


def _patches(size, patch_size, scores):
    """Returns the rows and columns of patches."""
    if any(pixels % patch for pixels, patch in zip(size, patch_size)):
        raise ValueError(f"`patch_size` must divide the height and width of `image`; received {patch_size} and {size}.")
    rows, columns = (pixels // patch for pixels, patch in zip(size, patch_size))
    for name, weights in scores.items():
        if weights.shape[2] != weights.shape[3] or weights.shape[3] - rows * columns not in (0, 1):
            raise ValueError(
                f"`scores` must be over the {rows * columns} patches of the image, and perhaps a class token; "
                f"received shape {weights.shape} for {short_repr(name)}."
            )
    return rows, columns
