"""Forecasts the next day of an hourly series: a Transformer, an LSTM of as many parameters, and the week before.

    python examples/forecast_series.py                         # cars an hour on the motorway I-94, two years
    python examples/forecast_series.py mine.csv --column load  # of yours; --seasons 12 --past 36 --ahead 6 for months

The cars (Metro Interstate Traffic Volume, Hogue 2019, https://doi.org/10.24432/C5X60B, CC BY 4.0) come with the package
autots. A model reads the past values, and the place in each season of past and future. The seasonal naive forecast is
the value one longest season before. Errors are of all windows of the held-out end, for each seed: the mean absolute
error (MAE), and divided by the seasonal naive one of the training part (MASE, Hyndman and Koehler 2006).
"""

import argparse
import importlib.resources
import pathlib
import sys
import time

import data
import keras
import matplotlib.figure
import numpy as np
import pandas

import keras_txf as txf

RATES = {"transformer": 3e-3, "lstm": 1e-2}  # of 1e-3, 3e-3, 1e-2, the best on the weeks before the held-out
BATCH = 64
PACKAGED = ("autots", "datasets/data/traffic_hourly.zip", "traffic_volume")


def main():
    options = parse_options()
    known = read(options)
    values = pandas.Series(known).interpolate(limit_direction="both").to_numpy()
    first, season = len(known) - options.held, max(options.seasons)  # the place of the first held-out value
    mean, scale = values[:first].mean(), values[:first].std()
    x, y = windows((values - mean) / scale, options)
    training, held = slice(first - options.past - options.ahead + 1), slice(first - options.past, None)
    places = np.arange(first, len(known) - options.ahead + 1)[:, None] + np.arange(options.ahead)
    forecasts = {"seasonal naive": [values[places - season]]}
    for kind in RATES:
        forecasts[kind] = []
        for seed in range(1, options.seeds + 1):
            model = build(kind, x.shape[-1], options, seed)
            print(f"Training {kind}, seed {seed}.", flush=True)
            train(model, x[training], y[training], options, seed)
            forecasts[kind].append(mean + scale * model.predict(x[held], batch_size=BATCH, verbose=0))
    unit = np.nanmean(np.abs(known[season:first] - known[: first - season]))
    for name, found in forecasts.items():
        errors = [np.nanmean(np.abs(one - known[places])) for one in found]  # a value that is missing is not scored
        mae, mase = (" ".join(f"{number:.4g}" for number in numbers) for numbers in (errors, errors / unit))
        data.report(options.out, f"{name} MAE {mae}, MASE {mase}, of {len(places):,} windows of {options.ahead}")
    draw(places, known, forecasts, options, pathlib.Path(options.out) / "forecasts.png")


def read(options):
    """The series, float64 (N,), NaN where a value is missing."""
    package, path, column = PACKAGED
    try:
        table = pandas.read_csv(options.file or importlib.resources.files(package).joinpath(path))
    except (OSError, ImportError, ValueError) as error:
        sys.exit(f"error: cannot read {options.file or package} ({error}); pass a CSV, or pip install {package}.")
    name = options.column or (table.columns[-1] if options.file else column)
    if name not in table or not pandas.api.types.is_numeric_dtype(table[name]):
        sys.exit(f"error: --column must be a column of numbers, of {', '.join(table.columns)}; received {name}.")
    values = table[name].to_numpy("float64")[: -options.held if options.choose else None]
    needed = options.held + 2 * max(options.past + options.ahead, *options.seasons)
    if len(values) < needed:
        sys.exit(f"error: the series must have {needed} values or more for these options; it has {len(values)}.")
    return values


def windows(values, options):
    """What a model reads, (N, past + ahead, 2 + 2 * seasons), and what it is to forecast, (N, ahead)."""
    place = np.arange(len(values))[:, None] * 2 * np.pi / options.seasons
    table = np.concatenate([values[:, None], np.sin(place), np.cos(place)], axis=1).astype("float32")
    whole = np.lib.stride_tricks.sliding_window_view(table, options.past + options.ahead, axis=0).swapaxes(1, 2)
    x = np.pad(whole, ((0, 0), (0, 0), (0, 1)))
    x[:, options.past :, [0, -1]] = 0, 1  # no value, and the mark of the future
    return x, whole[:, options.past :, 0]


def build(kind, features, options, seed):
    """(B, past + ahead, F) -> (B, ahead): one number at each place that is to come."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((options.past + options.ahead, features))
    transformer = txf.models.token_classifier(
        None, 1, 2, options.dim, 4, input_dim=features, dropout=0.0, norm_placement="pre", activation="gelu",
        position="rotary", position_encoding=None,
    )  # fmt: skip
    if kind == "transformer":
        x = transformer(inputs)
    else:  # of the width that comes nearest in parameters
        size = transformer.count_params()
        width = min(range(1, 2000), key=lambda h: abs(4 * h * (h + features + 1) + h + 1 - size))
        x = keras.layers.Dense(1)(keras.layers.LSTM(width, return_sequences=True)(inputs))
    return keras.Model(inputs, x[:, -options.ahead :, 0], name=kind)


def train(model, x, y, options, seed):
    steps = options.epochs * -(-len(x) // BATCH)
    rate = txf.training.warmup_cosine(options.rate or RATES[model.name], max(1, steps // 10), max(2, steps))
    model.compile(keras.optimizers.AdamW(rate, global_clipnorm=1.0), "mae")
    logs, began = [data.log(options.out, f"{model.name}_{seed}")], time.perf_counter()
    model.fit(x, y, batch_size=BATCH, epochs=options.epochs, callbacks=logs, verbose=2)
    seconds = time.perf_counter() - began
    print(f"{model.name}, seed {seed}: {model.count_params():,} parameters, trained in {seconds:.0f} s")


def draw(places, known, forecasts, options, path):
    """Draws the last forecasts that follow each other, of the first seed, and the actual values."""
    chosen = np.arange(len(places))[:: -options.ahead][6::-1]
    axes = matplotlib.figure.Figure(figsize=(11, 4), layout="constrained").subplots()
    axes.plot(places[chosen].ravel(), known[places[chosen]].ravel(), color="black", linewidth=2.5, label="actual")
    for (name, found), style in zip(forecasts.items(), (":", "-", "--")):
        axes.plot(places[chosen].ravel(), found[0][chosen].ravel(), style, label=name)
    axes.set_xticks(places[chosen][:, 0])  # where a forecast begins
    axes.grid(axis="x")
    axes.set(xlabel="row of the table", ylabel=options.column or PACKAGED[-1])
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
    axes.figure.savefig(path, dpi=100)
    print(f"Wrote {path}.")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="CSV with a header (default: the cars of autots)")
    parser.add_argument("--column", help="to forecast (default: the last)")
    parser.add_argument("--seasons", type=data.positive, nargs="+", default=[24, 168], help="rows (%(default)s)")
    parser.add_argument("--past", type=data.positive, default=168, help="rows that a model reads (%(default)s)")
    parser.add_argument("--ahead", type=data.positive, default=24, help="rows to forecast (%(default)s)")
    parser.add_argument("--held", type=data.positive, default=1344, help="rows held out at the end (%(default)s)")
    parser.add_argument("--choose", action="store_true", help="hold out the rows before these, to choose settings by")
    parser.add_argument("--out", metavar="DIR", default="runs/forecast_series", help="%(default)s")
    parser.add_argument("--epochs", type=data.positive, default=2, help="%(default)s")
    parser.add_argument("--dim", type=data.positive, default=64, help="of the Transformer (%(default)s)")
    parser.add_argument("--rate", type=float, help=f"highest learning rate (default: {RATES})")
    parser.add_argument("--seeds", type=data.positive, default=3, help="1, 2, ... up to it (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="an epoch of a small model, one seed, to see that it runs")
    options = parser.parse_args()
    if options.ahead > max(options.seasons) or options.ahead > options.held:
        parser.error(f"argument --ahead: expected at most --held and the longest of --seasons, got {options.ahead}")
    if options.quick:
        options.epochs, options.dim, options.seeds = 1, 8, 1
    return options


if __name__ == "__main__":
    main()
