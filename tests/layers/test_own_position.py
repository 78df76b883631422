"""A position layer of the user's: it has weights before the first call, is shared, decodes, and is saved."""

import drawing
import keras
import numpy as np
from user_layers import LogDistance

import keras_txf as txf

B, T, N, D = 2, 5, 2, 6
IDS = np.array([[5, 3, 8, 1, 4], [7, 2, 4, 9, 6]], "int32")


def generator():
    model = txf.models.decoder_generator(11, num_layers=2, dim=8, num_heads=2, pad_id=None, position=LogDistance(2))
    return drawing.randomize(model, seed=3)


def test_a_layer_that_keras_builds_at_its_first_call_has_weights_in_the_model():
    model = generator()
    assert [w.path for w in model.weights if "factors" in w.path] == ["decoder_0/attention/log_distance/factors"]
    other = generator()
    other.set_weights(model.get_weights())
    drawing.assert_same(other(IDS), model(IDS))
    blocks = [model.get_layer(f"decoder_{i}").attention.position_layer for i in range(2)]
    assert blocks[0] is blocks[1]


def test_attention_is_that_of_numpy():
    x = drawing.normal(B, T, D)
    layer = drawing.built(txf.layers.MultiHeadSelfAttention(N, causal=True, position=LogDistance(N)), x)

    def heads(dense):
        kernel, bias = (w.astype("float64") for w in dense.get_weights())
        return (x @ kernel + bias).reshape(B, T, N, D // N)

    query, key, value = (heads(dense) for dense in (layer.query, layer.key, layer.value))
    distance = np.abs(np.arange(T)[:, None] - np.arange(T))
    strength, scale = np.abs(layer.position_layer.get_weights()[0].astype("float64"))
    logits = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(D // N) - strength * np.log1p(scale * distance)
    weights = np.exp(np.where(np.tri(T, dtype=bool), logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    kernel, bias = layer.output_dense.get_weights()
    expected = np.einsum("bnts,bsnh->btnh", weights, value).reshape(B, T, D) @ kernel + bias
    drawing.assert_same(layer(x), expected)


def test_a_new_model_generates_what_a_loop_without_a_cache_does():
    model, found = generator(), IDS
    answers = model.generate(IDS, max_new_tokens=4)
    for _ in range(4):
        best = drawing.array(model(found))[:, -1].argmax(-1)
        found = np.concatenate([found, best[:, None].astype("int32")], axis=1)
    np.testing.assert_array_equal(answers, found)


def test_training_moves_its_weights_and_a_file_keeps_them(tmp_path):
    model = generator()
    before = model.get_layer("decoder_0").attention.position_layer.get_weights()[0]
    model.compile("sgd", txf.training.TokenCrossEntropy())
    model.fit(IDS[:, :-1], IDS[:, 1:], verbose=0)
    assert np.abs(model.get_layer("decoder_1").attention.position_layer.get_weights()[0] - before).min() > 0
    model.save(tmp_path / "model.keras")
    drawing.assert_same(keras.saving.load_model(tmp_path / "model.keras")(IDS), model(IDS))
