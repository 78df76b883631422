"""The example of a forecast, from start to end, on a small table."""

import re

import forecast_series
import numpy as np
import pandas
import pytest
import script_cases

SMALL = ["--seasons", "3", "6", "--past", "8", "--ahead", "4", "--held", "30"]


@pytest.fixture
def table(tmp_path):
    values = 5 + np.sin(np.arange(150) * np.pi / 3) + np.random.default_rng(1).normal(0, 0.1, 150)  # of season 6
    load = [f"{value:.3f}" for value in values]
    load[7] = load[-2] = ""  # the second in the held-out part
    (tmp_path / "mine.csv").write_text("day,load,text\n" + "".join(f"{i},{one},a\n" for i, one in enumerate(load)))
    return tmp_path / "mine.csv"


def options(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["forecast_series.py", *map(str, arguments)])
    return forecast_series.parse_options()


def test_a_model_reads_the_past_alone(monkeypatch):
    found = options(monkeypatch, *SMALL)
    values = np.arange(1, 21, dtype="float64")
    x, y = forecast_series.windows(values, found)
    assert x.shape == (20 - 12 + 1, 12, 1 + 2 * 2 + 1)
    for i in range(len(x)):
        np.testing.assert_array_equal(x[i, :, 0], [*values[i : i + 8], 0, 0, 0, 0])
        np.testing.assert_array_equal(y[i], values[i + 8 : i + 12])
    np.testing.assert_array_equal(x[3, :, -1], [0] * 8 + [1] * 4)
    place = np.arange(3, 15) * 2 * np.pi  # of the fourth window
    np.testing.assert_allclose(
        x[3, :, 1:5].T, [np.sin(place / 3), np.sin(place / 6), np.cos(place / 3), np.cos(place / 6)], atol=1e-6
    )


def test_both_models_are_of_one_size(monkeypatch):
    found = options(monkeypatch, *SMALL, "--dim", 16)
    sizes = [forecast_series.build(kind, 6, found, seed=1).count_params() for kind in ("transformer", "lstm")]
    assert abs(sizes[0] - sizes[1]) < 0.05 * sizes[0]


def test_what_is_no_series_is_refused(monkeypatch, table):
    with pytest.raises(SystemExit, match="of day, load, text; received text"):
        forecast_series.read(options(monkeypatch, table, *SMALL))
    with pytest.raises(SystemExit, match="must have 54 values or more for these options; it has 24"):
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:25]))
        forecast_series.read(options(monkeypatch, table, *SMALL, "--column", "load"))
    with pytest.raises(SystemExit, match="cannot read"):
        forecast_series.read(options(monkeypatch, table.parent / "none.csv"))


@pytest.mark.slow
def test_it_trains_and_forecasts(table):
    out = table.parent / "out"
    printed = script_cases.output("forecast_series", table, "--column", "load", "--quick", *SMALL, "--out", out)
    naive, transformer, lstm = re.findall(r"(?:naive|transformer|lstm) MAE ([\d.]+), MASE [\d.]+", printed)
    assert 0 < float(naive) < 0.2 and max(float(transformer), float(lstm)) < 5
    values = pandas.read_csv(table)["load"].to_numpy()
    missed = np.abs(values[6:] - values[:-6])
    windows = np.lib.stride_tricks.sliding_window_view(missed[-30:], 4)
    assert f"MASE {np.nanmean(windows) / np.nanmean(missed[:-30]):.3f}" in printed
    assert printed.count("of 27 windows of 4") == 3
    script_cases.assert_kept(out, printed, transformer_1=1, lstm_1=1)
    assert (out / "forecasts.png").read_bytes().startswith(b"\x89PNG")
