"""A product of one row in parts, as decoding has it on a CPU, is the product."""

import keras
import numpy as np
import pytest

from keras_txf.backend import compilers
from keras_txf.layers.projections import Projection

pytestmark = pytest.mark.skipif(keras.backend.backend() == "torch", reason="XLA compiles on TensorFlow and JAX")


def compiled(function):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    import jax

    return jax.jit(function)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_product_of_one_row_in_parts_equals_numpy(use_bias, monkeypatch):
    taken = []
    multiply = compilers.multiply_one_row
    patched = "keras_txf.layers.projections.multiply_one_row"
    monkeypatch.setattr(patched, lambda *args: taken.append(1) or multiply(*args))
    layer = Projection(512, use_bias=use_bias, bias_initializer="glorot_normal")
    layer.build((None, None, 256))
    x = np.random.default_rng(0).normal(size=(1, 1, 256)).astype("float32")
    expected = x.astype("float64") @ np.asarray(keras.ops.convert_to_numpy(layer.kernel), "float64")
    if use_bias:
        expected = expected + keras.ops.convert_to_numpy(layer.bias)
    result = compiled(layer)(keras.ops.convert_to_tensor(x))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(result), expected, rtol=1e-5, atol=1e-5)
    assert taken == ([1] if keras.backend.backend() == "tensorflow" or compilers._jax_compiles_for_cpu() else [])


@pytest.mark.parametrize("shape, units, dtype", [
    ((2, 1, 256), 512, "float32"), ((1, 2, 256), 512, "float32"), ((1, 1, 254), 512, "float32"),
    ((1, 1, 8), 8, "float32"), ((1, 1, 256), 512, "bfloat16"),
])  # fmt: skip
def test_other_products_are_not_split(shape, units, dtype):
    assert not compilers.is_one_row(keras.ops.zeros(shape, dtype), keras.ops.zeros((shape[-1], units), dtype))
