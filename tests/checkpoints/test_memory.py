"""Loading takes the memory of the model, of a copy of its largest table, and a fixed amount."""

import json
import math
import os
import pathlib
import subprocess
import sys

import keras
import ml_dtypes
import numpy as np
import pytest
from folders import LLAMA, shapes, write

import keras_txf as txf

FIXED = 200  # MB: what a backend makes for itself when it first computes
WIDE = {**LLAMA, "vocab_size": 64_000, "hidden_size": 1024, "num_hidden_layers": 1, "intermediate_size": 2048}
LOAD = """
import json, sys
import keras_txf as txf

load = txf.checkpoints.load

def memory(key):  # in MB
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith(key))

before = memory("VmRSS")
model = load(sys.argv[1], dtype=sys.argv[2])
print(json.dumps([memory("VmHWM") - before, model.count_params()]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="the peak is read from Linux")
@pytest.mark.parametrize("shards, dtype", [(3, "float32"), (1, "bfloat16")])
def test_the_peak_while_loading(tmp_path, shards, dtype):
    """The last tensor, the head, is as large as the largest: it comes when all others are there."""
    arrays = {name: np.full(shape, 0.5, ml_dtypes.bfloat16) for name, shape in shapes(WIDE).items()}
    write(tmp_path, WIDE, arrays, shards)
    environment = {
        **os.environ, "KERAS_BACKEND": keras.backend.backend(),
        "PYTHONPATH": str(pathlib.Path(txf.__file__).parents[1]),
    }  # fmt: skip
    command = [sys.executable, "-c", LOAD, str(tmp_path), dtype]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    peak, count = json.loads(result.stdout.splitlines()[-1])
    bytes_each = 4 if dtype == "float32" else 2
    model, largest = (number * bytes_each / 1e6 for number in (count, max(map(math.prod, shapes(WIDE).values()))))
    assert peak < model + largest + FIXED, f"model {model:.0f} MB, largest {largest:.0f} MB"
