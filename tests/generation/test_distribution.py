"""Models that several devices share: `generate` returns the result of one device, and replicas train as one device."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import drawing
import keras
import numpy as np
import pytest

import keras_txf as txf

VOCABULARY, NEW = 12, 4  # a vocabulary that two devices can halve
PROMPTS = [[5, 3, 8, 1], [7], [4, 10, 6]]  # a batch that they cannot
SAMPLERS = {"decoder_generator": "sampling", "encoder_decoder": txf.generation.Beam(2)}


def make(kind):
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    return getattr(txf.models, kind)(*sizes, num_layers=1, dim=8, num_heads=2, dropout=0.0)


def trained(model, data):
    """The model after one step, and its loss and metrics."""
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    model.compile(keras.optimizers.SGD(0.1), txf.training.TokenCrossEntropy(), metrics=metrics)
    return [values[-1] for values in model.fit(*data, batch_size=4, verbose=0).history.values()]


def generated(model, kind):
    return model.generate(PROMPTS, NEW, SAMPLERS[kind], seed=3, return_scores=True)


def assert_same(actual, expected):
    np.testing.assert_array_equal(actual.ids, expected.ids)
    drawing.assert_same(actual.log_probs, expected.log_probs, 1e-4)


# In separate processes, because devices can be split only before a backend first uses them.
MIRRORED = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import test_distribution as here
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
kind = "decoder_generator"
ids = here.np.array([[5, 3, 8, 1], [7, 2, 4, 9], [4, 10, 6, 2], [1, 2, 5, 3]], "int32")
data = here.txf.training.shift_labels(ids)
with strategy.scope():
    model = here.drawing.randomize(here.make(kind), 4)
assert "Mirrored" in type(model.trainable_variables[0].value).__name__
plain = here.drawing.randomize(here.make(kind), 4)
seen = []
for _ in range(2):  # what was compiled sees the weights of the next step
    with strategy.scope():
        found = here.trained(model, data)
    here.np.testing.assert_allclose(found, here.trained(plain, data), rtol=1e-4)
    for weight, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        here.np.testing.assert_allclose(weight, expected, atol=1e-5)
    expected = here.generated(plain, kind)
    seen.append(expected.log_probs)
    here.assert_same(here.generated(model, kind), expected)
    with strategy.scope():
        here.assert_same(here.generated(model, kind), expected)
assert here.drawing.difference(*seen) > 1e-3
print("the same")
"""

DISTRIBUTED = """
import test_distribution as here
from keras import distribution
devices = distribution.list_devices()
assert len(devices) == 2
layout = distribution.LayoutMap(distribution.DeviceMesh((1, 2), ("batch", "model"), devices))
layout[".*(query|key|value|intermediate).*kernel"] = (None, "model")
layout[".*attention/output.*kernel"] = ("model", None)
layout[".*embeddings"] = ("model", None)
for kind in here.SAMPLERS:
    plain = here.drawing.randomize(here.make(kind), 4)
    expected = here.generated(plain, kind)
    for parallel in (
        distribution.DataParallel(devices=devices),
        distribution.ModelParallel(layout_map=layout, batch_dim_name="batch"),
    ):
        with parallel.scope():
            model = here.make(kind)
            model.set_weights(plain.get_weights())
            here.assert_same(here.generated(model, kind), expected)
        here.assert_same(here.generated(model, kind), expected)
        kernel = model.get_layer("decoder_0").attention.query.kernel.value
        assert len(kernel.sharding.device_set) == 2
        halved = isinstance(parallel, distribution.ModelParallel)
        assert kernel.addressable_shards[0].data.shape == (8, 4 if halved else 8)
print("the same")
"""


def run(code, **environment):
    here = pathlib.Path(__file__).parent
    folders = [str(here), str(here.parent), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **environment}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.stdout.endswith("the same\n"), result.stderr


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's strategies")
def test_replicas_train_and_generate_as_one():
    run(MIRRORED)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="jax is not installed")
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="starts JAX itself: once is enough")
def test_distributed_weights_generate_as_one():
    devices = "--xla_force_host_platform_device_count=2"
    run(DISTRIBUTED, KERAS_BACKEND="jax", XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {devices}")
