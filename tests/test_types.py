"""Type hints: pyright finds no error in a script that uses every public name as a user does."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import keras
import pytest
import typed_script

import keras_txf as txf

SCRIPT = pathlib.Path(typed_script.__file__)
PARTS = [name for name in txf.__all__ if not name.startswith("__")]


@pytest.mark.parametrize("part", PARTS)
def test_the_script_uses_every_public_name(part):
    used = set(re.findall(rf"\b{part}\.(\w+)", SCRIPT.read_text()))
    assert set(getattr(txf, part).__all__) <= used


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the script makes `tf.data` pipelines")
@pytest.mark.filterwarnings("ignore:Even though the `tf.config")  # pipelines are compiled whatever `uncompiled` says
def test_the_script_runs(tmp_path, uncompiled):
    typed_script.main(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("pyright"), reason="pyright is not installed")
def test_pyright_finds_no_error():
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", SCRIPT.parents[1]]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_hints_are_published():
    assert (pathlib.Path(txf.__file__).parent / "py.typed").is_file()
