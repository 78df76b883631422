"""The builders for images: the paper's size and defaults, names, and what every option does."""

import inspect

import drawing
import keras
import numpy as np
import pytest
from block_options import BLOCK_OPTIONS
from cases import assert_same, numpy

import keras_txf as txf

IMAGES = drawing.normal(2, 6, 8, 3)
LARGER = drawing.normal(2, 10, 12, 3)

# 2 layers of dim 12 and 3 heads; 3 rows of 2 patches.
BUILDERS = {
    "image_encoder": lambda **options: txf.models.image_encoder((6, 8), (2, 4), 2, 12, 3, **options),
    "image_classifier": lambda **options: txf.models.image_classifier((6, 8), (2, 4), 5, 2, 12, 3, **options),
}
builders = pytest.mark.parametrize("name", BUILDERS)


def blocks_of(model):
    return [layer for layer in model.layers if isinstance(layer, txf.layers.EncoderBlock)]


def test_base_model_has_the_papers_size():
    block = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    # One of twelve blocks, for the others are alike. Table 1 of the paper says 86 million.
    model = txf.models.image_classifier(224, 16, 1000, 1, 768, 12)
    assert model.count_params() + 11 * block == 86_567_656
    assert model.get_layer("encoder_0").count_params() == block


@drawing.not_on_jax
@builders
def test_defaults_are_the_papers(name):
    model = BUILDERS[name]()
    for block in blocks_of(model):
        assert (block.norm_placement, block.activation, block.dropout) == ("pre", "gelu", 0.1)
    embedding = model.get_layer("embedding")
    assert embedding.class_token and embedding.position_encoding == "learned" and embedding.use_bias
    assert "encoder_norm" in [layer.name for layer in model.layers]


@drawing.not_on_jax
def test_weights_have_the_names_that_converters_rely_on():
    model = BUILDERS["image_classifier"]()
    expected = {"logits/kernel", "logits/bias", "encoder_norm/gamma", "encoder_norm/beta"}
    expected |= {f"embedding/{name}" for name in ("class_token", "position/embeddings", "patch/kernel", "patch/bias")}
    for block in ("encoder_0", "encoder_1"):
        for name in ("query", "key", "value", "output"):
            expected |= {f"{block}/attention/{name}/{weight}" for weight in ("kernel", "bias")}
        for name in ("intermediate", "output"):
            expected |= {f"{block}/feed_forward/{name}/{weight}" for weight in ("kernel", "bias")}
        for name in ("attention_norm", "feed_forward_norm"):
            expected |= {f"{block}/{name}/{weight}" for weight in ("gamma", "beta")}
    assert {weight.path for weight in model.weights} == expected
    assert model.get_layer("embedding").patch.kernel.shape == (2 * 4 * 3, 12)


ENCODER_OPTIONS = {**BLOCK_OPTIONS, "causal": True, "output_projection": True}


@drawing.not_on_jax
@builders
def test_every_option_reaches_the_layers(name):
    model = BUILDERS[name](
        **ENCODER_OPTIONS, position_encoding="learned", interpolate_positions=True, patch_bias=False,
        embeddings_initializer="zeros", dtype="mixed_bfloat16",
    )  # fmt: skip
    parameters = inspect.signature(txf.layers.EncoderBlock).parameters
    # Images have no convolution; norm_attention needs norm_placement="pre"; layers are in layers/test_parts.py.
    apart = {"convolution", "norm_attention", "attention", "feed_forward"}
    assert parameters.keys() - {"num_heads", "kwargs"} - apart == ENCODER_OPTIONS.keys()
    for i, block in enumerate(blocks_of(model)):
        for option, value in ENCODER_OPTIONS.items():
            actual = getattr(block, option)
            if option == "kernel_initializer":
                actual, value = type(actual).__name__, "HeNormal"
            assert actual == (value[i] if isinstance(value, tuple) else value), option
    embedding = model.get_layer("embedding")
    assert embedding.interpolate_positions and not embedding.use_bias and embedding.class_token
    assert isinstance(embedding.embeddings_initializer, keras.initializers.Zeros)
    assert {layer.dtype_policy.name for layer in model.layers} == {"mixed_bfloat16", keras.config.dtype_policy().name}


@pytest.mark.long
@builders
@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_positions_of_attention_take_the_place_of_learned_ones(name, position):
    model = BUILDERS[name](position=position)
    assert model.get_layer("embedding").position_encoding is None
    assert (
        BUILDERS[name](position=position, position_encoding="learned").get_layer("embedding").position_encoding
        == "learned"
    )
    drawing.randomize(model)
    turned = IMAGES.reshape(2, 3, 2, 8, 3)[:, ::-1].reshape(2, 6, 8, 3)  # the rows of patches, the last first
    assert drawing.difference(model(IMAGES), model(turned)) > 1e-3


def test_without_positions_the_class_token_does_not_know_where_patches_are():
    model = drawing.randomize(BUILDERS["image_classifier"](position_encoding=None))
    turned = IMAGES.reshape(2, 3, 2, 8, 3)[:, ::-1].reshape(2, 6, 8, 3)
    assert_same(numpy(model(IMAGES)), numpy(model(turned)), tolerance=1e-4)


def test_pooling_decides_whether_there_is_a_class_token():
    build = BUILDERS["image_classifier"]
    assert not build(pooling="mean").get_layer("embedding").class_token
    assert build(pooling="mean", class_token=True).get_layer("embedding").class_token


@pytest.mark.parametrize("pooling", ["others", "first_and_others"])
def test_pooling_tells_the_class_token_from_the_patches(pooling):
    model = drawing.randomize(BUILDERS["image_classifier"](pooling=pooling, pooling_norm=True, norm_epsilon=0.1))
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(IMAGES))[0].astype("float64")
    pooled = hidden[:, 1:].mean(1)
    if pooling == "first_and_others":
        pooled = np.concatenate([hidden[:, 0], pooled], axis=1)
    gamma, beta = (drawing.array(weight) for weight in model.get_layer("pooling_norm").weights)
    scale = np.sqrt(pooled.var(1, keepdims=True) + 0.1)
    normed = (pooled - pooled.mean(1, keepdims=True)) / scale * gamma + beta
    kernel, bias = (drawing.array(weight) for weight in model.get_layer("logits").weights)
    np.testing.assert_allclose(numpy(model(IMAGES))[0], normed @ kernel + bias, atol=1e-4)
    with pytest.raises(ValueError, match=f"pooling='{pooling}' takes the class token"):
        BUILDERS["image_classifier"](pooling=pooling, class_token=False)


@pytest.mark.parametrize("pooling", ["first", "mean", "max", "others", "first_and_others"])
def test_no_pooling_reads_the_registers(pooling):
    model = drawing.randomize(BUILDERS["image_classifier"](pooling=pooling, register_tokens=2, class_token=True))
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(IMAGES))[0]
    assert hidden.shape == (2, 9, 12)
    pooled = numpy(txf.layers.Pooling(pooling)(np.delete(hidden, [1, 2], axis=1)))[0]
    kernel, bias = (drawing.array(weight) for weight in model.get_layer("logits").weights)
    np.testing.assert_allclose(numpy(model(IMAGES))[0], pooled @ kernel + bias, atol=1e-4)
    plain = BUILDERS["image_classifier"](pooling=pooling, class_token=True)
    assert [layer.name for layer in plain.layers if layer.name == "pooled_tokens"] == []


def test_a_distillation_head_has_its_share_of_the_logits():
    model = drawing.randomize(BUILDERS["image_classifier"](distillation_token=True, distillation_head=True))
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(IMAGES))[0]
    assert hidden.shape == (2, 8, 12)
    logits = [
        hidden[:, i] @ drawing.array(model.get_layer(name).kernel) + drawing.array(model.get_layer(name).bias)
        for i, name in enumerate(("logits", "distillation_logits"))
    ]
    np.testing.assert_allclose(numpy(model(IMAGES))[0], sum(logits) / 2, atol=1e-5)
    with pytest.raises(ValueError, match="distillation_head=True needs distillation_token=True"):
        BUILDERS["image_classifier"](distillation_head=True)


def test_outputs_on_request():
    model = drawing.randomize(BUILDERS["image_encoder"](return_hidden_states=True, return_attention_scores=True))
    outputs = {name: numpy(output)[0] for name, output in model(IMAGES).items()}
    assert outputs.keys() == {
        "output",
        *(f"hidden_states_{i}" for i in range(3)),
        *(f"attention_scores_{i}" for i in range(2)),
    }
    x = model.get_layer("embedding")(IMAGES)
    expected = [x, *(x := block(x, return_attention_scores=True)[0] for block in blocks_of(model))]
    expected[-1] = model.get_layer("encoder_norm")(expected[-1])
    assert_same([outputs[f"hidden_states_{i}"] for i in range(3)], numpy(expected), tolerance=1e-5)
    np.testing.assert_array_equal(outputs["output"], outputs["hidden_states_2"])
    assert outputs["attention_scores_1"].shape == (2, 3, 7, 7)


@builders
def test_a_model_for_other_sizes_takes_the_weights(name):
    fixed = drawing.randomize(BUILDERS[name]())
    free = BUILDERS[name](interpolate_positions=True)
    free.set_weights(fixed.get_weights())
    assert free.input.shape == (None, None, None, 3) and fixed.input.shape == (None, 6, 8, 3)
    assert_same(numpy(free(IMAGES)), numpy(fixed(IMAGES)), tolerance=1e-5)
    assert np.isfinite(numpy(free(LARGER))[0]).all()


def test_images_of_any_size_and_one_channel():
    model = txf.models.image_encoder(None, 2, 1, 12, 3, channels=1, position_encoding="sinusoidal")
    for size in ((4, 6), (8, 2)):
        assert model(drawing.normal(2, *size, 1)).shape == (2, size[0] * size[1] // 4 + 1, 12)


@pytest.mark.slow
def test_learns_to_tell_patches_apart():
    """Which quarter of the image is bright: needs the patches in their places."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 128)
    images = random.normal(0, 0.1, (128, 8, 8, 1)).astype("float32")
    for image, label in zip(images, labels):
        image[label // 2 * 4 :][:4, label % 2 * 4 :][:, :4] += 1
    model = txf.models.image_classifier(8, 4, 4, 1, 16, 2, channels=1, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(True), metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=32, epochs=40, verbose=0).history
    assert history["accuracy"][-1] > 0.95
