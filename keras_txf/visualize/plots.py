"""Pictures of positions and of a training."""

import csv
import io
import pathlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.positions import ALiBi, RelativeBias
from keras_txf.layers.rotary import Rotary
from keras_txf.ops.rotary import rotary_frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXPECTED = "`history` must be a History, its dict, or the path of a .csv of a CSVLogger"


def plot_positions(layer: Any, length: int | None = None, dim: int = 64, num_heads: int = 8, head: int = 0) -> "Figure":
    """Draws a position layer: its encoding on the left, the similarity of any two positions on the right.

    Args:
        layer: a `PositionalEmbedding`, `Rotary`, `ALiBi` or `RelativeBias`, or a name: "sinusoidal", "rotary", "alibi",
            or "relative". "relative" is a new `RelativeBias`, whose random numbers show which distances share a bias.
        length: number of positions. Default 64, or the layer's `max_length`.
        dim: width of the vectors for "sinusoidal"; width of a head for rotary positions.
        num_heads: number of heads for "alibi" and "relative".
        head: the head whose bias is drawn on the right, for `ALiBi` and `RelativeBias`.

    Returns:
        A `matplotlib.figure.Figure`. Embeddings: the vectors, and their cosine similarity. Rotary: the cosines of the
        angles, and the mean cosine of the angles between two positions, which is the factor on the logit of two equal
        vectors. Biases: the bias of each head over the distance, and the bias of `head` for each query and key.

    Raises:
        ValueError: an unknown layer or name, a layer with position_encoding=None, a length above `max_length`, a head
            that does not exist.
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


def plot_history(history: Any) -> "Figure":
    """Draws the course of a training: a panel for each metric, with the curves of training and validation.

    Losses and perplexities have a logarithmic axis if they are positive.

    Args:
        history: the `History` that `fit` returns, its dict `history.history`, or the path of the .csv of a `CSVLogger`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: an object of another type, or a history without a finished epoch.
        ImportError: matplotlib is not installed.

    Example:

    >>> figure = txf.visualize.plot_history({"loss": [2.0, 1.0], "val_loss": [2.1, 1.3], "accuracy": [0.2, 0.6]})
    >>> [axes.get_title() for axes in figure.axes]
    ['loss', 'accuracy']
    """
    epochs, values = _read_history(history)
    metrics = [name for name in values if not (name.startswith("val_") and name.removeprefix("val_") in values)]
    columns = min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    figure = new_figure(max(4.2 * columns, 5), 3.2 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(metrics) :]:
        axes.remove()
    for axes, name in zip(grid, metrics):
        twins = {"training": name, "validation": f"val_{name}"}
        curves = {label: values[key] for label, key in twins.items() if key in values}
        for label, curve in curves.items():
            axes.plot(epochs[-len(curve) :], curve, "o-", markersize=3, label=label)
        axes.set(title=name, xlabel="epoch", xlim=(epochs[0] - 0.5, epochs[-1] + 0.5))
        axes.xaxis.get_major_locator().set_params(integer=True)
        known = np.concatenate(list(curves.values()))
        if ("loss" in name or "perplexity" in name) and (known[~np.isnan(known)] > 0).all():
            axes.set_yscale("log")
        if len(curves) > 1:
            axes.legend()
    return figure


def _read_history(history):
    """The epochs, counted from 1, and a dict of metrics -> values."""
    epochs = None
    if isinstance(history, keras.callbacks.History):
        epochs = [epoch + 1 for epoch in getattr(history, "epoch", [])]  # before `fit` the attribute is missing
        history = history.history
    elif isinstance(history, (str, pathlib.Path)):
        epochs, history = _read_csv(checks.path("history", history))
    elif not isinstance(history, dict):
        raise ValueError(f"{EXPECTED}; received {short_repr(history)}.")
    try:
        values = {str(name): np.asarray(curve, "float64") for name, curve in history.items()}
    except (ValueError, TypeError) as error:
        raise ValueError(f"`history` must hold lists of numbers; received {short_repr(history)}: {error}.") from error
    if not values or not all(curve.size and curve.ndim == 1 for curve in values.values()):
        raise ValueError(f"`history` must hold the values of at least one epoch; received {short_repr(history)}.")
    longest = max(map(len, values.values()))
    return list(range(1, longest + 1)) if epochs is None else epochs, values


def _read_csv(path):
    """The epochs, counted from 1, and a dict of metrics -> values of a CSVLogger."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        history = {name: [_number(row[name]) for row in rows] for name in (rows[0] if rows else ())}
        return [int(epoch) + 1 for epoch in history.pop("epoch", range(len(rows)))], history
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{EXPECTED}; received {short_repr(str(path))}: {error}.") from error


def _number(text):
    """A value of a CSVLogger, which writes NA or nothing if an epoch has no value."""
    return float("nan") if text in ("NA", "", None) else float(text)


def new_figure(width, height):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'keras_txf[visualize]'.") from error

    class ShownFigure(Figure):
        """A figure that a notebook shows. For a figure without pyplot a notebook would show the class name."""

        def _repr_png_(self):
            with io.BytesIO() as file:
                self.savefig(file, format="png")
                return file.getvalue()

    return ShownFigure(figsize=(width, height), layout="constrained")
