"""attention_scores of a model equal the weights of a model built with `return_attention_scores`."""

import functools

import keras
import numpy as np
import pytest
from drawing import normal
from keras import ops

import keras_txf as txf
from keras_txf.checkpoints.parts import with_parts

IDS = np.array([[5, 6, 7, 8, 0], [9, 3, 0, 0, 0]])
SOURCES = np.array([[4, 8, 2, 10, 3, 9, 0], [7, 6, 5, 0, 0, 0, 0]])
PAIR = {"source_ids": SOURCES, "target_ids": IDS}
PACKED = {
    "token_ids": np.array([[5, 6, 7, 8, 9]]), "segment_ids": np.array([[1, 1, 1, 2, 2]]),
    "positions": np.array([[0, 1, 2, 0, 1]]),
}  # fmt: skip
IMAGES = np.random.default_rng(1).random((2, 6, 8, 3)).astype("float32")
BUILDERS = {
    "encoder": (functools.partial(txf.models.encoder, 11), IDS),
    "classifier": (functools.partial(txf.models.encoder_classifier, 11, 4), IDS),
    "generator": (functools.partial(txf.models.decoder_generator, 11), IDS),
    "pair": (functools.partial(txf.models.encoder_decoder, 11, 11), PAIR),
    "packed": (functools.partial(txf.models.decoder_generator, 11, packed=True), PACKED),
    "images": (functools.partial(txf.models.image_classifier, (6, 8), (2, 4), 4), IMAGES),
}
OPTIONS = {
    "plain": {},
    "many": {"norm_placement": "pre", "num_key_value_heads": 3, "head_dim": 4,
             "position": "relative", "window": [2, None], "dropout": 0.5, "attention_dropout": 0.5, "qk_norm": True,
             "stochastic_depth": 0.5},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("build, inputs", BUILDERS.values(), ids=BUILDERS)
def test_scores_are_those_of_a_model_built_to_return_them(build, inputs, options):
    options = dict(num_layers=2, dim=12, num_heads=6, **options)
    options = with_parts(build, options)
    model, twin = build(**options), build(**options, return_attention_scores=True)
    twin.set_weights(model.get_weights())
    expected = {name: ops.convert_to_numpy(x) for name, x in twin(inputs).items() if "attention_scores" in name}
    found = txf.visualize.attention_scores(model, inputs)
    assert len(found) == len(expected) == (6 if isinstance(model.input, dict) and "source_ids" in model.input else 2)
    for name, weights in found.items():
        block, part = name.split("/")
        side, index = block.split("_")
        kind = {"attention": "attention_scores", "cross_attention": "cross_attention_scores"}[part]
        key = f"{kind}_{index}" if f"{kind}_{index}" in expected else f"{side}_{kind}_{index}"
        np.testing.assert_allclose(weights, expected.pop(key), rtol=0, atol=1e-6)
    assert not expected
    np.testing.assert_equal(txf.visualize.attention_scores(twin, inputs), found)


def test_rows_sum_to_one_over_the_visible_keys():
    model = txf.models.encoder_decoder(11, 11, 1, 12, 6, decoder_options={"window": 2})
    source, target, t = SOURCES != 0, IDS != 0, np.arange(5)
    causal = (t[:, None] >= t) & (t[:, None] - t < 2)
    seen_by = {
        "encoder_0/attention": (source, source[:, None]), "decoder_0/attention": (target, target[:, None] & causal),
        "decoder_0/cross_attention": (target, source[:, None]),
    }  # fmt: skip
    scores = txf.visualize.attention_scores(model, PAIR)
    assert scores.keys() == seen_by.keys()
    for name, (rows, seen) in seen_by.items():
        weights = np.moveaxis(scores[name], 1, 0)  # each head
        real = np.broadcast_to(rows[:, :, None], weights.shape[1:])
        np.testing.assert_allclose(np.where(seen, weights, 0).sum(-1)[:, rows], 1, atol=1e-5)
        assert not weights[:, ~seen & real].any()


def test_models_wired_by_hand_have_scores():
    """A decoder on a depth of an encoder, each its own model, and Keras' own attention."""
    encoder = txf.models.encoder(11, 2, 12, 6, return_hidden_states=True)
    decoder = txf.models.decoder(11, 1, 12, 6)
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    logits = decoder({"target_ids": target, "context": encoder(source)["hidden_states_1"]})
    scores = txf.visualize.attention_scores(keras.Model([source, target], logits), [SOURCES, IDS])
    assert [weights.shape[1:] for weights in scores.values()] == [(6, 7, 7), (6, 7, 7), (6, 5, 5), (6, 5, 7)]
    assert [name.rpartition("/")[2] for name in scores] == ["attention"] * 3 + ["cross_attention"]

    inputs = keras.Input((None, 12))
    shared = txf.layers.MultiHeadSelfAttention(3, name="shared")
    x = keras.layers.MultiHeadAttention(2, 6, name="own")(shared(shared(inputs)), inputs)
    values = normal(2, 5, 12)
    model = keras.Model(inputs, x)
    scores = txf.visualize.attention_scores(model, values)
    assert list(scores) == ["shared", "shared:1", "own"] and scores["own"].shape == (2, 2, 5, 5)
    alone = keras.Sequential([keras.Input((None, 12)), shared])
    np.testing.assert_array_equal(txf.visualize.attention_scores(alone, values)["shared"], scores["shared"])


def test_padding_that_comes_as_a_mask_passes_through_a_model_within_a_model():
    encoder = txf.models.encoder(11, 1, 12, 6)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(3)(encoder(ids)))
    inside, alone = (txf.visualize.attention_scores(one, IDS) for one in (model, encoder))
    np.testing.assert_array_equal(*(next(iter(scores.values())) for scores in (inside, alone)))


ENCODER, PAIRED = txf.models.encoder(11, 1, 12, 6), txf.models.encoder_decoder(11, 11, 1, 12, 6)


@pytest.mark.parametrize("model, inputs, message", [
    (3, IDS, "`model` must be a functional keras.Model; received 3"),
    (keras.Model(), IDS, "`model` must be a functional keras.Model; received Model without a graph"),
    (keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), np.ones((1, 3)), "attention layer; .* Dense"),
    (ENCODER, IDS + 0.5, "`token_ids` must be integers"),
    (PAIRED, {**PAIR, "other": IDS}, "received also \\['other'\\]"),
    (PAIRED, IDS, r"must be a dict with the keys \['source_ids', 'target_ids'\]"),
    (PAIRED, {"source_ids": SOURCES}, r"the key 'target_ids' is missing; received \['source_ids'\]\.$"),
    (ENCODER, 2 + IDS, r"^`inputs` must .* takes: `inputs` must .* from 0 to 10; received ids from 2 to 11\.$"),
    (txf.models.encoder(11, 1, 12, 6, max_length=4), IDS, "`inputs` .* max_length=4; received length 5"),
])  # fmt: skip
def test_bad_input(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        txf.visualize.attention_scores(model, inputs)


# Keras warns about its own mask.
@pytest.mark.filterwarnings("ignore:Layer 'functional.* was passed an input with a mask:UserWarning")
def test_a_mask_that_is_passed_to_a_model_within_a_model_counts():
    x, mask = keras.Input((4, 12)), keras.Input((4,), dtype="bool")
    inner_input = keras.Input((4, 12))
    inner = keras.Model(inner_input, txf.layers.MultiHeadSelfAttention(3, name="inner")(inner_input))
    model = keras.Model([x, mask], inner(x, mask=mask))
    values = normal(2, 4, 12)
    seen = np.array([[True, True, False, False], [True, True, True, False]])
    [weights] = txf.visualize.attention_scores(model, [values, seen]).values()
    assert not weights[~np.broadcast_to(seen[:, None, None], weights.shape)].any()


def test_a_model_within_a_model_keeps_a_call_of_its_own():
    class Doubles(keras.Model):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs)

    inner_input = keras.Input((4, 12))
    inner = Doubles(inner_input, keras.layers.Dense(12)(inner_input))
    x = keras.Input((4, 12))
    attention = txf.layers.MultiHeadSelfAttention(3)
    model = keras.Model(x, attention(inner(x)))
    values = normal(2, 4, 12)
    [weights] = txf.visualize.attention_scores(model, values).values()
    _, expected = attention(inner(values), return_attention_scores=True)
    np.testing.assert_allclose(weights, ops.convert_to_numpy(expected), atol=1e-6)


def test_augmentation_does_not_change_the_weights():
    model = txf.models.image_classifier((6, 8), 2, num_classes=3, num_layers=1, dim=12, num_heads=2)
    images = keras.Input((6, 8, 3))
    augmented = keras.Model(images, model(keras.layers.RandomTranslation(0.5, 0.5)(images)))
    expected = txf.visualize.attention_scores(model, IMAGES)
    found = txf.visualize.attention_scores(augmented, IMAGES)
    np.testing.assert_allclose(found["encoder_0/attention"], expected["encoder_0/attention"], atol=1e-6)


def test_an_array_is_the_only_input_that_is_needed():
    model = txf.models.encoder_classifier(None, 4, num_layers=1, dim=12, num_heads=6, input_dim=3)
    features = normal(2, 5, 3)
    [found] = txf.visualize.attention_scores(model, features).values()
    masked = {"features": features, "features_mask": np.ones((2, 5), "bool")}
    [expected] = txf.visualize.attention_scores(model, masked).values()
    np.testing.assert_allclose(found, expected, atol=1e-6)
