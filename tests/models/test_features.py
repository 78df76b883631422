"""Float vectors instead of tokens: encoders, classifiers, and the source of an encoder-decoder."""

import functools

import drawing
import keras
import numpy as np
import pytest
from drawing import array
from refusals import refused

import keras_txf as txf
from keras_txf.layers.features import AttachMask, FeatureEmbedding
from keras_txf.models.checked_model import CheckedModel

X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
IDS = np.array([[3, 1, 4, 0, 0], [5, 2, 3, 1, 4]])
POSITIONS = [
    {"position_encoding": "sinusoidal"},
    {"position_encoding": "learned", "max_length": 9},
    {"position": "rotary"},
]


@functools.cache
def encoder(**options):
    return txf.models.encoder(None, 2, 8, 2, input_dim=6, **options)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("options", POSITIONS)
def test_one_hot_vectors_through_a_table_are_tokens(options):
    tokens = txf.models.encoder(6, 2, 8, 2, scale_embedding=False, **options)
    features = encoder(**options)
    values = {weight.path: weight for weight in tokens.weights}
    for weight in features.weights:
        renamed = weight.path.replace("embedding/position/position/", "embedding/position/")
        if "projection" not in weight.path:
            weight.assign(values[renamed])
    [kernel] = [weight for weight in features.weights if weight.path == "embedding/projection/kernel"]
    kernel.assign(values["embedding/token/embeddings"])
    vectors = np.eye(6, dtype="float32")[IDS]
    found = array(features({"features": vectors, "features_mask": IDS != 0}))
    drawing.assert_same(found[IDS != 0], array(tokens(IDS))[IDS != 0], 1e-5)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("options", POSITIONS)
def test_padding_on_either_side_changes_nothing(options):
    model = encoder(**options)
    alone = array(model(X[:1, :3]))
    right = array(model({"features": X[:1], "features_mask": MASK[:1]}))
    left = array(model({"features": X[:1, [3, 4, 0, 1, 2]], "features_mask": MASK[:1, ::-1].copy()}))
    drawing.assert_same(right[:, :3], alone, 1e-5)
    drawing.assert_same(left[:, 2:], alone, 1e-5)


def test_the_mask_is_optional_and_padding_may_have_any_values():
    model, spoilt = encoder(), X.copy()
    expected = array(model({"features": X, "features_mask": np.ones((2, 5), bool)}))
    for inputs in (X, {"features": X}, {"features": X, "features_mask": None}):
        drawing.assert_same(model(inputs), expected, 1e-6)
    spoilt[~MASK] = np.nan
    expected, found = (array(model({"features": x, "features_mask": MASK})) for x in (X, spoilt))
    drawing.assert_same(found[MASK], expected[MASK], 1e-6)


NESTED = {  # a model of vectors, and an input -> a model in which zeros are padding
    "functional": lambda body, x: keras.Model(x, body(keras.layers.Masking()(x))),
    "sequential": lambda body, x: keras.Sequential([x, keras.layers.Masking(), body]),
    "open": lambda body, x: keras.Sequential([keras.layers.Masking(), body]),
    "dict": lambda body, x: keras.Model(x, body({"features": x, "features_mask": keras.ops.any(x != 0, -1)})),
    "clone": lambda body, x: NESTED["functional"](with_weights_of(keras.models.clone_model(body), body), x),
    "values": lambda body, x: lambda x: body(keras.layers.Masking()(x)),
}


def with_weights_of(model, other):
    model.set_weights(other.get_weights())
    return model


@pytest.mark.parametrize("form", NESTED)
def test_a_keras_mask_of_vectors_is_used(form):
    zeroed = np.where(MASK[..., None], X, 0)
    found = NESTED[form](encoder(), keras.Input((None, 6)))(zeroed)
    drawing.assert_same(found, array(encoder()({"features": X, "features_mask": MASK})), 1e-5)


def test_a_model_of_vectors_works_inside_other_models():
    body = txf.models.encoder_classifier(None, 3, 1, 8, 2, input_dim=6)
    expected, x = array(body(X)), keras.Input((None, 6))
    for model in (keras.Model(x, body(x)), keras.Model(body.input, body.output), keras.Sequential([x, body])):
        drawing.assert_same(model(X), expected, 1e-6)
    each, x = np.stack([X, 2 * X], 1), keras.Input((2, 5, 6))
    found = keras.Model(x, keras.layers.TimeDistributed(body)(x))(each)
    drawing.assert_same(found, np.stack([expected, array(body(2 * X))], 1), 1e-6)
    source, target = keras.Input((None, 6)), keras.Input((None,), dtype="int32")
    inputs = {"source_features": X, "target_ids": IDS}
    outer = keras.Model([source, target], pair()({"source_features": source, "target_ids": target}))
    drawing.assert_same(outer([X, IDS]), array(pair()(inputs)), 1e-6)


def test_a_file_whose_mask_is_an_input_loads(tmp_path):
    features = keras.Input((None, 6), name="features")
    mask = keras.Input((None,), dtype="bool", name="features_mask", optional=True)
    x = FeatureEmbedding(8)(AttachMask()([features, mask]))
    model = CheckedModel({"features": features, "features_mask": mask}, txf.layers.EncoderBlock(2)(x))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for inputs in (X, {"features": X}, {"features": X, "features_mask": MASK}):
        drawing.assert_same(again(inputs), array(model(inputs)), 1e-6)


@pytest.mark.slow
def test_a_classifier_is_trained_saved_and_reloaded(tmp_path):
    model = txf.models.encoder_classifier(None, 3, 2, 8, 2, input_dim=6, dropout=0.0)
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    inputs = {"features": X, "features_mask": MASK}
    losses = model.fit(inputs, np.array([0, 2]), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.fit(X, np.array([0, 2]), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for x in (inputs, X):
        drawing.assert_same(again.predict(x, verbose=0), model.predict(x, verbose=0), 1e-5)


@pytest.mark.parametrize("builder, more", [
    ("encoder", {}), ("encoder_classifier", {"num_classes": 3}), ("token_classifier", {"num_classes": 3}),
    ("span_classifier", {}), ("encoder_decoder", {"target_vocab_size": 11}),
])  # fmt: skip
def test_vectors_need_no_vocabulary(builder, more):
    build, sizes = getattr(txf.models, builder), dict(num_layers=1, dim=8, num_heads=2, input_dim=6, **more)
    first = "source_vocab_size" if builder == "encoder_decoder" else "vocab_size"
    assert build(**sizes).count_params() == build(**{first: None}, **sizes).count_params()


def test_frames_are_classified_one_by_one():
    assert txf.models.token_classifier(None, 4, 1, 8, 2, input_dim=6)(X).shape == (2, 5, 4)


def test_packed_sequences_do_not_attend_to_each_other():
    model, plain = encoder(packed=True), encoder()
    plain.set_weights(model.get_weights())
    segments, positions = np.array([[1, 1, 1, 2, 2]]), np.array([[0, 1, 2, 0, 1]])
    packed = array(model({"features": X[:1], "segment_ids": segments, "positions": positions}))
    drawing.assert_same(packed[:, :3], array(plain(X[:1, :3])), 1e-5)


@pytest.mark.slow
@drawing.not_on_jax
@pytest.mark.parametrize("options", [{}, {"sampler": txf.generation.Beam(3)}])
def test_a_source_of_vectors_is_answered_as_the_naive_loop_does(options, uncompiled):
    model = txf.models.encoder_decoder(None, 11, 2, 8, 2, input_dim=6, tie_embeddings=False)
    rng = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.4)
    inputs = {"source_features": X, "source_features_mask": MASK}
    found = model.generate(inputs=inputs, max_new_tokens=4, **options)
    alone = model.generate(inputs={"source_features": X[:1, :3]}, max_new_tokens=4, **options)
    np.testing.assert_array_equal(found[:1], alone)
    if not options:
        ids = np.ones((2, 1), int)
        for _ in range(4):
            logits = array(model({**inputs, "target_ids": ids}))
            ids = np.concatenate([ids, 1 + logits[:, -1:, 1:].argmax(-1)], axis=1)
        np.testing.assert_array_equal(found, ids[:, 1:])


@pytest.mark.parametrize("make, words", [
    (lambda: txf.models.encoder(11, 1, 8, 2, input_dim=6), ["`vocab_size`", "`input_dim`", "11", "6"]),
    (lambda: txf.models.encoder(None, 1, 8, 2), ["`vocab_size`", "`input_dim`"]),
    (lambda: txf.models.encoder(num_layers=1, dim=8, num_heads=2), ["`vocab_size`", "`input_dim`"]),
    (lambda: encoder()({"features": X, "features_mask": MASK}, mask=MASK), ["`mask`", "features_mask"]),
    (lambda: txf.models.encoder(None, 1, 8, 2, input_dim=0), ["`input_dim`", "0"]),
    (lambda: encoder(token_types=4), ["`token_types`", "`input_dim`", "4"]),
    (lambda: encoder(position_encoding="learned"), ["`max_length`"]),
    (lambda: encoder(token_type_ids=True), ["`token_types`"]),
    (lambda: encoder(max_length=4)(X), ["`inputs`", "max_length=4", "5"]),
    (lambda: encoder()({"features": X, "features_mask": MASK[:, :4]}), ["(2, 4)", "(2, 5)"]),
    (lambda: encoder()({"features": X, "mask": MASK}), ["features_mask", "'mask'"]),
    (lambda: encoder()(IDS), ["`features` must be floats of shape (B, T, 6); received shape (2, 5)"]),
    (lambda: encoder()(X[0]), ["`features`", "(B, T, 6)", "(5, 6)"]),
    (lambda: txf.models.masked_language_model(None, 1, 8, 2), ["`vocab_size`", "None"]),
    (lambda: txf.models.masked_language_model(11, 1, 8, 2, input_dim=6), ["input_dim", "masked_language_model"]),
    (lambda: pair(share_embeddings=True), ["`share_embeddings`", "`input_dim`"]),
    (lambda: pair.__wrapped__(encoder_options={"pad_id": None}), ["`pad_id`", "`input_dim`"]),
    (lambda: pair().generate([[1, 2]]), ["`source_ids`", "source_features"]),
    (lambda: pair().generate(), ["`inputs`", "source_features"]),
    (lambda: pair().generate(inputs={"source_features": X[:0]}), ["`inputs`", "none"]),
    (lambda: pair().generate(inputs={"source_features": X[..., :4]}), ["`inputs`", "source_features", "(2, 5, 4)"]),
    (lambda: pair().generate(inputs={"source_features": X[0]}), ["`source_features`", "(B, T, 6)", "(5, 6)"]),
    (lambda: pair().generate(inputs={"source_features": X, "source_features_mask": MASK[:1]}), ["`inputs`", "1"]),
])  # fmt: skip
def test_wrong_input_raises_value_error(make, words):
    refused(make, words)


@functools.cache
def pair(**options):
    return txf.models.encoder_decoder(None, 11, 1, 8, 2, input_dim=6, **options)


def test_rows_longer_than_max_length_take_given_positions():
    layer = txf.layers.FeatureEmbedding(8, "learned", max_length=3)
    positions = np.array([0, 1, 0, 1, 2])
    found = array(layer(X, positions=positions))
    drawing.assert_same(found[:, :2], array(layer(X[:, :2])), 1e-6)
    drawing.assert_same(found[:, 2:], array(layer(X[:, 2:])), 1e-6)
    with pytest.raises(ValueError, match="must not be longer than max_length=3; received length 5"):
        layer(X)
