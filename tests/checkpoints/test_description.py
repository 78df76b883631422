"""`describe` and `families`: the same answer as `load`, without the weights."""

import json
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

import keras_txf as txf
from keras_txf.__main__ import main
from keras_txf.checkpoints.families import FAMILIES

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_the_description_is_of_the_model_that_loads(name):
    found = txf.checkpoints.describe(GOLDEN / name)
    assert found.problem is None and found.task in found.tasks == txf.checkpoints.families()[found.model_type]
    from safetensors import safe_open

    with safe_open(GOLDEN / name / "model.safetensors", "numpy") as file:
        arrays = [file.get_tensor(key) for key in file.keys()]
    assert found.parameters == sum(array.size for array in arrays)
    assert found.bytes == sum(array.nbytes for array in arrays)


def test_families_are_all_model_types():
    assert list(txf.checkpoints.families()) == sorted(FAMILIES)


@pytest.mark.parametrize("key, value, words", [
    ("hidden_act", "relu7", "'hidden_act'"), ("model_type", "mamba9", "'mamba9'"),
    ("num_hidden_layers", 3, "there is none named"), ("hidden_size", 6, "shape"),
])  # fmt: skip
def test_the_problem_is_the_error_of_load(key, value, words, tmp_path, capsys):
    folder = tmp_path / "folder"
    shutil.copytree(GOLDEN / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(folder)
    found = txf.checkpoints.describe(folder)
    assert words in found.problem and found.task is None and found.parameters > 0
    assert found.problem.split(";")[0] in str(error.value)
    assert main(["describe", str(folder)]) == 1
    assert "no: " in capsys.readouterr().out


def test_a_broken_generation_config_is_a_problem(tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(GOLDEN / "llama", folder)
    (folder / "generation_config.json").write_text('{"top_k": 5, "penalty_alpha": 0.6}')
    found = txf.checkpoints.describe(folder)
    assert found.problem is None and "'penalty_alpha': 0.6" in found.notes[0]  # as `load` warns
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(folder)
    found = txf.checkpoints.describe(folder)
    assert found.problem == str(error.value) and "generation_config.json" in found.problem
    assert found.task is None and found.notes == ()


def test_an_error_of_the_hub_is_one_line(monkeypatch, capsys):
    def snapshot_download(*given, **options):
        raise FileNotFoundError("There is no network.\n\nTry again.")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert main(["describe", "org/name"]) == 1
    assert capsys.readouterr().err == "There is no network. Try again.\n"


def test_the_commands(capsys, tmp_path):
    assert main(["describe", str(GOLDEN / "bert")]) == 0
    shown = capsys.readouterr().out
    assert "model type   bert" in shown and "task         masked_lm" in shown and "loads        yes" in shown
    assert main(["families"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(FAMILIES)
    assert main(["describe", str(tmp_path / "none")]) == 1
    assert "`path` must be a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_module_is_a_command():
    command = [sys.executable, "-m", "keras_txf", "describe", str(GOLDEN / "gpt2")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=GOLDEN.parents[2])
    assert done.returncode == 0 and "gpt2" in done.stdout, done.stderr[-2000:]
