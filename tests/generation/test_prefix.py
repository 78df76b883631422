"""Vectors before the tokens: an image or a soft prompt, which all blocks read, or some."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from naive import NEW, PROMPTS, naive

import keras_txf as txf
from keras_txf.generation import Beam


def with_prefix(wire, position, length=3):
    """A model of 20 tokens that reads `length` vectors (B, length, 6) before the tokens."""
    ids, image = keras.Input((None,), dtype="int32", name="token_ids"), keras.Input((length, 6), name="image")
    x = txf.layers.PositionalEmbedding(20, 8, position_encoding=None if position else "sinusoidal", pad_id=None)(ids)
    x = wire["join"]([keras.layers.Dense(8)(image), x])
    for window in (None, 4):
        x = txf.layers.DecoderBlock(2, position=position, norm_placement="pre", window=window)(x)
    model = keras.Model({"token_ids": ids, "image": image}, keras.layers.Dense(20)(wire["cut"](x)))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.5)
    return model


PREFIXES = {
    "layers": {"join": lambda parts: keras.layers.Concatenate(axis=1)(parts),
               "cut": lambda x: keras.layers.Cropping1D((3, 0))(x)},
    "operations": {"join": lambda parts: ops.concatenate(parts, axis=1), "cut": lambda x: x[:, 3:]},
    "uncut": {"join": lambda parts: keras.layers.Concatenate(axis=1)(parts), "cut": lambda x: x},
}  # fmt: skip


@pytest.mark.slow
@drawing.not_on_jax
@pytest.mark.parametrize("wiring, position", [("layers", None), ("operations", "rotary"), ("uncut", "alibi")])
def test_a_prefix_of_vectors_is_read_before_the_tokens(tmp_path, wiring, position):
    model = with_prefix(PREFIXES[wiring], position)
    txf.models.generative(model).save(tmp_path / "model.keras")
    generator = keras.saving.load_model(tmp_path / "model.keras")
    image, prompts = np.random.default_rng(1).normal(size=(2, 3, 6)).astype("float32"), [[1, 2, 3, 4], [5]]
    found = generator.generate(prompts, 4, inputs={"image": image}, padded=False)
    for row, prompt in enumerate(prompts):
        ids = list(prompt)
        for _ in range(4):
            logits = model({"token_ids": np.array([ids]), "image": image[row : row + 1]})
            ids.append(int(drawing.array(logits)[0, -1].argmax()))
        assert found[row] == ids
    beam = {"sampler": Beam(2), "padded": False}
    together = generator.generate(prompts, 3, inputs={"image": image}, **beam)
    assert together[1:] == generator.generate(prompts[1:], 3, inputs={"image": image[1:]}, **beam)
    function, ids = generator.make_generate_function(4), np.array([[1, 2, 3, 4], [0, 0, 0, 5]])
    tokens, _, _ = function(ids, np.array([4, 1]), np.array([3, 0]), {"image": image})
    assert drawing.array(tokens).tolist() == [row[len(prompt) :] for row, prompt in zip(found, prompts)]
    alone = generator.generate(start_id=7, max_new_tokens=2, inputs={"image": image})
    np.testing.assert_array_equal(alone, generator.generate([[7], [7]], 2, inputs={"image": image}))


@drawing.not_on_jax
def test_processors_see_no_prefix():
    seen = []

    def look(logits, history):
        seen.append(history.tokens)
        return logits

    generator = txf.models.generative(with_prefix(PREFIXES["layers"], "rotary"))
    generator.generate([[1, 2]], 1, inputs={"image": np.zeros((1, 3, 6), "float32")}, processors=[look])
    tokens = drawing.array(seen[0])[0]
    assert sorted(tokens[tokens >= 0]) == [1, 2]


def test_a_prefix_of_unknown_length_raises_an_error():
    with pytest.raises(ValueError, match="length of the prefix"):
        txf.models.generative(with_prefix(PREFIXES["layers"], "rotary", length=None))


@drawing.not_on_jax
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_prefix_may_be_before_some_blocks_alone(is_cut):
    ids, image = keras.Input((None,), dtype="int32", name="token_ids"), keras.Input((3, 8), name="image")
    x = txf.layers.PositionalEmbedding(20, 8, pad_id=None)(ids)
    first, second = txf.layers.DecoderBlock(2, name="first"), txf.layers.DecoderBlock(2, name="second")
    if is_cut:  # between the blocks, or joined there
        x = second(first(ops.concatenate([image, x], axis=1))[:, 3:])
    else:
        x = second(ops.concatenate([image, first(x)], axis=1))
    model = drawing.randomize(keras.Model({"token_ids": ids, "image": image}, keras.layers.Dense(20)(x)))
    vectors = np.random.default_rng(1).normal(size=(2, 3, 8)).astype("float32")
    found = txf.models.generative(model).generate(PROMPTS, NEW, inputs={"image": vectors})
    np.testing.assert_array_equal(found[:, -NEW:], naive(model, PROMPTS, {"image": vectors}))


@drawing.not_on_jax
@pytest.mark.parametrize("between", [lambda x: x, lambda x: keras.layers.Dense(8, activation="tanh")(x)])
def test_a_soft_prompt_is_trained_and_read(between):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = txf.layers.PositionalEmbedding(20, 8)(ids)
    soft = txf.layers.SoftPrompt(3)
    x = txf.layers.DecoderBlock(2, position="alibi")(keras.layers.Concatenate(axis=1)([between(soft(x)), x]))
    model = drawing.randomize(keras.Model(ids, keras.layers.Dense(20)(x[:, 3:])))
    before = drawing.array(soft.vectors)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(np.array(PROMPTS), np.array(PROMPTS))
    assert np.abs(drawing.array(soft.vectors) - before).min() > 0
    found = txf.models.generative(model).generate([*PROMPTS, [9]], NEW, padded=False)
    for prompt, row in zip([*PROMPTS, [9]], found):
        logits = drawing.array(model(np.array([row[:-1]])))[0, len(prompt) - 1 :]
        assert row[len(prompt) :] == (logits[:, 1:].argmax(-1) + 1).tolist()  # never padding
