"""Dropout: the share, the scale, the seeds; on TensorFlow two numbers share one random word."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops

from keras_txf.backend.random import dropout


def drop(x, rate, seed=1):
    return drawing.array(dropout(ops.convert_to_tensor(x), rate, keras.random.SeedGenerator(seed)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(30_000,), (100, 301), (5, 60, 101)])
def test_zeros_a_share_and_keeps_the_mean(shape, rate):
    dropped = drop(np.ones(shape, "float32"), rate)
    count = dropped.size
    error = 5 * (rate * (1 - rate) / count) ** 0.5
    assert abs((dropped == 0).mean() - rate) < error
    np.testing.assert_allclose(dropped[dropped != 0], 1 / (1 - rate), rtol=2e-4)  # the rate in 65,536ths
    for neighbours in (dropped[..., 1:] * dropped[..., :-1], dropped[..., 2:] * dropped[..., :-2]):
        assert abs((neighbours != 0).mean() - (1 - rate) ** 2) < 2 * error + 0.002


def test_seeds_decide():
    x = np.ones((4, 50), "float32")
    np.testing.assert_array_equal(drop(x, 0.5), drop(x, 0.5))
    assert (drop(x, 0.5) != drop(x, 0.5, seed=2)).any()
    generator = keras.random.SeedGenerator(3)
    first, second = (drawing.array(dropout(ops.convert_to_tensor(x), 0.5, generator)) for _ in range(2))
    assert (first != second).any()
    assert (first[0] != first[1]).any()
    assert np.isfinite(drop(x, 0.9999999)).all()  # of a rate next to one


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_keeps_the_dtype(dtype):
    dropped = dropout(ops.ones((7, 3), dtype), 0.5, keras.random.SeedGenerator(0))
    assert ops.dtype(dropped) == dtype
    assert set(np.unique(drawing.array(dropped))) == {0.0, 2.0}


def test_gradient_passes_where_the_value_does():
    generator_seed = 5
    x = drawing.normal(6, 9)

    def total(tensor):
        return ops.sum(dropout(tensor, 0.4, keras.random.SeedGenerator(generator_seed)))

    slope = drawing.gradient(total, x)
    np.testing.assert_allclose(slope, (drop(x, 0.4, generator_seed) != 0) / 0.6, rtol=2e-4)
