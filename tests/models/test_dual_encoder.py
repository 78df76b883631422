"""dual_encoder: both towers are the encoders that there are, and what compares them is what NumPy computes."""

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf
from keras_txf.layers.norms import UnitNormalization

IMAGES = drawing.normal(3, 6, 8, 3)
IDS = np.array([[5, 9, 3, 9], [9, 2, 2, 2]])
PAIRS = {"images": IMAGES, "token_ids": IDS}
# Towers of different depths, widths and heads.
IMAGE = {"num_layers": 2, "dim": 10, "num_heads": 5, "embedding_norm": True}
TEXT = {"num_layers": 1, "num_heads": 2, "position_encoding": "learned", "max_length": 7}


def make(**options):
    sizes = dict(image_size=(6, 8), patch_size=(2, 4), vocab_size=11, num_layers=3, dim=12, num_heads=3)
    given = {"image_options": IMAGE, "text_options": TEXT, "projection_dim": 7, **options}
    return drawing.randomize(txf.models.dual_encoder(**sizes, **given))


def renamed(model, prefix):
    """The weights of a tower by their paths in an encoder alone."""
    return {weight.path.removeprefix(prefix): weight for weight in model.weights if weight.path.startswith(prefix)}


def test_towers_equal_models_of_the_other_builders():
    model = make(return_hidden_states=True)
    outputs = model(PAIRS)
    options = {"activation": "gelu_sigmoid", "norm_placement": "pre", "return_hidden_states": True}
    image = txf.models.image_encoder((6, 8), (2, 4), **{**options, **IMAGE})
    text = txf.models.encoder(11, **{"dim": 12, "causal": True, **options, **TEXT})
    for name, tower, inputs in (("image", image, IMAGES), ("text", text, IDS)):
        values = renamed(model, f"{name}_")
        for weight in tower.weights:
            weight.assign(values[weight.path])
        states = tower(inputs)
        for i in range(2 if name == "text" else 3):
            drawing.assert_same(outputs[f"{name}_hidden_states_{i}"], states[f"hidden_states_{i}"])
        assert f"{name}_hidden_states_{i + 1}" not in outputs


@pytest.mark.parametrize("bias", [None, -1.5])
def test_logits_are_scaled_cosines_of_the_projected_vectors(bias):
    model = make(logit_bias=bias, projection_bias=bias is not None, return_hidden_states=True)
    outputs = {name: drawing.array(tensor).astype("float64") for name, tensor in model(PAIRS).items()}
    values = {weight.path: drawing.array(weight).astype("float64") for weight in model.weights}
    pooled = {"image": outputs["image_hidden_states_2"][:, 0], "text": outputs["text_hidden_states_1"][:, -1]}
    for name, vectors in pooled.items():
        vectors = vectors @ values[f"{name}_projection/kernel"] + values.get(f"{name}_projection/bias", 0)
        pooled[name] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(outputs[f"{name}_embeddings"], pooled[name], atol=1e-5)
    logits = np.exp(values["logits/logit_scale"]) * pooled["image"] @ pooled["text"].T
    np.testing.assert_allclose(outputs["logits"], logits + values.get("logits/logit_bias", 0), atol=1e-5)
    assert outputs["logits"].shape == (3, 2) and ("logits/logit_bias" in values) == (bias is not None)


def test_a_text_is_the_state_of_its_first_end_token():
    model = make(end_id=9, return_hidden_states=True)
    outputs = model(PAIRS)
    changed = np.array([[5, 9, 7, 2], [9, 9, 4, 1]])  # after the first 9
    drawing.assert_same(model({**PAIRS, "token_ids": changed})["text_embeddings"], outputs["text_embeddings"])
    longer = np.pad(IDS, [(0, 0), (0, 2)], constant_values=9)
    drawing.assert_same(model({**PAIRS, "token_ids": longer})["text_embeddings"], outputs["text_embeddings"])
    earlier = IDS.copy()
    earlier[0, 0] = 6
    other = model({**PAIRS, "token_ids": earlier})["text_embeddings"]
    assert drawing.difference(other, outputs["text_embeddings"]) > 0.01
    # A text without the token ends with its last one; padding is hidden too.
    without, cut = np.array([[5, 4, 3, 0]] * 2), np.array([[5, 4, 3]] * 2)
    drawing.assert_same(*(model({**PAIRS, "token_ids": ids})["text_embeddings"] for ids in (without, cut)))


def test_a_bidirectional_tower_attends_to_padding_only_if_there_is_none():
    hides, sees = (make(text_options={**TEXT, "causal": False, "pad_id": pad}) for pad in (0, None))
    padded = np.pad(IDS, [(0, 0), (0, 2)])
    for model, same in ((hides, True), (sees, False)):
        pair = (model({**PAIRS, "token_ids": ids})["text_embeddings"] for ids in (IDS, padded))
        assert (drawing.difference(*pair) < 1e-5) == same


def test_a_tower_alone():
    model = make()
    outputs = model(PAIRS)
    for inputs, name, given in (("images", "image_embeddings", IMAGES), ("token_ids", "text_embeddings", IDS)):
        tower = keras.Model(model.input[inputs], model.output[name])
        drawing.assert_same(tower.predict(given, verbose=0), outputs[name])


def test_defaults_equal_the_papers():
    model = txf.models.dual_encoder(8, 4, 11, 1, 8, 2)
    image, text = model.get_layer("image_encoder_0"), model.get_layer("text_encoder_0")
    assert (image.causal, text.causal) == (False, True)
    assert {block.norm_placement for block in (image, text)} == {"pre"}
    assert {block.activation for block in (image, text)} == {"gelu_sigmoid"}
    scale = model.get_layer("logits").logit_scale
    assert np.exp(drawing.array(scale)) == pytest.approx(1 / 0.07, rel=1e-5) and scale.constraint is not None
    assert model.get_layer("image_embedding").class_token
    pooled = txf.models.dual_encoder(8, 4, 11, 1, 8, 2, image_pooling="mean")
    assert not pooled.get_layer("image_embedding").class_token


@pytest.mark.parametrize("most", [20.0, None])
def test_training_keeps_the_factor_below_its_limit(most):
    scale = make(max_logit_scale=most).get_layer("logits").logit_scale
    scale.assign(np.log(19.0))
    keras.optimizers.SGD(1.0).apply([keras.ops.convert_to_tensor(-1.0)], [scale])
    factor = np.exp(drawing.array(scale))
    assert factor == pytest.approx(20.0 if most else 19 * np.e, rel=1e-5)


@pytest.mark.long
def test_a_text_that_is_all_padding_has_a_zero_vector_and_finite_gradients():
    """Keras' unit norm has a gradient of NaN on JAX and PyTorch there, and is NaN itself in float16."""
    half = UnitNormalization(dtype="float16")(np.array([[0, 0], [3, 4]], "float16"))
    np.testing.assert_allclose(drawing.array(half), [[0, 0], [0.6, 0.8]], atol=1e-3)
    model, ids = make(), np.where([[True], [False]], 0, IDS)
    model.compile("sgd", loss={"logits": txf.training.SoftmaxContrastiveLoss()})
    model.fit({"images": IMAGES[:2], "token_ids": ids}, {"logits": np.arange(2)}, verbose=0)
    assert all(np.isfinite(drawing.array(weight)).all() for weight in model.weights)


def test_wrong_options_raise_value_error():
    refused(lambda: make(image_options=3), ["`image_options`", "dict", "3"])
    refused(lambda: make(text_options={"class_token": True}), ["'class_token' is not an option of `text_options`"])
    refused(lambda: make(end_id=11), ["`end_id`", "11"])
    refused(lambda: make(image_pooling="middle"), ["`image_pooling`", "'middle'"])
    refused(lambda: make(image_projection=False), ["image_projection=False", "projection_dim=7", "10"])
    refused(lambda: make(logit_scale=0), ["`logit_scale`", "0"])
    refused(lambda: make(image_pooling="first", image_options={"class_token": False}), ["image_pooling='first'"])
