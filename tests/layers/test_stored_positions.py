"""Parts for checkpoints: positions of patches, stored frequencies, dropped tokens, keys without bias."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.families.beit import GridBias
from keras_txf.checkpoints.families.esm import StoredRotary, TokenDropoutEmbedding, drop_masked
from keras_txf.ops import attention as kernel

GRID, HEADS = (2, 3), 2
LENGTH = 7  # a class token and the patches
X = drawing.normal(2, LENGTH, 8)


def grid_bias():
    layer = GridBias(HEADS, GRID, name="grid")
    layer.build()
    layer.embeddings.assign(np.random.default_rng(0).normal(size=layer.embeddings.shape))
    return layer


def test_a_bias_belongs_to_the_offset_of_two_patches():
    """One patch after another, each with its row and column; the last three biases are the class token's."""
    layer = grid_bias()
    table = drawing.array(layer.embeddings)
    assert table.shape == (3 * 5 + 3, HEADS)
    expected = np.zeros((HEADS, LENGTH, LENGTH))
    for t, s in np.ndindex(LENGTH, LENGTH):
        if t and s:
            (row, column), (other_row, other_column) = divmod(t - 1, 3), divmod(s - 1, 3)
            place = (row - other_row + 1) * 5 + (column - other_column + 2)
        else:
            place = -1 if not t and not s else -2 if t else -3
        expected[:, t, s] = table[place]
    places = np.arange(LENGTH)
    drawing.assert_same(layer.bias(places, places), expected[None], 1e-6)
    drawing.assert_same(layer.bias(places[None], places[None]), expected[None], 1e-6)


def test_the_bias_and_its_gradient_are_the_same_in_blocks(monkeypatch):
    bias, results = grid_bias(), []
    layer = txf.layers.MultiHeadSelfAttention(HEADS, position=bias)
    layer.build(X.shape)
    for threshold in (kernel.LONG, 1):
        monkeypatch.setattr(kernel, "LONG", threshold)
        monkeypatch.setattr(kernel, "fuses_long", lambda *_: False)
        results.append((drawing.array(layer(X)), drawing.gradient(lambda x: ops.sum(layer(x) ** 2), X)))
    for whole, blocks in zip(*results):
        drawing.assert_same(blocks, whole, 1e-4)
    places, upstream = np.arange(LENGTH), ops.convert_to_tensor(drawing.normal(1, HEADS, LENGTH, LENGTH, seed=3))
    found = drawing.gradient(
        lambda weights: ops.sum(bias.bias_of(1.0 * weights, places, places) * upstream), drawing.array(bias.embeddings)
    )
    drawing.assert_same(bias.gradient_of_bias(upstream, places, places), found, 1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_patches_are_rotated_by_row_and_column(shared):
    """One patch after another: a pair of features turns by 2 pi times frequency times coordinate."""
    rows, columns, before, dim = 2, 3, 2, 8
    layer = txf.layers.AxialRotary((rows, columns), base=50.0, tokens_before=before)
    x = drawing.normal(2, before + rows * columns, HEADS, dim)
    places = np.arange(before + rows * columns)
    if not shared:
        places = np.stack([places, places[::-1]])
    expected = x.astype("float64")
    for batch, place in np.ndindex(x.shape[:2]):
        patch = (places if shared else places[batch])[place] - before
        if patch < 0:
            continue
        middles = (patch // columns + 0.5) / rows, (patch % columns + 0.5) / columns
        for pair in range(dim // 2):
            coordinate = 2 * middles[pair // 2] - 1
            turn = np.exp(2j * np.pi * coordinate * 50.0 ** (-4 * (pair % 2) / dim))
            turned = (expected[batch, place, :, pair] + 1j * expected[batch, place, :, pair + dim // 2]) * turn
            expected[batch, place, :, pair], expected[batch, place, :, pair + dim // 2] = turned.real, turned.imag
    drawing.assert_same(layer(x, places), expected, 1e-5)
    drawing.assert_same(layer.rotate(x, places), expected, 1e-5)


def test_places_of_patches_are_of_images_of_one_size():
    layer = txf.layers.MultiHeadSelfAttention(HEADS, position=grid_bias())
    refused(lambda: layer(X[:, :6]), ["`inputs`", "length 7", "grid=(2, 3)", "6"])
    layer = txf.layers.MultiHeadSelfAttention(HEADS, position=txf.layers.AxialRotary(GRID))
    assert layer(X).shape == X.shape
    refused(lambda: layer(X[:, :6]), ["`inputs`", "length 7", "tokens_before=1", "grid=(2, 3)", "6"])
    narrow = txf.layers.MultiHeadSelfAttention(HEADS, head_dim=6, position=txf.layers.AxialRotary(GRID))
    refused(lambda: narrow(X), ["`head_dim`", "divisible by 4", "6"])
    refused(lambda: txf.layers.AxialRotary(GRID, tokens_before=-1), ["`tokens_before`", "from 0", "-1"])


def test_stored_frequencies_are_rotary_ones_until_they_are_replaced():
    stored, plain = StoredRotary(4, base=50.0), txf.layers.Rotary(base=50.0)
    stored.build()
    x, places = drawing.normal(2, 5, 3, 4), np.arange(5)
    drawing.assert_same(stored.rotate(x, places), plain.rotate(x, places), 1e-6)
    assert not stored.trainable_weights and stored.bias(places, places) is None
    stored.frequencies.assign([0.5, 0.25])
    turned = drawing.array(stored.rotate(x, places)).astype("float64")
    angles = places[:, None] * np.array([0.5, 0.25])
    pairs = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * angles)[None, :, None]
    drawing.assert_same(turned, np.concatenate([pairs.real, pairs.imag], axis=-1))
    refused(lambda: StoredRotary(5), ["`head_dim`", "even", "5"])


def test_blocks_share_the_weights_and_files_keep_them(tmp_path):
    positions, x = [StoredRotary(4, name="rotary"), GridBias(HEADS, GRID, name="grid")], keras.Input((LENGTH, 8))
    inputs = x
    for i in range(4):
        x = txf.layers.EncoderBlock(HEADS, position=positions[i % 2], name=f"block_{i}")(x)
    model = drawing.randomize(keras.Model(inputs, x))
    for position in positions:
        [weight] = [one for one in model.weights if one.path.startswith(position.name)]
        weight.assign(np.random.default_rng(2).normal(size=weight.shape))
    model.save(tmp_path / "model.keras")
    drawing.assert_same(keras.saving.load_model(tmp_path / "model.keras")(X), model(X), 1e-6)


@pytest.mark.parametrize("pad_id", [0, None])
def test_masked_tokens_are_dropped_as_in_training(pad_id):
    ids = np.array([[5, 9, 9, 4, 0, 0], [5, 6, 7, 8, 4, 3], [9, 9, 9, 9, 0, 0]])
    x = drawing.normal(3, 6, 2)
    found = drawing.array(drop_masked(ops.convert_to_tensor(x), ids, 9, pad_id))
    for row, vectors, dropped in zip(ids, x, found):
        real = [token for token in row if token != pad_id]
        share = real.count(9) / len(real)
        factors = np.where(row == 9, 0, (1 - 0.12) / (1 - share) if share < 1 else np.nan)
        known = np.isfinite(factors)
        np.testing.assert_allclose(dropped[known], (vectors * factors[:, None])[known], rtol=1e-5)
    assert np.isfinite(found).all()


def test_an_encoder_drops_masked_tokens():
    layer = TokenDropoutEmbedding(11, 8, masked_id=9, position_encoding="learned", max_length=6, scale=True)
    model = txf.models.encoder(11, 1, 8, 2, embedding=layer)
    ids, embedding = np.array([[5, 9, 4, 0]]), model.get_layer("embedding")
    positions = drawing.array(embedding.position.embeddings)[:3]
    tokens = drawing.array(embedding.token.embeddings)[ids[0, :3]] * 8**0.5
    expected = tokens * np.array([1, 0, 1])[:, None] * 0.88 / (1 - 1 / 3) + positions
    np.testing.assert_allclose(drawing.array(embedding(ids))[0, :3], expected, atol=1e-5)
    refused(lambda: TokenDropoutEmbedding(11, 8, masked_id=11), ["`masked_id`", "11"])


def test_keys_may_lack_the_bias_of_queries():
    layer = txf.layers.MultiHeadSelfAttention(HEADS, key_bias=False)
    layer(X)
    names = {weight.path.removeprefix(f"{layer.name}/") for weight in layer.weights}
    assert "key/bias" not in names and {"query/bias", "value/bias", "key/kernel"} <= names
    refused(lambda: txf.layers.MultiHeadSelfAttention(HEADS, key_bias=1), ["`key_bias`", "1"])
