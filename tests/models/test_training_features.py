"""What Keras offers for training works with our models: each feature against plain training, on TensorFlow."""

import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_txf as txf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="compares ways to train on TensorFlow"),
]

# No padding, so that a batch and its halves weigh the same.
RANDOM = np.random.default_rng(3)
INPUTS = {
    "source_ids": RANDOM.integers(1, 11, (8, 6)).astype("int32"),
    "target_ids": RANDOM.integers(1, 13, (8, 5)).astype("int32"),
}
TARGETS = RANDOM.integers(1, 13, (8, 5)).astype("int32")


def trained(batch_size, dtype=None, optimizer=None, **compile_options):
    """The model after one epoch without any randomness, and its loss and metrics."""
    keras.utils.set_random_seed(5)
    model = txf.models.encoder_decoder(
        11, 13, 1, 12, 3, dropout=0.0, norm_placement="pre", position="relative", dtype=dtype
    )
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    model.compile(optimizer, txf.training.TokenCrossEntropy(), metrics=metrics, **compile_options)
    history = model.fit(INPUTS, TARGETS, batch_size=batch_size, shuffle=False, verbose=0).history
    return model, [values[-1] for values in history.values()]


def assert_same_weights(model, other, tolerance=1e-5):
    for weight, expected in zip(model.trainable_weights, other.trainable_weights):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), atol=tolerance, err_msg=weight.path)


@pytest.fixture(scope="module")
def plain():
    return trained(batch_size=4)


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"steps_per_execution": 2}, {"run_eagerly": True}], ids=str)
def test_other_ways_to_run_train_the_same(plain, options):
    model, loss = trained(batch_size=4, **options)
    np.testing.assert_allclose(loss, plain[1], rtol=1e-4)
    assert_same_weights(model, plain[0])


def test_accumulated_gradients_are_those_of_the_larger_batch():
    accumulated, _ = trained(4, optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    assert_same_weights(accumulated, trained(8)[0])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_nearly_the_same(plain, policy):
    model, loss = trained(batch_size=4, dtype=policy)
    np.testing.assert_allclose(loss, plain[1], rtol=0.02)
    assert_same_weights(model, plain[0], tolerance=0.02)


def test_mixed_float16_scales_the_loss():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model, loss = trained(batch_size=4)
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert np.isfinite(loss).all() and model.optimizer.iterations.numpy() == 2


# In a process of its own, for devices can be split only before TensorFlow first uses them.
MIRRORED = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import test_training_features as here
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    mirrored, loss = here.trained(8)
plain, expected = here.trained(8)
here.np.testing.assert_allclose(loss, expected, rtol=1e-4)
here.assert_same_weights(mirrored, plain)
print("the same")
"""


def test_two_replicas_train_as_one():
    here = pathlib.Path(__file__).parent
    folders = [str(here), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", MIRRORED]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.stdout.endswith("the same\n"), result.stderr
