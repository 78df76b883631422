"""plot_history: the losses and metrics of a training."""

import csv
import pathlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.visualize.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_history(history: Any) -> "Figure":
    """Draws the course of a training: a panel for each metric, with that of the validation beside it.

    Losses and perplexities have a logarithmic axis where they are positive.

    Args:
        history: the `History` that `fit` returns, its dict `history.history`, or the path of the .csv of a `CSVLogger`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: another kind of object, or a history without a finished epoch.
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
        epochs, history = (
            [epoch + 1 for epoch in getattr(history, "epoch", [])],
            history.history,
        )  # before `fit` it has none
    elif not isinstance(history, dict):
        if not isinstance(history, (str, pathlib.Path)):
            raise ValueError(
                "`history` must be a History, its dict, or the path of a .csv of a CSVLogger; received "
                f"{short_repr(history)}."
            )
        path = checks.path("history", history)
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = list(csv.DictReader(file))
            history = {name: [_number(row[name]) for row in rows] for name in (rows[0] if rows else ())}
            epochs = [int(epoch) + 1 for epoch in history.pop("epoch", range(len(rows)))]
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise ValueError(
                "`history` must be a History, its dict, or the path of a .csv of a CSVLogger; received "
                f"{short_repr(str(path))}: {error}."
            ) from error
    try:
        values = {str(name): np.asarray(curve, "float64") for name, curve in history.items()}
    except (ValueError, TypeError) as error:
        raise ValueError(f"`history` must hold lists of numbers; received {short_repr(history)}: {error}.") from error
    if not values or not all(curve.size and curve.ndim == 1 for curve in values.values()):
        raise ValueError(f"`history` must hold the values of at least one epoch; received {short_repr(history)}.")
    longest = max(map(len, values.values()))
    return list(range(1, longest + 1)) if epochs is None else epochs, values


def _number(text):
    """CSVLogger writes NA, or nothing, where an epoch has no value."""
    return float("nan") if text in ("NA", "", None) else float(text)
