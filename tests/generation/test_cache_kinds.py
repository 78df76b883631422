"""Caches of 8 bits, and caches of the first and last tokens, against passes over the whole text."""

import drawing
import keras
import numpy as np
import pytest

import keras_txf as txf

PROMPTS = [[5, 3, 8, 2, 9, 4, 1, 1, 7, 6], [7, 2], [4, 4, 6]]
NEW, SINKS, WINDOW = 9, 2, 4


def model_of(**options):
    keras.utils.set_random_seed(1)
    return txf.models.decoder_generator(23, 2, 32, 2, position="rotary", **options)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_sinks_and_a_window_are_a_mask(prompt):
    model = model_of()
    cache = txf.layers.SinkCache.of_size(SINKS, WINDOW)
    found = model.generate([prompt, [3]], NEW, cache=cache, return_scores=True, padded=False)
    ids = np.array(found.ids[0])
    query, key = np.indices((len(ids), len(ids)))
    mask = (key <= query) & ((key < SINKS) | (query - key < WINDOW))
    x = model.get_layer("embedding")(ids[None])
    for index in range(2):
        x = model.get_layer(f"decoder_{index}")(x, attention_mask=mask[None])
    logits = drawing.array(model.get_layer("embedding")(x, reverse=True))[0]
    logits[:, 0] = -np.inf  # padding is never chosen
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    places = np.arange(len(prompt), len(ids))
    np.testing.assert_allclose(found.log_probs[0], expected[places - 1, ids[places]], atol=1e-5)
    np.testing.assert_array_equal(expected[places - 1].argmax(-1), ids[places])


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"num_key_value_heads": 1}], ids=["full", "window", "grouped"])
def test_integers_of_8_bits_round_keys_and_values(options):
    model = model_of(**options)
    for sampler in ("greedy", txf.generation.Beam(3)):
        exact = model.generate(PROMPTS, NEW, sampler, return_scores=True)
        rounded = model.generate(PROMPTS, NEW, sampler, return_scores=True, cache="int8")
        assert 0 < np.abs(exact.scores - rounded.scores).max() < 0.05 or "window" in options
    first = model.generate(PROMPTS, 4, cache="int8", return_state=True)
    assert model.generate([[5]] * 3, 4, state=first.state, cache="int8").shape == (3, 5)


def test_a_cache_of_int8_takes_a_quarter():
    cache = txf.layers.Int8Cache.of_prompt(np.ones((2, 5), bool), length=5)
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 64)).astype("float32")
    cache.update(x, -x)
    key, value = map(drawing.array, cache.read())
    np.testing.assert_allclose(key, x, atol=np.abs(x).max() / 254 + 1e-6)
    np.testing.assert_array_equal(key, -value)
    assert sum(np.asarray(part).nbytes for part in cache.stored.values()) == 2 * x.size * (1 + 4 / 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "int4"}, '`cache` must be None, "int8" or a subclass of txf.layers.Cache'),
        ({"cache": txf.layers.SinkCache, "sampler": "beam"}, "`cache` must keep all tokens for beams"),
        ({"cache": txf.layers.SinkCache, "return_state": True}, "`cache` must keep all tokens"),
    ],
)
def test_a_bad_cache_raises_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        model_of().generate(PROMPTS, 2, **options)
