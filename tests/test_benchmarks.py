"""Benchmarks run in small sizes, and docs/explanation/cost.md has the numbers of its command."""

import importlib
import pathlib
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.mark.slow
def test_the_page_has_the_numbers_of_its_command(benchmarks):
    paper = importlib.import_module("paper_cost")
    text = paper.tables({name: paper.count(model) for name, model in paper.MODELS.items()})
    assert text in (ROOT / "docs" / "explanation" / "cost.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_norm_placements_are_trained_alike(benchmarks, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["norm_placement.py", "--layers", "1", "--epochs", "2", "--rows", "64"])
    importlib.import_module("norm_placement").main()
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split(",")[0] for line in lines] == ["post", "post", "pre"]


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="where GPUs are measured there is no TensorFlow")
def test_all_parts_of_the_gpu_benchmark_run(benchmarks, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--size", "tiny", "--no-compile", "--repeats", "1"])
    importlib.import_module("gpu").main()
    lines = capsys.readouterr().out.splitlines()
    assert [sum(line.startswith(part) for line in lines) for part in ("training step", "long attention", "gener")] == [
        2, 2, 1,
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gpt", "classifier", "translator"])
def test_training_steps_of_equal_models(benchmarks, task):
    pytest.importorskip("torch")
    train_step = importlib.import_module("train_step")
    size = dict(task=task, layers=1, dim=16, heads=2, vocab=64, length=8, batch=2, dropout=0.0)
    results = train_step.compare(["keras_txf tensorflow", "PyTorch"], size, "bfloat16", repeats=1, warmup=1)
    (ours, seconds), (theirs, their_seconds) = results.values()
    assert ours == theirs and seconds > 0 and their_seconds > 0
