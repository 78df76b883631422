"""Samplers: what they draw, how often, and from which seed."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import drawing
import keras_txf as txf

VOCABULARY = 6
LOGITS = np.array([0.5, -1.0, 1.5, 0.0, -0.5, 1.0])
# Chance exceeds this once in 100,000 times, with 5 degrees of freedom.
LIMIT = 30.9


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def chi_square(tokens, probabilities):
    counts = np.bincount(tokens, minlength=len(probabilities))
    expected = probabilities * len(tokens)
    return ((counts - expected) ** 2 / expected).sum()


def drawn(sampler, logits):
    return drawing.array(sampler(ops.convert_to_tensor(logits, "float32"), keras.random.SeedGenerator(0))).astype(int)


@functools.cache
def model():
    return drawing.randomize(txf.models.decoder_generator(VOCABULARY, 1, 8, 2), seed=2)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature):
    sampler = txf.generation.Sampling(temperature)
    tokens = drawn(sampler, np.tile(LOGITS, (20_000, 1)))
    assert chi_square(tokens, softmax(LOGITS / temperature)) < LIMIT
    assert chi_square(tokens, softmax(LOGITS / (1.2 * temperature))) > LIMIT  # the test would notice
    each = drawn(sampler, np.array([[0.0, 50.0], [50.0, 0.0]]))
    np.testing.assert_array_equal(each, [1, 0])


def test_generate_draws_from_the_models_softmax():
    logits = drawing.array(model()(np.array([[3, 1]])))[0, -1]
    probabilities = softmax(logits.astype("float64"))
    assert probabilities.max() < 0.9
    tokens = model().generate([[3, 1]] * 4000, max_new_tokens=1, sampler="sampling", seed=5)[:, -1]
    assert chi_square(tokens, probabilities) < LIMIT
    assert chi_square(tokens, softmax(1.5 * logits)) > LIMIT


def test_second_token_depends_on_the_first():
    rows = model().generate([[3, 1]] * 4000, max_new_tokens=2, sampler="sampling", seed=6)
    first = np.bincount(rows[:, 2]).argmax()
    after = rows[rows[:, 2] == first, 3]
    logits = drawing.array(model()(np.array([[3, 1, first]])))[0, -1]
    assert len(after) > 500
    assert chi_square(after, softmax(logits.astype("float64"))) < LIMIT


def test_seeds_decide():
    def run(seed):
        return model().generate([[3, 1]] * 3 + [[2]], max_new_tokens=6, sampler="sampling", seed=seed)

    np.testing.assert_array_equal(run(1), run(1))
    assert (run(1) != run(2)).any()
    assert (run(None) != run(None)).any()
    assert (run(1)[0] != run(1)[1]).any()  # rows draw for themselves


def test_temperature_zero_is_greedy():
    greedy = model().generate([[3, 1], [2]], max_new_tokens=4)
    for seed in (1, 2):
        cold = model().generate([[3, 1], [2]], 4, sampler=txf.generation.Sampling(0), seed=seed)
        np.testing.assert_array_equal(cold, greedy)
    np.testing.assert_array_equal(model().generate([[3, 1], [2]], 4, sampler=txf.generation.Greedy()), greedy)


def test_greedy_takes_the_lowest_of_equals():
    tokens = drawn(txf.generation.Greedy(), np.array([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]))
    np.testing.assert_array_equal(tokens, [1, 0])


def test_a_function_may_choose():
    def least_likely(logits, seed):
        assert isinstance(seed, keras.random.SeedGenerator)
        assert logits.shape == (2, VOCABULARY) and keras.backend.standardize_dtype(logits.dtype) == "float32"
        return ops.argmin(logits, axis=-1)

    rows = model().generate([[3, 1], [2, 4]], max_new_tokens=2, sampler=least_likely)
    for length in (2, 3):
        logits = drawing.array(model()(rows[:, :length]))[:, -1]
        np.testing.assert_array_equal(rows[:, length], logits.argmin(-1))
