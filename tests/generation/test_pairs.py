"""A mask and a bias for pairs of positions, and prefixes that see each other both ways, in decoding as in training."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf

B, L, NEW = 3, 20, 4
PROMPTS = [[1, 2, 3, 4, 5, 6], [7, 8], [9, 10, 11, 12]]
RNG = np.random.default_rng(3)
VALUES = {
    "attention_bias": RNG.normal(size=(B, 2, L, L)).astype("float32"),
    "attention_mask": np.logical_or(RNG.random((B, L, L)) < 0.7, np.eye(L, dtype=bool)),
    "prefix_length": np.array([5, 1, 3]),
}
INPUTS = {
    "attention_bias": lambda: keras.Input((2, None, None), name="attention_bias"),
    "attention_mask": lambda: keras.Input((None, None), dtype="bool", name="attention_mask"),
    "prefix_length": lambda: keras.Input((), dtype="int64", name="prefix_length"),
}


def make(names, window):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x, others = txf.layers.PositionalEmbedding(23, 16, pad_id=None)(ids), {name: INPUTS[name]() for name in names}
    for _ in range(2):
        x = txf.layers.DecoderBlock(2, position="rotary", window=window)(x, **others)
    model = keras.Model({"token_ids": ids, **others}, keras.layers.Dense(23)(x))
    return txf.models.generative(drawing.randomize(model, seed=1))


@pytest.mark.drawn(2)
@drawing.not_on_jax
@pytest.mark.parametrize("names, window, sampler", [
    (["attention_bias"], None, txf.generation.Beam(3)), (["attention_mask"], None, "greedy"),
    (["prefix_length"], 3, "greedy"), ([*VALUES], 4, txf.generation.Beam(2)),
])  # fmt: skip
def test_generated_log_probs_are_those_of_the_model(names, window, sampler):
    model = make(names, window)
    inputs = {name: VALUES[name] for name in names}
    found = model.generate(PROMPTS, NEW, sampler, inputs=inputs, return_scores=True)
    for row, prompt in enumerate(PROMPTS):
        ids = found.ids[row, : len(prompt) + NEW]
        length = len(ids) - 1
        own = {name: value[row : row + 1] for name, value in inputs.items()}
        own = {name: value[..., :length, :length] if value.ndim > 1 else value for name, value in own.items()}
        logits = drawing.array(ops.log_softmax(model({"token_ids": ids[None, :-1], **own})))[0, len(prompt) - 1 :]
        np.testing.assert_allclose(found.log_probs[row], logits[range(NEW), ids[len(prompt) :]], atol=1e-4)


@drawing.not_on_jax
@pytest.mark.parametrize("name, value", [
    ("attention_bias", VALUES["attention_bias"][..., :8, :8]), ("attention_mask", VALUES["attention_mask"][:, :8, :8]),
    ("prefix_length", np.array([5, 3, 3])),
])  # fmt: skip
def test_tokens_without_a_value_raise_an_error(name, value):
    with pytest.raises(ValueError, match="beyond the model's `attention_mask`"):
        make([name], None).generate(PROMPTS, NEW, inputs={name: value})


def test_a_mask_made_of_the_new_tokens_raises_an_error():
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(23, 8)(ids)
    x = txf.layers.DecoderBlock(2)(x, attention_mask=ids[:, None] != 3)
    with pytest.raises(ValueError, match="`attention_mask` of 'decoder_block.*' without the new tokens"):
        txf.models.generative(keras.Model(ids, keras.layers.Dense(23)(x)))


def test_padding_before_the_tokens_is_not_in_the_prefix():
    layer, x, prefix = txf.layers.MultiHeadSelfAttention(2, causal=True), drawing.normal(2, 5, 8), np.array([2, 3])
    padded = layer(
        np.pad(x, ((0, 0), (2, 0), (0, 0))), mask=np.array([[0, 0, 1, 1, 1, 1, 1]] * 2, "bool"), prefix_length=prefix
    )
    drawing.assert_same(padded[:, 2:], layer(x, prefix_length=prefix), 1e-5)
    assert drawing.difference(layer(x), layer(x, prefix_length=prefix)) > 1e-3
    with pytest.raises(ValueError, match="`prefix_length` must go with the shape"):
        layer(x, prefix_length=np.array([1, 2, 3]))


def test_a_prefix_needs_a_causal_attention():
    with pytest.raises(ValueError, match="`prefix_length` was passed, but causal=False"):
        txf.layers.MultiHeadSelfAttention(2)(np.zeros((1, 3, 8), "float32"), prefix_length=np.array([2]))
