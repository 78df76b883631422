"""examples/compare_models.py: its learning rate, table and clock, and the script twice."""

import json
import pathlib
import types

import compare_models
import comparison_tables
import numpy as np
import pytest
from script_cases import run_apart


def make_run(kind="lstm", seed=1, seconds_to_goal=2.0, exact=0.5):
    numbers = {key: 1000.0 * seed for key, _ in comparison_tables.COLUMNS.values()}
    curve = [(1.0, 10, 0.2), (2.0, 20, 0.4 + seed / 10)]
    return {"model": kind, "seed": seed, "parameters": 12345, "scores": {"exact match": exact}, "curve": curve} | {
        **numbers, "seconds_to_goal": seconds_to_goal
    }  # fmt: skip


def test_the_learning_rate_rises_and_falls_with_the_time():
    rates = [compare_models.learning_rate(share, 0.01) for share in np.linspace(0, 1, 101)]
    top = int(np.argmax(rates))
    assert rates[0] == 0 and rates[-1] == pytest.approx(0) and top == 10
    assert (np.diff(rates[: top + 1]) > 0).all() and (np.diff(rates[top:]) < 0).all()
    assert rates[55] == pytest.approx(0.01 * (1 + np.cos(0.55 * np.pi)) / 2)
    assert compare_models.learning_rate(1.2, 0.01) == pytest.approx(0)  # the last step may end after the time


def test_the_goal_is_reached_at_the_first_measurement_as_good():
    curve = [(1.0, 10, 0.2), (2.0, 20, 0.5), (3.0, 30, 0.4), (4.0, 40, 0.6)]
    assert compare_models.reached(curve, 0.5) == (2.0, 20)
    assert compare_models.reached(curve, 0.55) == (4.0, 40)
    assert compare_models.reached(curve, 0.7) == (None, None)


def test_the_table_has_a_row_a_model_and_a_cell_a_column(tmp_path):
    runs = [make_run(seed=1), make_run("transformer", 1, None, 0.9), make_run(seed=2, seconds_to_goal=None, exact=0.7)]
    runs.append(make_run("transformer", 2, None))
    header, line, *rows = comparison_tables.table(runs, 0.95)
    assert "steps to 0.95" in header and [row.split(" | ")[0] for row in rows] == ["| lstm", "| transformer"]
    assert {row.count("|") for row in (header, line, *rows)} == {len(comparison_tables.COLUMNS) + 4}
    cells = [dict(zip(header.split(" | "), row.split(" | "))) for row in rows]
    assert [row["exact match"] for row in cells] == ["0.600 (0.500 to 0.700)", "0.700 (0.500 to 0.900)"]
    assert [row["seconds to 0.95"] for row in cells] == ["2.0, 1 of 2 seeds", "-"]
    assert cells[0]["steps"] == "1,500 (1,000 to 2,000)" and cells[0]["parameters"] == "12,345"
    comparison_tables.draw(runs, 0.95, tmp_path / "models.png")
    assert (tmp_path / "models.png").read_bytes().startswith(b"\x89PNG")


def test_the_clock_counts_training_alone_and_stops_at_the_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(compare_models.time, "perf_counter", lambda: now[0])
    model = types.SimpleNamespace(optimizer=types.SimpleNamespace(), stop_training=False)

    def evaluate(*_, **__):
        now[0] += 7
        return {"token_accuracy": 0.25}

    model.evaluate = evaluate
    clock = compare_models.Clock(60.0, 0.01, None)
    clock.set_model(model)
    now[0] += 50  # the first step compiles
    clock.on_train_batch_begin(0)
    while not model.stop_training:
        clock.on_train_batch_end(0)
        if clock.steps % 9 == 4:
            now[0] += 50  # a wait between epochs
            clock.on_train_batch_begin(0)
        now[0] += 1
    assert clock.steps == 60 and clock.trained == pytest.approx(60)
    assert clock.curve == [(2.0 * i, 2 * i, 0.25) for i in range(1, compare_models.POINTS + 1)]
    assert model.optimizer.learning_rate == pytest.approx(0)


@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="Linux keeps the peak there")
def test_a_peak_is_forgotten_and_a_later_one_seen():
    large = np.ones(2**24)  # 128 MB
    before = compare_models.megabytes("VmHWM")
    del large
    compare_models.forget_peak()
    after = compare_models.megabytes("VmHWM")
    assert after < before - 100
    large = np.ones(2**23)
    assert compare_models.megabytes("VmHWM") > after + 50 and large.size
    assert compare_models.megabytes("VmNone") is None


@pytest.mark.slow
def test_the_script_compares_and_a_second_call_trains_nothing(tmp_path):
    folder = tmp_path / "new" / "folder"
    first = run_apart("compare_models", "dates", "--quick", "--out", folder)
    assert first.returncode == 0, first.stderr
    assert "Training lstm, seed 1." in first.stdout and "Training transformer, seed 1." in first.stdout
    header, _, *rows = [line for line in first.stdout.splitlines() if line.startswith("| ")]
    assert header.startswith("| model | parameters | exact match | training tokens/s")
    assert [row.split(" | ")[0] for row in rows] == ["| lstm", "| transformer"]
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["task"] == "dates" and [run["model"] for run in results["runs"]] == ["lstm", "transformer"]
    sizes = [run["parameters"] for run in results["runs"]]
    assert max(sizes) < 1.05 * min(sizes)
    for run, row in zip(results["runs"], rows):
        assert f"| {run['parameters']:,} |" in row and run["seconds"] >= 4 and run["steps"] > 1
        assert run["curve"][-1][:2] == [run["seconds"], run["steps"]]  # the last is measured when the time is over
        assert run["latency_ms"] > 0 and run["tokens_per_second"] > 0 and 0 <= run["scores"]["exact match"] <= 1
    names = ["lstm_1.json", "models.png", "options.json", "results.json", "results.txt", "transformer_1.json"]
    assert sorted(path.name for path in folder.iterdir()) == names

    written = {name: (folder / name).stat().st_mtime_ns for name in names if name.endswith("_1.json")}
    second = run_apart("compare_models", "dates", "--quick", "--out", folder)
    assert second.returncode == 0 and "Training" not in second.stdout
    assert {name: (folder / name).stat().st_mtime_ns for name in written} == written
    assert [line for line in second.stdout.splitlines() if line.startswith("| ")] == [header, _, *rows]

    other = run_apart("compare_models", "dates", "--quick", "--seconds", 5, "--out", folder)
    assert other.returncode == 1 and "pass another --out" in other.stderr and "Traceback" not in other.stderr
