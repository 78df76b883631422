"""PositionalEmbedding against its formula, and the precision of its positions.

Legend: B batch, T length, D dim, V vocabulary.
"""

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf

V, D = 13, 6
IDS = np.array([[5, 6, 7, 0, 0], [0, 0, 8, 9, 5]], "int32")
# Positions count real tokens; padding before the first stands at 0, padding after the last beside it.
PLACES = np.array([[0, 1, 2, 2, 2], [0, 0, 0, 1, 2]])


def embedding(**options):
    layer = txf.layers.PositionalEmbedding(V, D, **options)
    layer.build((None, None))
    return drawing.randomize(layer)


def weight(layer, name):
    return drawing.array(getattr(layer, name).embeddings)


def sinusoids(places, dim):
    features = np.arange(dim)
    angles = places[..., None] / 10000 ** (features // 2 * 2 / dim)
    return np.where(features % 2, np.cos(angles), np.sin(angles))


def vectors(layer, places, width):
    return weight(layer, "position")[places] if layer.position_encoding == "learned" else sinusoids(places, width)


ENCODINGS = [
    {"position_encoding": "sinusoidal"}, {"position_encoding": "learned", "max_length": 7},
    {"position_encoding": "fixed", "max_length": 7},  # the paper's at first
]  # fmt: skip


def test_a_fixed_table_is_not_trained():
    layer = embedding(position_encoding="fixed", max_length=7)
    layer.trainable = True
    assert [variable.path.rpartition("/")[0] for variable in layer.trainable_variables] == [layer.token.path]
    layer.position.embeddings.assign(drawing.normal(7, D))  # as `load` does
    drawing.assert_same(layer(IDS), weight(layer, "token")[IDS] + weight(layer, "position")[PLACES])


def test_the_vector_of_its_type_is_added_to_each_token():
    layer, kinds = embedding(token_types=3, scale=False), np.array([[0, 1, 2, 0, 0], [2, 2, 0, 1, 2]], "int32")
    table = weight(layer, "token_type")
    expected = weight(layer, "token")[IDS] + sinusoids(PLACES, D)
    drawing.assert_same(layer(IDS, token_type_ids=kinds), expected + table[kinds])
    drawing.assert_same(layer(IDS), expected + table[0])


@pytest.mark.parametrize("options", ENCODINGS)
@pytest.mark.parametrize("scale", [False, True])
def test_combine_add_returns_the_sum(options, scale):
    layer = embedding(**options, scale=scale)
    tokens = weight(layer, "token")[IDS] * (D**0.5 if scale else 1)
    drawing.assert_same(layer(IDS), tokens + vectors(layer, PLACES, D))
    for own in ([3, 1, 4, 1, 5], [[0, 1, 0, 1, 2], [6, 5, 4, 3, 2]]):
        drawing.assert_same(layer(IDS, positions=np.array(own)), tokens + vectors(layer, np.array(own), D))


@pytest.mark.parametrize("options", ENCODINGS)
@pytest.mark.parametrize("position_dim, width", [(None, 3), (2, 2), (5, 5)])
def test_combine_concat_returns_tokens_then_positions(options, position_dim, width):
    layer = embedding(**options, combine="concat", position_dim=position_dim, scale=True)
    own = np.array([3, 1, 4, 1, 5])
    for places, output in ((PLACES, layer(IDS)), (np.stack([own] * 2), layer(IDS, positions=own))):
        expected = [weight(layer, "token")[IDS] * D**0.5, vectors(layer, places, width)]
        drawing.assert_same(output, np.concatenate(expected, axis=-1))


@pytest.mark.parametrize("options", [*ENCODINGS, {"position_encoding": None}])
def test_padding_is_masked_unless_every_token_counts(options):
    output = embedding(**options)(IDS)
    np.testing.assert_array_equal(drawing.array(keras.src.backend.get_keras_mask(output)), IDS != 0)
    np.testing.assert_array_equal(drawing.array(embedding(**options, pad_id=5).compute_mask(IDS)), IDS != 5)
    layer = embedding(**options, pad_id=None)
    places = 0 if layer.position_encoding is None else vectors(layer, np.arange(5), D)
    output = layer(IDS)
    drawing.assert_same(output, weight(layer, "token")[IDS] * (D**0.5 if layer.token_scale else 1) + places)
    assert layer.compute_mask(IDS) is None and keras.src.backend.get_keras_mask(output) is None


def test_reverse_is_the_transposed_table():
    layer = embedding(scale=True)
    hidden = drawing.normal(2, 5, D)
    drawing.assert_same(layer(hidden, reverse=True), hidden @ weight(layer, "token").T)
    mask = IDS != 0
    np.testing.assert_array_equal(drawing.array(layer.compute_mask(ops.convert_to_tensor(hidden), mask)), mask)
    half = embedding(dtype="mixed_bfloat16")
    assert ops.dtype(half(half(IDS), reverse=True)) == "bfloat16"


def test_integer_ids_are_exact_in_half_precision():
    """Above 256 bfloat16 has no odd numbers: an id that passed through it would be another token."""
    layer = txf.layers.PositionalEmbedding(1000, 4, position_encoding=None, dtype="mixed_bfloat16")
    ids = np.array([[257, 259, 999]])
    output = layer(ids.astype("float32"))
    table = ops.cast(layer.token.embeddings, "bfloat16")
    drawing.assert_same(output[0], drawing.array(table)[ids[0]], 0)


def rows_under(policy, combine, dim):
    layer = txf.layers.PositionalEmbedding(3, dim, pad_id=None, combine=combine, dtype=policy)
    layer.build((None, None))
    layer.token.embeddings.assign(np.zeros((3, dim if combine == "add" else dim // 2)))
    return drawing.array(layer(np.ones((1, 8192), "int32")))[0]


@pytest.mark.parametrize("policy, combine, dim", [
    ("mixed_bfloat16", "add", 64), ("mixed_bfloat16", "concat", 128), ("mixed_float16", "concat", 128),
])  # fmt: skip
def test_sinusoids_are_computed_in_float32_and_rounded_once(policy, combine, dim):
    """8 bits of mantissa. Computed in bfloat16 itself, 2,048 positions leave 641 distinct vectors."""
    rows = rows_under(policy, combine, dim)
    np.testing.assert_allclose(rows, rows_under("float32", combine, dim), rtol=2**-8, atol=1e-4 * (combine == "concat"))
    assert combine == "concat" or len(np.unique(rows, axis=0)) == 8192


def test_input_longer_than_max_length_raises_value_error():
    layer = embedding(position_encoding=None, max_length=4)
    assert layer(IDS[:, :4]).shape == (2, 4, D)
    with pytest.raises(ValueError, match="max_length=4.*length 5"):
        layer(IDS)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="computes step by step, and raises")
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
def test_beyond_max_length_a_compiled_function_gives_nan(position_encoding):
    symbols = [keras.Input((None,), dtype="int32") for _ in range(2)]
    layer = embedding(position_encoding=position_encoding, max_length=5)
    model = keras.Model(symbols, layer(symbols[0], positions=symbols[1]))
    model.compile(jit_compile=True)
    places = np.array([[0, 1, 2, 3, 5], [3, 2, 1, 0, -1]])
    output = model.predict([IDS, places], verbose=0)
    assert np.isfinite(output[:, :4]).all() and np.isnan(output[:, 4]).all()


def test_a_given_initializer_is_used():
    for initializer in ("zeros", lambda shape, dtype: 2 * ops.ones(shape, dtype), None):
        layer = txf.layers.PositionalEmbedding(50, 40, "learned", 20, embeddings_initializer=initializer)
        layer.build((None, None))
        token, position = weight(layer, "token"), weight(layer, "position")
        if initializer is None:
            assert np.abs(token[:20] - position).max() > 0.02  # not one draw for both
        else:
            assert (token == position[0, 0]).all() and token[0, 0] == (0 if initializer == "zeros" else 2)


@pytest.mark.parametrize("options, scaled", [
    ({}, True), ({"position_encoding": "learned", "max_length": 20}, False), ({"position_encoding": None}, False),
    ({"scale": False}, False), ({"position_encoding": None, "scale": True}, True),
])  # fmt: skip
def test_default_initializer_depends_on_scale(options, scaled):
    """The paper multiplies tokens by sqrt(dim), with sinusoids; BERT and GPT-2 start at 0.02 without a factor."""
    layer = txf.layers.PositionalEmbedding(50, 40, **options)
    layer.build((None, None))
    for name in ("token", "position") if "max_length" in options else ("token",):
        np.testing.assert_allclose(weight(layer, name).std(), 40**-0.5 if scaled else 0.02, rtol=0.2)
    ids = np.array([[5, 6, 7]])
    places = 0 if options.get("position_encoding", 1) is None else vectors(layer, np.arange(3), 40)
    drawing.assert_same(layer(ids), weight(layer, "token")[ids] * (40**0.5 if scaled else 1) + places)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="ragged tensors are TensorFlow's")
def test_ragged_ids_raise_value_error():
    import tensorflow as tf

    model = txf.models.encoder_classifier(11, 3, 1, 8, 2)
    with pytest.raises(ValueError, match="`token_ids` must be one dense tensor.*length='longest'"):
        model(tf.ragged.constant([[5, 3], [7]]))
