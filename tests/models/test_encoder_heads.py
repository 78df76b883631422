"""The layer between an encoder and its logits: left out, or before the pooling."""

import drawing
import keras
import numpy as np
from cases import numpy
from refusals import refused

import keras_txf as txf

IDS = np.array([[5, 6, 7, 3, 9], [4, 8, 0, 0, 0]])
SIZES = dict(vocab_size=11, num_layers=1, dim=8, num_heads=2)


def weights(model, name):
    return [drawing.array(weight).astype("float64") for weight in model.get_layer(name).weights]


def test_a_head_before_the_pooling_reads_each_token():
    model = txf.models.encoder_classifier(
        **SIZES, num_classes=3, head_activation="tanh", pool_after_head=True, pooling="mean"
    )
    drawing.randomize(model)
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_0").output)(IDS))[0].astype("float64")
    kernel, bias = weights(model, "head")
    each = np.tanh(hidden @ kernel + bias)
    real = (IDS != 0)[..., None]
    kernel, bias = weights(model, "logits")
    expected = (each * real).sum(1) / real.sum(1) @ kernel + bias
    np.testing.assert_allclose(numpy(model(IDS))[0], expected, atol=1e-5)


def test_a_masked_language_model_without_head_has_the_logits_of_its_states():
    model = txf.models.masked_language_model(**SIZES, head_activation=None, logit_bias=False)
    drawing.randomize(model)
    names = [layer.name for layer in model.layers]
    assert "head" not in names and "head_norm" not in names
    hidden = numpy(keras.Model(model.input, model.get_layer("encoder_0").output)(IDS))[0]
    table = drawing.array(model.get_layer("embedding").token.embeddings)
    np.testing.assert_allclose(numpy(model(IDS))[0], hidden @ table.T, atol=1e-5)


def test_options_of_a_head_that_is_not_there():
    build = txf.models.masked_language_model
    refused(lambda: build(**SIZES, head_activation=None, embedding_dim=6), ["`head_activation`", "`embedding_dim`"])
    refused(lambda: build(**SIZES, head_activation=None, head_bias=False), ["`head_activation`", "head_bias=False"])
    build = txf.models.encoder_classifier
    refused(lambda: build(**SIZES, num_classes=3, pool_after_head=True), ["pool_after_head=True", "`head_activation`"])
    refused(lambda: build(**SIZES, num_classes=3, head_activation="tanh", pool_after_head=1), ["`pool_after_head`"])
