"""Inputs of models of tokens: ids in all forms that Keras accepts, and errors for numbers that are not ids."""

import keras
import numpy as np
import pytest
from cases import assert_same, numpy
from refusals import built, refused

import keras_txf as txf

models = txf.models
SIZES = dict(num_layers=1, dim=8, num_heads=2)
BUILDERS = {
    "encoder": lambda **o: models.encoder(11, **SIZES, **o),
    "encoder_classifier": lambda **o: models.encoder_classifier(11, 3, **SIZES, **o),
    "token_classifier": lambda **o: models.token_classifier(11, 3, **SIZES, **o),
    "span_classifier": lambda **o: models.span_classifier(11, **SIZES, **o),
    "masked_language_model": lambda **o: models.masked_language_model(11, **SIZES, **o),
    "decoder_generator": lambda **o: models.decoder_generator(11, **SIZES, **o),
}
IDS = np.array([[1, 2, 3, 0], [4, 5, 6, 7]])
BAD = [
    (IDS + 0.5, ["integers", "fractions"]), (np.full((2, 4), np.nan), ["integers", "fractions"]),
    (IDS > 3, ["integers", "bool"]), (IDS + 2**32, ["32 bits"]), ("text", ["array"]),
    (np.array([["a", "b"]]), ["array"]), ([[1], [2, 3]], ["array"]),
]  # fmt: skip


@pytest.mark.parametrize("name", BUILDERS)
def test_wrong_ids_raise_value_error_with_the_name_of_the_input(name):
    model = BUILDERS[name]()
    for ids, words in BAD:
        refused(lambda: model(ids), ["`token_ids`", *words])


def test_each_input_of_several_has_its_name():
    model, ids = models.encoder_decoder(11, 11, **SIZES), {"source_ids": IDS, "target_ids": IDS}
    for name in ids:
        refused(lambda: model({**ids, name: IDS + 0.5}), [f"`{name}`", "fractions"])
        refused(lambda: model({**ids, name: [[1], [2, 3]]}), [f"`{name}`", "array"])
    values = [ids[symbol.name] for symbol in model.inputs]
    refused(lambda: model([values[0], IDS + 0.5]), [f"`{model.inputs[1].name}`", "fractions"])
    packed = models.encoder(11, **SIZES, packed=True)
    rows = {"token_ids": IDS, "segment_ids": np.ones_like(IDS), "positions": IDS}
    for name in rows:
        refused(lambda: packed({**rows, name: IDS + 0.5}), [f"`{name}`", "fractions"])
    decoder = models.decoder(11, **SIZES)
    context = np.ones((2, 3, 8), "float32")
    refused(lambda: decoder({"target_ids": IDS + 0.5, "context": context}), ["`target_ids`", "fractions"])


def test_ids_in_every_form_are_the_same_ids():
    model = BUILDERS["encoder"]()
    expected = numpy(model(IDS))
    arrays = [IDS.astype(dtype) for dtype in ("float32", "float64", "uint8")]
    for form in (IDS.tolist(), *arrays, keras.ops.convert_to_tensor(IDS)):
        assert_same(numpy(model(form)), expected, 1e-6)
    assert_same([model.predict(IDS.astype("float64"), verbose=0)], expected, 1e-6)


def test_a_size_beyond_int32_raises_before_anything_is_built():
    for name in ("vocab_size", "num_layers", "dim", "num_heads", "intermediate_dim", "max_length"):
        refused(lambda: models.encoder(**{"vocab_size": 11, **SIZES, name: 10**30}), [f"`{name}`", "2**31"])


def test_an_unknown_key_raises_value_error_with_its_name():
    """Keras would order all of the dict by its keys, and take one input for another."""
    model = models.encoder_decoder(11, 11, **SIZES)
    refused(lambda: model({"source_ids": IDS, "target_ids": IDS, "labels": IDS}), ["`inputs`", "labels"])
    packed = models.decoder_generator(11, **SIZES, packed=True)
    rows = {"token_ids": IDS, "segment_ids": np.ones_like(IDS), "positions": IDS}
    refused(lambda: packed({**rows, "labels": IDS}), ["`inputs`", "labels"])
    prefill = models.prefill_model(BUILDERS["decoder_generator"]())
    rows = {"token_ids": IDS, "attention_mask": np.ones((2, 5), bool)}
    refused(lambda: prefill({**rows, "more": IDS}), ["`inputs`", "more"])


@pytest.mark.parametrize("name", ["encoder_classifier", "decoder_generator", "encoder_decoder", "image_classifier"])
@pytest.mark.parametrize("loss", [
    "sparse_categorical_crossentropy", keras.losses.binary_crossentropy, [keras.losses.CategoricalFocalCrossentropy()],
    {"logits": keras.losses.SparseCategoricalCrossentropy()},
], ids=range(4))  # fmt: skip
def test_a_loss_of_probabilities_raises_value_error(name, loss):
    """Keras clips the logits to [0, 1]: the loss never falls."""
    refused(lambda: built(name).compile("adam", loss), ["`loss` must take logits", "from_logits=True"])


def test_saving_a_whole_model_as_h5_raises_value_error(tmp_path):
    refused(
        lambda: built("encoder_classifier").save(tmp_path / "model.h5"), ["`filepath` must end in .keras", "model.h5"]
    )
    assert not [*tmp_path.iterdir()]


def test_losses_without_probabilities_are_accepted():
    for loss in (None, "mse", keras.losses.BinaryCrossentropy(from_logits=True), lambda true, found: found[:, 0]):
        BUILDERS["encoder_classifier"]().compile("adam", loss=loss)


def test_images_of_bytes_raise_value_error():
    for model in (models.image_encoder(4, 2, 1, 8, 2), models.image_classifier(4, 2, 3, 1, 8, 2)):
        refused(lambda: model(np.full((1, 4, 4, 3), 200, "uint8")), ["`images` must be floats", "uint8"])
        model(np.full((1, 4, 4, 3), 200 / 255, "float64"))
