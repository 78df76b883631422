"""What stands between an encoder and its logits, and the spans of answers."""

import drawing
import keras
import numpy as np
import pytest
from cases import numpy
from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.families.llama_kin import LatePooling

IDS = np.array([[5, 6, 7, 3, 9], [4, 8, 0, 0, 0]])
SIZES = dict(vocab_size=11, num_layers=1, dim=8, num_heads=2)


def weights(model, name):
    return [drawing.array(weight).astype("float64") for weight in model.get_layer(name).weights]


def test_a_head_before_the_pooling_reads_each_token():
    model = txf.models.encoder_classifier(**SIZES, num_classes=3, pooling=LatePooling("tanh"))
    drawing.randomize(model)
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_0").output)(IDS))[0].astype("float64")
    kernel, bias = weights(model, "pooling")
    each = np.tanh(hidden @ kernel + bias)
    real = (IDS != 0)[..., None]
    kernel, bias = weights(model, "logits")
    expected = (each * real).sum(1) / real.sum(1) @ kernel + bias
    np.testing.assert_allclose(numpy(model(IDS))[0], expected, atol=1e-5)


def test_a_masked_language_model_without_head_has_the_logits_of_its_states():
    model = txf.models.masked_language_model(**SIZES, head=None, logit_bias=False)
    drawing.randomize(model)
    names = [layer.name for layer in model.layers]
    assert "head" not in names and "head_norm" not in names
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_0").output)(IDS))[0]
    table = drawing.array(model.get_layer("embedding").token.embeddings)
    np.testing.assert_allclose(numpy(model(IDS))[0], hidden @ table.T, atol=1e-5)


def test_heads_that_do_not_fit_raise_value_error():
    build = txf.models.masked_language_model
    refused(lambda: build(**SIZES, head=keras.layers.Dense(5)), ["`head`", "5"])
    refused(lambda: build(**SIZES, head="no such"), ["`head`", "'no such'"])
    build = txf.models.encoder_classifier
    refused(lambda: build(**SIZES, num_classes=3, pooling="no such"), ["`pooling`", "'no such'"])


def test_a_head_and_a_pooling_may_be_layers():
    options = dict(head=keras.layers.Dense(5, "tanh"), pooling=keras.layers.GlobalAveragePooling1D())
    model = drawing.randomize(txf.models.encoder_classifier(**SIZES, num_classes=3, **options))
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_0").output)(IDS))[0].astype("float64")
    real = (IDS != 0)[..., None]
    kernel, bias = weights(model, "head")
    x = np.tanh((hidden * real).sum(1) / real.sum(1) @ kernel + bias)
    kernel, bias = weights(model, "logits")
    np.testing.assert_allclose(numpy(model(IDS))[0], x @ kernel + bias, atol=1e-5)


def arrays(outputs):
    return {name: drawing.array(value) for name, value in outputs.items()}


def test_no_span_starts_or_ends_at_padding():
    model = txf.models.span_classifier(11, 1, 8, 2)
    ids = np.array([[5, 6, 7], [8, 9, 0]])
    short, long = arrays(model(ids)), arrays(model(np.pad(ids, ((0, 0), (0, 4)))))
    for name in ("start_logits", "end_logits"):
        assert (short[name][1, 2:] == -32768).all() and (long[name][:, 3:] == -32768).all()
        real = ids != 0
        np.testing.assert_allclose(long[name][:, :3][real], short[name][real], atol=1e-5)


def test_a_policy_that_is_an_object_is_saved(tmp_path):
    policy = keras.DTypePolicy("mixed_bfloat16")
    txf.models.span_classifier(9, num_layers=1, dim=4, num_heads=2, dtype=policy).save(tmp_path / "spans.keras")
    assert keras.saving.load_model(tmp_path / "spans.keras").layers[-1].compute_dtype == "bfloat16"


def test_start_and_end_are_the_two_columns_of_a_token_classifier():
    spans, tokens = txf.models.span_classifier(11, 1, 8, 2), txf.models.token_classifier(11, 2, 1, 8, 2)
    tokens.set_weights(spans.get_weights())
    ids = np.array([[5, 6, 7, 3]])
    expected, found = drawing.array(tokens(ids)), arrays(spans(ids))
    np.testing.assert_allclose(found["start_logits"], expected[..., 0], atol=1e-6)
    np.testing.assert_allclose(found["end_logits"], expected[..., 1], atol=1e-6)


def test_packed_rows_raise_value_error():
    with pytest.raises(ValueError, match="packed"):
        txf.models.span_classifier(11, 1, 8, 2, packed=True)
