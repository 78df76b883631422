"""LoRA on Keras' EinsumDense: against NumPy in float64, and inside Keras' own attention."""

import keras
import numpy as np
import pytest
from adapter_cases import array, fit, run, same, values
from keras import layers
from refusals import refused

import keras_txf as txf
from keras_txf.layers.adapters import attach
from keras_txf.training import add_adapter, merge_adapter, remove_adapter, use_adapter

random = np.random.default_rng(0)
# equation, shapes of x and of the output without the batch, axes of the bias, shapes of A and B of rank 2
EINSUMS = [
    ("abc,cde->abde", (5, 3), (None, 4, 7), "de", (3, 4, 2), (2, 7)),  # to heads
    ("abcd,cde->abe", (5, 4, 7), (None, 3), "e", (4, 7, 2), (2, 3)),  # from heads
    ("...x,xy->...y", (5, 3), 7, "y", (3, 2), (2, 7)),  # as Dense
    ("abc,dc->abd", (5, 3), (None, 7), "d", (7, 2), (2, 3)),  # the last axis is summed over
    ("abc,bdc->abcd", (5, 3), (5, 3, 7), None, (5, 7, 2), (2, 3)),  # or is in both
]


@pytest.mark.parametrize("equation, inputs, outputs, axes, of_a, of_b", EINSUMS)
def test_against_numpy(equation, inputs, outputs, axes, of_a, of_b):
    layer = layers.EinsumDense(equation, outputs, bias_axes=axes, bias_initializer="normal")
    model = keras.Sequential([keras.Input(inputs), layer])
    before = values(model.weights)
    add_adapter(model, rank=2, alpha=3, targets="*", heads=())
    a, b = model.trainable_variables
    assert (a.shape, b.shape) == (of_a, of_b) and not array(b).any()
    b.assign(random.normal(size=of_b))
    kernel, bias, a0, b0 = (
        array(v).astype("float64") for v in (layer._kernel, 0 if axes is None else layer.bias, a, b)
    )
    x, equation = random.normal(size=(6, *inputs)), equation.replace("...", "ab")
    expected = np.einsum(equation, x, kernel + 3 / 2 * a0 @ b0) + bias
    np.testing.assert_allclose(run(model, x.astype("float32")), expected, atol=1e-5)

    y = random.normal(size=expected.shape)
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    model.fit(x, y, batch_size=6, verbose=0)
    terms, out = equation.split("->")
    x_axes, kernel_axes = terms.split(",")
    upstream = 2 * (expected - y) / y.size
    of_kernel = np.einsum(f"{x_axes},{out}->{kernel_axes}", x, upstream)
    np.testing.assert_allclose(array(a), a0 - 0.1 * 1.5 * of_kernel @ b0.T, atol=1e-6)
    of_b = a0.reshape(-1, 2).T @ of_kernel.reshape(-1, of_b[1])
    np.testing.assert_allclose(array(b), b0 - 0.1 * 1.5 * of_b, atol=1e-6)
    same(values(v for v in model.weights if v.path in before), before)

    tuned = run(model, x.astype("float32"))
    merge_adapter(model)
    np.testing.assert_allclose(run(model, x.astype("float32")), tuned, atol=1e-5)
    assert len(model.weights) == len(before)


def test_a_begins_as_that_of_a_dense_layer():
    model = keras.Sequential([keras.Input((None, 400)), layers.EinsumDense("abc,cde->abde", (None, 4, 3))])
    add_adapter(model, rank=50, targets="*", heads=())
    assert 0.049 < abs(array(model.trainable_variables[0])).max() <= 0.05  # ± 1 / sqrt(400)


@pytest.mark.parametrize("mode", ["int8", "int4", keras.quantizers.Int4QuantizationConfig(block_size=2)])
@pytest.mark.parametrize("equation, inputs, outputs, axes, of_a, of_b", EINSUMS[:2])
def test_quantized(mode, equation, inputs, outputs, axes, of_a, of_b):
    x = random.normal(size=(6, *inputs)).astype("float32")
    layer = layers.EinsumDense(equation, outputs)
    layer.build(x.shape)
    kernel = array(layer.kernel)
    layer.quantize(mode) if isinstance(mode, str) else layer.quantize(config=mode)
    bare, is_int8 = run(layer, x), mode == "int8"
    attach(layer, "whole", "whole")
    dequantized = array(layer.adapters["whole"].variables["kernel"])
    np.testing.assert_allclose(dequantized, kernel, atol=0.01 if is_int8 else 0.5)
    np.testing.assert_allclose(bare, np.einsum(equation, x, dequantized), atol=0.05 if is_int8 else 1e-5)
    attach(layer, "default", "low_rank", rank=2, alpha=3, dropout=0.0)
    layer.adapters.active = "default"
    a, b = layer.adapters["default"].variables.values()
    assert (a.shape, b.shape) == (of_a, of_b)
    b.assign(random.normal(size=of_b))
    np.testing.assert_allclose(run(layer, x), bare + 1.5 * np.einsum(equation, x, array(a) @ array(b)), atol=1e-5)


def attention():
    """A model of Keras' own attention."""
    keras.utils.set_random_seed(3)
    x = keras.Input((None, 8))
    hidden = layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    hidden = layers.GroupQueryAttention(3, 4, 2, name="grouped")(hidden, hidden)
    return keras.Model(x, layers.Dense(4, name="logits")(hidden))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "int8", "int4"])
def test_attention_of_keras_is_trained_saved_and_merged(mode, tmp_path):
    x = random.normal(size=(6, 5, 8)).astype("float32")
    model, other = attention(), attention()
    if mode:
        model.quantize(mode), other.quantize(mode)
    bare = run(model, x)
    add_adapter(model, rank=2, dropout=0.1, targets=["*/query", "*/value", "*/attention_output"], heads=())
    np.testing.assert_allclose(run(model, x), bare, atol=1e-6)
    assert len(model.trainable_variables) == 12
    before = values(model.non_trainable_variables)
    fit(model, x, rate=0.1)
    tuned = run(model, x)
    assert np.abs(tuned - bare).max() > 1e-2
    same({k: v for k, v in values(model.non_trainable_variables).items() if "seed" not in k},
         {k: v for k, v in before.items() if "seed" not in k})  # fmt: skip

    txf.training.save_adapter(model, tmp_path / "one.safetensors")
    txf.training.load_adapter(other, tmp_path / "one.safetensors", "other")
    np.testing.assert_allclose(run(other, x), tuned, atol=1e-5)
    use_adapter(other, None)
    np.testing.assert_allclose(run(other, x), bare, atol=1e-6)
    refused(lambda: model.save(tmp_path / "model.keras"), ["adapters inside attention, a MultiHeadAttention"])
    (remove_adapter if mode else merge_adapter)(model)
    np.testing.assert_allclose(run(model, x), bare if mode else tuned, atol=1e-4)
    model.save(tmp_path / "model.keras")


def test_bad_calls_raise_value_errors():
    model, lora = attention(), attention()
    model.quantize("float8")
    lora.get_layer("attention").query_dense.enable_lora(2)
    for one, words in ((model, "attention/query is float8"), (lora, "attention/query has, from `enable_lora`")):
        refused(lambda: add_adapter(one), [words])
