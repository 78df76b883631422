"""Samplers: their draws, the frequencies, and the seeds."""

import dataclasses
import functools

import drawing
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from refusals import refused
from scipy import stats

import keras_txf as txf
from keras_txf.backend.compilers import compiled
from keras_txf.generation import logits as logits_module
from keras_txf.generation import samplers
from keras_txf.generation.parameters import StepSeed
from keras_txf.ops.tensors import LOWEST

Greedy, Sampling = txf.generation.Greedy, txf.generation.Sampling
VOCABULARY = 6
LOGITS = np.array([0.5, -1.0, 1.5, 0.0, -0.5, 1.0])
SELDOM = 1e-5  # how often the draws of a right sampler would fail a test, were the seeds not fixed


def softmax(logits):
    weights = np.exp(np.asarray(logits, "float64") - np.max(logits))
    return weights / weights.sum()


def chance(tokens, probabilities):
    """How often right draws are as far from their probabilities as these: the p-value of the chi-square test."""
    counts = np.bincount(tokens, minlength=len(probabilities))
    possible = probabilities > 0
    if counts[~possible].any():
        return 0.0
    return stats.chisquare(counts[possible], len(tokens) * probabilities[possible]).pvalue


def reference(logits, temperature=1.0, top_k=None, top_p=None, min_p=None, smallest=0.0):
    """The probabilities of one row in float64, of logits that are float32; differences below `smallest` are zeros."""
    if top_k is not None:
        logits = np.where(logits >= np.sort(logits)[::-1][: min(top_k, len(logits))][-1], logits, -np.inf)
    logits = (logits - np.max(logits)) / temperature
    with np.errstate(over="ignore"):
        logits = np.where(logits > -smallest, 0.0, logits).astype("float32").astype("float64")
    if top_p is not None:
        order, weights = np.argsort(-logits, kind="stable"), np.exp(logits)
        before = np.cumsum(weights[order]) - weights[order]
        logits[order[(before >= top_p * weights.sum()) & (np.arange(len(logits)) > 0)]] = -np.inf
    if min_p is not None:
        logits = np.where(np.exp(logits).astype("float32") >= min_p, logits, -np.inf)
    return np.exp(logits) / np.exp(logits).sum()


def filtered(sampler, logits):
    return dropped(sampler.filtered(ops.convert_to_tensor(logits, "float32")))


def dropped(logits):
    """The logits with -inf instead of the finite number that filters use."""
    logits = drawing.array(logits)
    return np.where(logits > LOWEST, logits, -np.inf)


def drawn(sampler, logits):
    return drawing.array(sampler(ops.convert_to_tensor(logits, "float32"), keras.random.SeedGenerator(0))).astype(int)


@functools.cache
def model():
    return drawing.randomize(txf.models.decoder_generator(VOCABULARY, 1, 8, 2, pad_id=None), seed=2)


FILTERS = {
    "none": {},
    "cold": dict(temperature=0.5),
    "hot": dict(temperature=2.0),
    "top_k": dict(top_k=4),
    "top_p": dict(top_p=0.8),
    "min_p": dict(min_p=0.2),
    "all": dict(temperature=1.3, top_k=5, top_p=0.9, min_p=0.25),
}


@pytest.mark.parametrize("case", FILTERS)
def test_draws_follow_the_softmax(case):
    options = {"temperature": 1.0, **FILTERS[case]}
    rows = np.array([LOGITS, 1.2 * LOGITS[::-1]])
    tokens = drawn(Sampling(**options), np.tile(rows, (20_000, 1)))
    wrong = {**options, "temperature": 1.2 * options["temperature"]}
    for row, draws in zip(rows, (tokens[0::2], tokens[1::2])):
        assert chance(draws, reference(row, **options)) > SELDOM
        assert chance(draws, reference(row, **wrong)) < SELDOM  # the test would notice
        assert 1 < len(set(draws)) == (reference(row, **options) > 0).sum()


@pytest.mark.slow
def test_draws_from_a_large_vocabulary():
    """Where sums are long and most tokens are out."""
    size = 5000
    logits = np.where(np.arange(size) % 7 < 3, np.sin(np.arange(size)), -np.inf)
    tokens = drawn(Sampling(), np.tile(logits, (4000, 1)))
    assert np.isfinite(logits[tokens]).all()
    eighths = np.add.reduceat(softmax(logits), range(0, size, size // 8))
    assert chance(tokens // (size // 8), eighths) > SELDOM
    assert chance((tokens * 0.95).astype(int) // (size // 8), eighths) < SELDOM


@pytest.mark.usefixtures("compiled")
def test_rounding_draws_nothing_that_is_forbidden(monkeypatch):
    """Compiled sums are parallel and may grow at a weight of 0; this test hits each such index, and both ends."""
    monkeypatch.setattr(keras.random, "uniform", lambda shape, dtype, seed: seed)
    row = drawing.normal(1, 1500)
    row[:, np.random.default_rng(2).random(1500) < 0.5] = -np.inf
    row[:, 0] = row[:, -300:] = -np.inf
    logits = ops.convert_to_tensor(row)
    sums = drawing.array(compiled(lambda logits: ops.cumsum(ops.exp(logits - ops.max(logits))), [])(logits))
    shares = [np.nextafter(sums / sums[-1], side) for side in np.float32([0, 0.5, 1])]
    shares = np.concatenate([[0, 1], *shares]).astype("float32")  # 1 stands for a sum that ends too low

    def draw(logits, shares):
        return logits_module.draw(ops.repeat(logits, shares.shape[0], axis=0), shares)

    tokens = drawing.array(compiled(draw, [])(logits, ops.convert_to_tensor(shares[:, None]))).astype(int)
    assert np.isfinite(row[0, tokens]).all()
    assert len(set(tokens)) == np.isfinite(row).sum()


@st.composite
def rows_and_options(draw):
    """Logits of some rows, with ties or without, a few of them forbidden; and filters, each on or off."""
    size = draw(st.integers(2, 9))
    logits = np.random.default_rng(draw(st.integers(0, 10**6))).normal(scale=2, size=(30, size))
    logits = draw(st.sampled_from([logits, np.round(logits), np.zeros_like(logits)]))
    logits[:, draw(st.integers(0, size - 1))] = draw(st.sampled_from([0.0, -np.inf]))
    return logits, {
        "temperature": draw(st.sampled_from([1.0, 0.6, 1.7])),
        "top_k": draw(st.sampled_from([None, None, 1, 2, 3, 5, 99])),
        "top_p": draw(st.sampled_from([None, None, 1e-9, 0.31, 0.57, 0.93, 1.0])),
        "min_p": draw(st.sampled_from([None, None, 0.0, 0.07, 0.41, 1.0])),
    }


@drawing.few(15)
@given(rows_and_options())
def test_filters_keep_the_tokens_of_the_reference(case):
    logits, options = case
    actual = filtered(Sampling(**options), logits)
    for row, kept in zip(logits, actual):
        expected = reference(row, **options)
        np.testing.assert_array_equal(kept > -np.inf, expected > 0)
        np.testing.assert_allclose(softmax(kept.astype("float64")), expected, atol=1e-6)


NUMBERS = st.floats(width=32, allow_nan=False, allow_subnormal=False, max_value=2.0**127)


@drawing.few(8)
@given(st.lists(st.lists(NUMBERS, min_size=5, max_size=5), min_size=40, max_size=40), st.integers(1, 5))
def test_top_k_of_any_numbers(rows, k):
    """Zeros of both signs, the largest and the smallest, -inf: in the order of their integers."""
    logits = np.array(rows, "float32")
    expected = np.where(logits >= np.sort(logits)[:, -k, None], logits, -np.inf)
    found = logits_module.keep_top_k(ops.convert_to_tensor(logits), k)
    np.testing.assert_array_equal(dropped(found), dropped(expected))


def test_top_k_of_neighbouring_numbers():
    """Bisection ends at two adjacent numbers."""
    logits = drawing.normal(50, 1)
    for _ in range(4):
        logits = np.concatenate([logits, np.nextafter(logits[:, -1:], np.float32(9))], axis=1)
    for k in (1, 3):
        assert ((filtered(Sampling(top_k=k), logits) > -np.inf).sum(axis=1) == k).all()


def test_equals_at_the_border():
    logits = np.array([[1.0, 2.0, 1.0, 0.0, 1.0]])
    inf = np.inf
    for options, expected in [
        (dict(top_k=2), [1, 2, 1, -inf, 1]),  # as likely as the second
        (dict(top_k=1), [-inf, 2, -inf, -inf, -inf]),
        (dict(top_p=0.5), [1, 2, -inf, -inf, -inf]),  # 0.45, then 0.16 each: no more than is needed
        (dict(top_p=0.65), [1, 2, 1, -inf, -inf]),
        (dict(top_p=1e-9), [-inf, 2, -inf, -inf, -inf]),
        (dict(min_p=np.exp(-1) - 1e-6), [1, 2, 1, -inf, 1]),
    ]:
        found = filtered(Sampling(**options), logits) + 2  # the largest is 0
        np.testing.assert_array_equal(found, [expected], err_msg=str(options))
    for count in range(1, 9):  # of 8 equals each is an eighth
        assert (filtered(Sampling(top_p=count / 8), np.zeros((1, 8))) == 0).sum() == count


def test_filters_that_keep_everything():
    logits = np.array([[-80.0, 3, -np.inf, 0, 60, -20], [0, -1, -2, -3, -4, -5]])  # likely by e^140
    expected = logits - [[60], [0]]  # the largest is 0
    for options in (dict(top_k=6), dict(top_k=99), dict(top_p=1.0), dict(min_p=0.0)):
        np.testing.assert_array_equal(filtered(Sampling(**options), logits)[:, 1:], expected[:, 1:])


OPTIONS = dict(temperature=0.7, top_k=4, top_p=0.85, min_p=0.1)


@pytest.mark.parametrize("names", [
    *(pytest.param([name], marks=pytest.mark.long) for name in OPTIONS), list(OPTIONS),
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("compiled")
def test_compiled_with_tensors_in_place_of_numbers(names):
    """Another value, given as a tensor, needs no other compilation."""
    sampler = Sampling(**{name: OPTIONS[name] for name in names})
    fields = [name for name in names if name != "top_k"]
    traces = []

    def run(logits, values, seed):
        traces.append(logits.shape)
        changed = dataclasses.replace(sampler, **values)
        return changed.filtered(logits), changed(logits, StepSeed(seed, ops.zeros((), "int32")))

    function = compiled(run, [])
    logits = drawing.normal(5, 11, seed=4)
    for factor in (1.0, 0.8):
        values = {name: factor * OPTIONS[name] for name in fields}
        state = keras.random.SeedGenerator(3).state.value
        tensors = {name: ops.convert_to_tensor(value, "float32") for name, value in values.items()}
        kept, tokens = function(ops.convert_to_tensor(logits), tensors, state)
        expected = dataclasses.replace(sampler, **values)
        drawing.assert_same(dropped(kept), filtered(expected, logits))
        assert (dropped(kept)[np.arange(5), drawing.array(tokens).astype(int)] > -np.inf).all()
    assert len(traces) == 1 or keras.backend.backend() == "torch"


def test_generate_draws_from_the_models_softmax():
    """And the second token depends on the first."""
    rows = model().generate([[3, 1]] * 4000, max_new_tokens=2, sampler="sampling", seed=6)
    logits = drawing.array(model()(np.array([[3, 1]])))[0, -1].astype("float64")
    assert softmax(logits).max() < 0.9
    assert chance(rows[:, 2], softmax(logits)) > SELDOM
    assert chance(rows[:, 2], softmax(1.5 * logits)) < SELDOM  # the test would notice
    first = np.bincount(rows[:, 2]).argmax()
    after = rows[rows[:, 2] == first, 3]
    logits = drawing.array(model()(np.array([[3, 1, first]])))[0, -1]
    assert len(after) > 500
    assert chance(after, softmax(logits.astype("float64"))) > SELDOM


def test_seeds_decide():
    def run(seed):
        return model().generate([[3, 1]] * 9 + [[2]], max_new_tokens=2, sampler="sampling", seed=seed)

    for seed in (1, -1, 2**32, np.int64(2**62), -(2**70)):
        np.testing.assert_array_equal(run(seed), run(seed))
    assert (run(1) != run(2)).any()
    assert (run(None) != run(None)).any()
    assert len(np.unique(run(1)[:9], axis=0)) > 2  # rows draw for themselves


def test_temperature_zero_becomes_greedy():
    """Before anything is compiled: a tensor would not say that it is 0."""
    for sampler in (Sampling(0), Sampling(0.0, top_k=3, top_p=0.5), Sampling(np.float32(0))):
        assert samplers.get_sampler(sampler, 9) == Greedy()
        np.testing.assert_array_equal(drawn(sampler, np.array([[0.0, 2.0, 2.0]])), [1])
    assert samplers.get_sampler(Sampling(0.5), 9) == Sampling(0.5)
    assert samplers.get_sampler("sampling", 9) == Sampling(1.0)
    greedy = model().generate([[3, 1], [2]], 4, sampler=Greedy())
    for sampler in ("greedy", Sampling(0)):
        np.testing.assert_array_equal(model().generate([[3, 1], [2]], 4, sampler=sampler, seed=2), greedy)


@pytest.mark.usefixtures("compiled")
def test_generate_draws_tokens_that_the_filters_keep():
    """Inside the compiled loop, at a later step."""
    options = dict(temperature=0.9, top_k=4, top_p=0.8, min_p=0.1)
    rows = model().generate([[3, 1]] * 300, max_new_tokens=2, sampler=Sampling(**options), seed=8)
    starts = np.unique(rows[:, :3], axis=0)
    for ids, logits in zip(starts, drawing.array(model()(starts))[:, -1]):
        expected = reference(logits, **options) > 0
        assert set(rows[(rows[:, :3] == ids).all(axis=1), 3]) <= set(np.flatnonzero(expected))
    assert len({tuple(row[2:]) for row in rows}) > 2


def test_equal_samplers_share_a_compilation():
    assert Sampling(1, 5, 1, 0) == Sampling(1.0, np.int64(5), 1.0, 0.0)
    assert hash(Sampling(1, 5, 1, 0)) == hash(Sampling(1.0, np.int64(5), 1.0, 0.0))
    assert len({Sampling(), Sampling(top_k=5), Sampling(top_p=0.5), Sampling(min_p=0.5), Greedy()}) == 5
    assert {type(value) for value in dataclasses.astuple(Sampling(1, None, 1, 0)) if value is not None} == {float}


ARRAY = np.array([0.5])
BAD = [
    *(("temperature", value, ["positive", "greedy"]) for value in (
        -1, -0.5, np.nan, np.inf, True, False, "1", None, ARRAY, 1e-60)),
    *(("top_k", value, ["positive integer"]) for value in (0, -3, 2.0, True, "5", np.float32(2))),
    *(("top_p", value, ["(0, 1]"]) for value in (0, 0.0, -0.1, 1.1, 90, np.nan, True, "0.9", ARRAY)),
    *(("min_p", value, ["[0, 1]"]) for value in (-0.1, 1.1, np.nan, np.inf, False, "0.1", ARRAY)),
]  # fmt: skip


def test_bad_options_raise_errors():
    for name, value, words in BAD:
        refused(lambda: Sampling(**{name: value}), [f"`{name}`", "received", repr(value), *words])


def test_greedy_takes_the_lowest_of_equals():
    tokens = drawn(Greedy(), np.array([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]))
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


def test_draws_of_one_step_are_independent_and_repeat():
    """A sampler of a user's own may draw more than once."""

    def draws(seed, count):
        seeds = StepSeed(ops.convert_to_tensor(keras.random.SeedGenerator(seed).state), ops.convert_to_tensor(count))
        return [drawing.array(keras.random.uniform((2000,), seed=seeds)) for _ in range(3)]

    steps = [draws(1, 0), draws(1, 1), draws(2, 0), draws(9, 0)]  # on PyTorch Keras adds seed and step
    every = np.concatenate(steps)
    assert np.abs(np.corrcoef(every) - np.eye(12)).max() < 0.1
    np.testing.assert_array_equal(steps[0], draws(1, 0))
