"""PatchEmbedding against a loop over patches, and its positions for images of any size.

Patches are (2, 3), images (6, 9) of 4 channels: 3 rows of 3 patches.
"""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from layers.test_embeddings import sinusoids

import keras_txf as txf

PATCH, SIZE, CHANNELS, D = (2, 3), (6, 9), 4, 8
IMAGES = drawing.normal(2, *SIZE, CHANNELS)
LARGER = drawing.normal(2, 10, 6, CHANNELS, seed=2)  # 5 rows of 2 patches


def embedding(dim=D, **options):
    return drawing.built(txf.layers.PatchEmbedding(PATCH, dim, **{"image_size": SIZE, **options}), IMAGES)


def projected(layer, images):
    """The patches row by row, each flattened and projected."""
    kernel, bias = map(drawing.array, layer.patch.weights)
    height, width = PATCH
    patches = [
        images[:, top : top + height, left : left + width].reshape(len(images), -1)
        for top in range(0, images.shape[1], height)
        for left in range(0, images.shape[2], width)
    ]
    return np.stack(patches, axis=1) @ kernel + bias


def test_output_is_class_token_and_patches_with_their_positions():
    layer = embedding()
    first = np.broadcast_to(drawing.array(layer.class_vector), (2, 1, D))
    expected = np.concatenate([first, projected(layer, IMAGES)], axis=1)
    drawing.assert_same(layer(IMAGES), expected + drawing.array(layer.position.embeddings))


@pytest.mark.parametrize("interpolate", [False, True])
def test_a_distillation_token_follows_the_class_token(interpolate):
    layer = embedding(distillation_token=True, interpolate_positions=interpolate)
    assert layer.position.embeddings.shape == (11, D)
    tokens = np.stack([drawing.array(layer.class_vector), drawing.array(layer.distillation_vector)])
    expected = np.concatenate([np.broadcast_to(tokens, (2, 2, D)), projected(layer, IMAGES)], axis=1)
    drawing.assert_same(layer(IMAGES), expected + drawing.array(layer.position.embeddings))
    assert layer.compute_output_shape(IMAGES.shape) == (2, 11, D)
    waves = embedding(distillation_token=True, position_encoding="sinusoidal")
    drawing.assert_same(waves(IMAGES)[0, 1], waves.distillation_vector)
    with pytest.raises(ValueError, match="distillation_token=True needs `class_token`"):
        embedding(distillation_token=True, class_token=False)


@pytest.mark.parametrize("position_encoding", ["learned", "sinusoidal", None])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_registers_precede_the_patches_without_positions(before, position_encoding):
    options = dict(class_token=before > 0, distillation_token=before > 1, position_encoding=position_encoding)
    layer, plain = embedding(register_tokens=3, **options), embedding(**options)
    plain.set_weights([drawing.array(weight) for weight in layer.weights if weight.name != "register_tokens"])
    registers = np.broadcast_to(drawing.array(layer.register_vectors), (2, 3, D))
    without = drawing.array(plain(IMAGES))
    expected = np.concatenate([without[:, :before], registers, without[:, before:]], axis=1)
    drawing.assert_same(layer(IMAGES), expected)
    assert layer.compute_output_shape(IMAGES.shape) == expected.shape
    with pytest.raises(ValueError, match="`register_tokens` must be an integer from 0"):
        embedding(register_tokens=-1)


def test_without_class_token_and_positions_patches_are_projected():
    layer = embedding(class_token=False, position_encoding=None)
    assert len(layer.weights) == 2
    drawing.assert_same(layer(IMAGES), projected(layer, IMAGES))


def test_a_fixed_table_begins_with_sinusoids_and_is_not_trained():
    layer, waves = embedding(position_encoding="fixed"), embedding(position_encoding="sinusoidal")
    assert layer.non_trainable_weights == [layer.position_vectors]
    waves.set_weights([drawing.array(weight) for weight in layer.trainable_weights])
    drawing.assert_same(layer(IMAGES), waves(IMAGES), 1e-5)
    before, table = drawing.array(layer(IMAGES)), drawing.normal(10, D)
    layer.position_vectors.assign(drawing.array(layer.position_vectors) + table)
    drawing.assert_same(layer(IMAGES), before + table, 1e-5)


@pytest.mark.parametrize("dim, class_token", [(8, True), (7, False)])
def test_sinusoids_encode_rows_and_columns(dim, class_token):
    layer = embedding(dim, position_encoding="sinusoidal", image_size=None, class_token=class_token)
    for images, rows, columns in ((IMAGES, 3, 3), (LARGER, 5, 2)):
        places = np.arange(rows * columns)
        halves = [(places // columns, dim - dim // 2), (places % columns, dim // 2)]
        expected = projected(layer, images) + np.concatenate([sinusoids(*half) for half in halves], axis=-1)
        output = drawing.array(layer(images))
        drawing.assert_same(output[:, int(class_token) :], expected)
        if class_token:
            drawing.assert_same(output[:, 0], np.broadcast_to(drawing.array(layer.class_vector), (2, dim)))


@pytest.mark.parametrize("class_token", [True, False])
def test_positions_are_interpolated_for_other_sizes(class_token):
    fixed, layer = (embedding(class_token=class_token, interpolate_positions=free) for free in (False, True))
    np.testing.assert_array_equal(drawing.array(layer(IMAGES)), drawing.array(fixed(IMAGES)))
    # Features that grow from row to row, that are the same everywhere, and that are zero stay so.
    table = np.zeros((9 + class_token, D))
    table[int(class_token) :, 0] = np.arange(9) // 3
    table[int(class_token) :, 1] = 5
    layer.position.embeddings.assign(table)
    positions = drawing.array(layer(LARGER))[:, int(class_token) :] - projected(layer, LARGER)
    np.testing.assert_allclose(positions[..., 1], 5, atol=1e-5)
    by_row = positions[0, :, 0].reshape(5, 2)
    np.testing.assert_allclose(by_row[:, 0], by_row[:, 1], atol=1e-5)
    np.testing.assert_allclose(by_row[2], 1, atol=1e-5)  # the middle row stays the middle one
    assert (np.diff(by_row[:, 0]) > 0).all()
    np.testing.assert_allclose(positions[..., 2:], 0, atol=1e-5)


@pytest.mark.parametrize("policy, compute", [("mixed_bfloat16", "bfloat16"), ("float16", "float16")])
def test_positions_are_interpolated_in_float32(policy, compute):
    layer = embedding(interpolate_positions=True, dtype=policy)
    for weight in layer.patch.weights:
        weight.assign(np.zeros(weight.shape))
    exact = embedding(interpolate_positions=True)
    exact.set_weights([drawing.array(weight) for weight in layer.weights])
    output = layer(LARGER)
    assert ops.dtype(output) == compute
    drawing.assert_same(output, exact(LARGER), {"bfloat16": 2e-2, "float16": 2e-3}[compute])


def test_channels_are_last_with_any_image_data_format():
    layer = embedding()
    expected = drawing.array(layer(IMAGES))
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_first")
    try:
        np.testing.assert_array_equal(drawing.array(layer(IMAGES)), expected)
        other = embedding()
        np.testing.assert_array_equal(drawing.array(other(IMAGES)), expected)
    finally:
        keras.config.set_image_data_format(before)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the others know every size when they trace")
def test_a_graph_of_unknown_sizes_raises_for_a_size_that_patches_do_not_divide():
    import tensorflow as tf

    layer = embedding(interpolate_positions=True)
    function = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, CHANNELS))])
    drawing.assert_same(function(LARGER), layer(LARGER))
    # The numbers of two images, each a row too tall, would make whole patches.
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(np.zeros((2, 7, 6, CHANNELS), "float32"))


def test_initial_weights_are_small_and_differ():
    layer = txf.layers.PatchEmbedding(2, 60, 30)
    layer(np.zeros((1, 30, 30, 1), "float32"))
    table, token = drawing.array(layer.position.embeddings), drawing.array(layer.class_vector)
    assert table.shape == (226, 60) and 0.019 < table.std() < 0.021
    assert 0.01 < token.std() < 0.03 and np.abs(table[0] - token).max() > 0.01
    zeros = txf.layers.PatchEmbedding(PATCH, D, SIZE, embeddings_initializer="zeros")
    zeros(IMAGES)
    assert not drawing.array(zeros.position.embeddings).any() and not drawing.array(zeros.class_vector).any()
