"""GPTQ and AWQ, which Keras 3.15 computes wrongly, are refused."""

import drawing
import keras
import numpy as np
import pytest

import keras_txf as txf

CONFIGS = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}
IDS = np.random.default_rng(0).integers(1, 13, (5, 6))
MODELS = {
    "encoder_classifier": lambda: txf.models.encoder_classifier(13, 3, 1, 8, 2),
    "decoder_generator": lambda: txf.models.decoder_generator(13, 1, 8, 2),
    "encoder_decoder": lambda: txf.models.encoder_decoder(13, 13, 1, 8, 2),
    "image_classifier": lambda: txf.models.image_classifier(4, 2, 3, 1, 8, 2),
}


def config(mode, ids=IDS, structure=None):
    return CONFIGS[mode](
        list(ids), "no text", num_samples=4, sequence_length=6, group_size=4, quantization_layer_structure=structure
    )


# Keras' embeddings warn, and stay as they are.
@pytest.mark.filterwarnings("ignore:Invalid quantization mode:UserWarning")
@pytest.mark.parametrize("mode", CONFIGS)
@pytest.mark.parametrize("name", MODELS)
def test_refused_before_anything_is_changed(mode, name):
    model = MODELS[name]()
    before = model.get_weights()
    for options in ({}, {"structure": {"pre_block_layers": model.layers[1:2], "sequential_blocks": model.layers[2:3]}}):
        with pytest.raises(ValueError, match=f"`mode` must be 'int8', 'int4' or 'float8' .* '{mode}'.*Keras 3.15"):
            model.quantize(mode, config=config(mode, **options))
    assert all(getattr(layer, "quantization_mode", None) is None for layer in model._flatten_layers())
    for array, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(array, expected)


def dense(mode, ids=IDS):
    """A Dense layer of Keras' own, quantized by it: its kernel, its integers, and the outputs before and after."""
    keras.utils.set_random_seed(1)
    token_ids, embedding = keras.Input((None,), dtype="int32"), keras.layers.Embedding(13, 8)
    layer = keras.layers.Dense(8)
    block = keras.Sequential([layer])
    model = keras.Model(token_ids, block(embedding(token_ids)))
    layer.kernel.assign(np.abs(drawing.array(layer.kernel)) + 0.5)
    before = drawing.array(model(IDS))
    structure = {"pre_block_layers": [embedding], "sequential_blocks": [block]}
    model.quantize(mode, config=config(mode, ids, structure), filters=lambda inner: inner is layer)
    return drawing.array(layer.quantized_kernel), before, drawing.array(model(IDS))


@pytest.mark.slow
@pytest.mark.parametrize("mode", CONFIGS)
def test_keras_still_computes_them_wrongly(mode):
    """If this fails, Keras has mended one of the two, and the refusal is to be thought over."""
    integers, before, after = dense(mode)
    assert np.abs(after - before).max() > np.abs(before).max()
    np.testing.assert_array_equal(dense(mode, np.full_like(IDS, 7))[0], integers)
