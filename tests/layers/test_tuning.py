"""Files keep what was done to built layers (int8, adapters, frozen variables), wherever the layer is in a model."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf

IDS = np.random.default_rng(0).integers(1, 11, (3, 5))
HIDDEN = drawing.normal(3, 5, 12)


def block(**options):
    return txf.layers.EncoderBlock(3, position="relative", **options)


MODELS = {  # what stands alone, and within another layer, where paths begin otherwise
    "builder": (lambda: txf.models.decoder_generator(11, 1, 12, 3, token_dim=8, position_encoding="learned",
                                                     max_length=9), IDS),
    "sequential": (lambda: keras.Sequential([keras.Input((None, 12)), block(name="block")]), HIDDEN),
    "wrapper": (lambda: keras.Sequential([keras.Input((2, 5, 12)), keras.layers.TimeDistributed(block())]),
                np.stack([HIDDEN, -HIDDEN], axis=1)),
}  # fmt: skip
every_model = pytest.mark.parametrize("name", MODELS)


def make(name):
    keras.utils.set_random_seed(3)
    build, inputs = MODELS[name]
    return build(), inputs


def saved(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def policies(model):
    return [(layer.name, layer.dtype_policy.name, layer.quantization_mode) for layer in model._flatten_layers()]


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("how", ["int8", "int4", "weights alone"])
def test_a_quantized_model_is_saved_and_saved_again(name, how, tmp_path):
    model, inputs = make(name)
    if how == "weights alone":
        model.quantize(config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))
    else:
        model.quantize(how)
    expected, reloaded = drawing.array(model(inputs)), saved(model, tmp_path)
    for _ in range(2):
        np.testing.assert_array_equal(drawing.array(reloaded(inputs)), expected)
        assert policies(reloaded) == policies(model)
        reloaded = saved(reloaded, tmp_path)


@every_model
def test_frozen_variables_stay_so(name, tmp_path):
    model, _ = make(name)
    txf.training.freeze(model, ["*/attention/query", "*/feed_forward"])
    reloaded = saved(model, tmp_path)
    for one, other in zip(model.weights, reloaded.weights, strict=True):
        assert one.trainable == other.trainable
    assert 0 < len(reloaded.trainable_weights) < len(reloaded.weights)


@pytest.mark.slow
@every_model
def test_adapters_come_back_on_int8(name, tmp_path):
    model, inputs = make(name)
    model.quantize("int8")
    txf.training.add_adapter(model, rank=2, heads=())
    for number, variable in enumerate(model.trainable_variables):
        variable.assign(np.random.default_rng(number).normal(size=variable.shape))
    reloaded = saved(saved(model, tmp_path), tmp_path)
    np.testing.assert_array_equal(drawing.array(reloaded(inputs)), drawing.array(model(inputs)))
    assert len(reloaded.trainable_variables) == len(model.trainable_variables) > 0


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras' own, which finds its scales by a gradient")
def test_the_scales_of_float8_follow_training():
    model, inputs = make("sequential")
    model.quantize("float8")
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    model.fit(inputs, inputs, verbose=0)
    histories = [variable for variable in model.variables if variable.path.endswith("inputs_amax_history")]
    assert histories and all(np.max(ops.convert_to_numpy(history)) > 0 for history in histories)
