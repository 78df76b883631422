"""What Keras offers for training works with our models: each feature against plain training, on TensorFlow."""

import functools

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
INPUTS = {name: RANDOM.integers(1, 11, (8, length)).astype("int32") for name, length in
          (("source_ids", 6), ("target_ids", 5))}  # fmt: skip
TARGETS = RANDOM.integers(1, 13, (8, 5)).astype("int32")


def trained(batch_size, dtype=None, **compile_options):
    """The weights of a model after one epoch without any randomness, and its loss and metrics."""
    keras.utils.set_random_seed(5)
    options = dict(dropout=0.0, norm_placement="pre", position="relative", dtype=dtype)
    model = txf.models.encoder_decoder(11, 13, 1, 12, 3, **options)
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    model.compile(keras.optimizers.SGD(0.1), txf.training.TokenCrossEntropy(), metrics=metrics, **compile_options)
    history = model.fit(INPUTS, TARGETS, batch_size=batch_size, shuffle=False, verbose=0).history
    return model.get_weights(), [values[-1] for values in history.values()]


plainly = functools.cache(trained)


def assert_same(actual, expected, tolerance, metric_tolerance):
    np.testing.assert_allclose(actual[1], expected[1], rtol=metric_tolerance)
    for weight, other in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(weight, other, atol=tolerance)


@pytest.mark.parametrize("options, tolerance, metric_tolerance", [
    ({"jit_compile": True}, 1e-5, 1e-4), ({"steps_per_execution": 2}, 1e-5, 1e-4), ({"run_eagerly": True}, 1e-5, 1e-4),
    ({"dtype": "mixed_bfloat16"}, 0.02, 0.02), ({"dtype": "mixed_float16"}, 0.02, 0.02),
], ids=str)  # fmt: skip
def test_other_modes_of_compilation_train_the_same(options, tolerance, metric_tolerance):
    assert_same(trained(4, **options), plainly(4), tolerance, metric_tolerance)
