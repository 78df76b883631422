"""Losses under `tf.distribute`, whose replicas each have a part of a batch.

Each script runs in its own process, because devices can be split only before TensorFlow first uses them.
"""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_txf as txf

TWO_REPLICAS = """
import sys
import numpy as np
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import keras_txf as txf
from keras_txf.ops import logit_factors
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""
BOTH_SIDES = """
ids, targets = txf.training.shift_labels(np.random.default_rng(3).integers(1, 20, (8, 6)))
for threshold in (1, 10**9):
    logit_factors.LARGE = threshold
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = txf.models.decoder_generator(20, 1, 8, 2, dropout=0.0)
        metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
        model.compile(keras.optimizers.SGD(0.1), txf.training.TokenCrossEntropy(), metrics=metrics)
    history = model.fit(ids, targets, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    print([x[-1] for x in history.values()])
"""
# Of the last batch one replica has all.
UNEVEN = """
ids = np.random.default_rng(3).integers(1, 20, (5, 8))
inputs, targets = (np.repeat(x, 2, 0) for x in txf.training.shift_labels(ids))
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(4).with_options(options)
replicas = [strategy.experimental_local_results(x) for x, _ in strategy.experimental_distribute_dataset(data)]
sizes = [[len(part) for part in parts] for parts in replicas]
assert sizes == [[2, 2], [2, 2], [2, 0]], sizes
with strategy.scope():
    model = txf.models.decoder_generator(20, 1, 8, 2, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.0), txf.training.RDrop(), run_eagerly=sys.argv[1] == "eager")
loss = txf.training.RDrop()
expected = np.mean([float(loss(targets[i : i + 2], model(inputs[i : i + 2]))) for i in range(0, 10, 2)])
print(model.fit(data, shuffle=False, verbose=0).history["loss"])
print([float(expected)])
"""


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's replicas")
@pytest.mark.parametrize("script, mode, tolerance", [
    (BOTH_SIDES, "graph", 1e-5), (UNEVEN, "graph", 1e-4), (UNEVEN, "eager", 1e-4),
], ids=["a large vocabulary", "a replica without examples", "eager"])  # fmt: skip
def test_replicas_average_as_one_device_does(script, mode, tolerance):
    root = pathlib.Path(txf.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", TWO_REPLICAS + script, mode]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert not result.returncode, result.stderr
    found, expected = map(json.loads, result.stdout.splitlines()[-2:])
    np.testing.assert_allclose(found, expected, rtol=tolerance)
