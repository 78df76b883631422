"""The builders for images: the paper's size and defaults, names, and what every option does."""

import drawing
import keras
import numpy as np
import pytest
from cases import assert_same, numpy
from refusals import refused

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
    # One of twelve equal blocks. Table 1 of the paper gives 86 million.
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


@pytest.mark.drawn(6)
@builders
@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_positions_in_attention_replace_learned_positions(name, position):
    model = BUILDERS[name](position=position)
    assert model.get_layer("embedding").position_encoding is None
    both = BUILDERS[name](position=position, position_encoding="learned")
    assert both.get_layer("embedding").position_encoding == "learned"
    drawing.randomize(model)
    turned = IMAGES.reshape(2, 3, 2, 8, 3)[:, ::-1].reshape(2, 6, 8, 3)  # the rows of patches, the last first
    assert drawing.difference(model(IMAGES), model(turned)) > 1e-3


def test_without_positions_the_class_token_does_not_depend_on_the_order_of_patches():
    model = drawing.randomize(BUILDERS["image_classifier"](position_encoding=None))
    turned = IMAGES.reshape(2, 3, 2, 8, 3)[:, ::-1].reshape(2, 6, 8, 3)
    assert_same(numpy(model(IMAGES)), numpy(model(turned)), tolerance=1e-4)


def test_pooling_decides_whether_there_is_a_class_token():
    build = BUILDERS["image_classifier"]
    assert not build(pooling="mean").get_layer("embedding").class_token
    assert build(pooling="mean", class_token=True).get_layer("embedding").class_token


def test_a_layer_pools_patches():
    layer = keras.layers.GlobalMaxPooling1D(name="mine")
    model = drawing.randomize(BUILDERS["image_classifier"](pooling=layer, return_hidden_states=True))
    outputs = {name: drawing.array(value) for name, value in model(IMAGES).items()}
    last = max(name for name in outputs if name.startswith("hidden"))
    kernel, bias = (drawing.array(weight) for weight in model.get_layer("logits").weights)
    np.testing.assert_allclose(outputs["logits"], outputs[last].max(axis=1) @ kernel + bias, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="must return vectors"):
        BUILDERS["image_classifier"](pooling=txf.layers.FeedForward(8))


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
    with pytest.raises(ValueError, match=f"pooling='{pooling}' needs the class token"):
        BUILDERS["image_classifier"](pooling=pooling, class_token=False)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("pooling", ["first", "mean", "max", "others", "first_and_others"])
def test_no_pooling_reads_the_registers(pooling):
    model = drawing.randomize(BUILDERS["image_classifier"](pooling=pooling, register_tokens=2, class_token=True))
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(IMAGES))[0]
    assert hidden.shape == (2, 9, 12)
    pooled = numpy(txf.layers.Pooling(pooling)(np.delete(hidden, [1, 2], axis=1)))[0]
    kernel, bias = (drawing.array(weight) for weight in model.get_layer("logits").weights)
    np.testing.assert_allclose(numpy(model(IMAGES))[0], pooled @ kernel + bias, atol=1e-4)
    plain = BUILDERS["image_classifier"](pooling=pooling, class_token=True)
    assert "pooled_tokens" not in [layer.name for layer in plain.layers]


def test_logits_are_the_mean_with_those_of_the_distillation_head():
    model = drawing.randomize(BUILDERS["image_classifier"](distillation_token=True, distillation_head=True))
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_norm").output)(IMAGES))[0]
    assert hidden.shape == (2, 8, 12)
    heads = [[drawing.array(weight) for weight in model.get_layer(name).weights] for name in
             ("logits", "distillation_logits")]  # fmt: skip
    logits = [hidden[:, i] @ kernel + bias for i, (kernel, bias) in enumerate(heads)]
    np.testing.assert_allclose(numpy(model(IMAGES))[0], sum(logits) / 2, atol=1e-5)
    with pytest.raises(ValueError, match="distillation_head=True needs distillation_token=True"):
        BUILDERS["image_classifier"](distillation_head=True)


@builders
def test_a_model_for_other_sizes_has_the_same_weights(name):
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


@pytest.mark.parametrize("class_token", [False, True])
def test_pixels_that_fill_no_patch_are_dropped(class_token):
    options = dict(num_layers=1, dim=12, num_heads=3, class_token=class_token)
    model = drawing.randomize(txf.models.image_encoder((7, 11), (2, 4), drop_remainder=True, **options))
    cut = txf.models.image_encoder((6, 8), (2, 4), **options)
    cut.set_weights(model.get_weights())
    images = drawing.normal(2, 7, 11, 3)
    drawing.assert_same(model(images), cut(images[:, :6, :8]))
    refused(lambda: txf.models.image_encoder((7, 11), (2, 4), **options), ["`patch_size` must divide", "(7, 11)"])
    refused(lambda: txf.models.image_encoder((1, 8), (2, 4), drop_remainder=True, **options), ["room for a patch"])
