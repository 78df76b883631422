"""What `generate` keeps of what it compiles: a bounded number of loops, and nothing of those that are gone."""

import concurrent.futures
import gc
import weakref

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.generation import compilers, engine
from keras_txf.generation.step_seeds import StepSeed

VOCABULARY = 11
PROMPTS = [[1, 2, 3], [4, 5]]
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's XLA")


def make(seed=1):
    return drawing.randomize(txf.models.decoder_generator(VOCABULARY, 1, 8, 2), seed=seed)


def kept():
    gc.collect()
    return [loop for one in engine._engines for _, loop in one._loops.values()]


@pytest.mark.slow
def test_a_process_keeps_so_many_loops(monkeypatch):
    monkeypatch.setattr(engine, "MAX_LOOPS", 3)
    first, second = make(), make(2)
    for model in (first, second):
        for rows in (1, 2, 3, 4):
            found = model.generate([[1, 2]] * rows, 2)
            assert len(kept()) <= 3
            if (model, rows) == (first, 1):
                expected = found
    assert len(kept()) == 3
    np.testing.assert_array_equal(first.generate([[1, 2]], 2), expected)  # forgotten, and made anew


@pytest.mark.slow
def test_what_is_forgotten_is_freed(monkeypatch):
    monkeypatch.setattr(engine, "MAX_LOOPS", 1)
    model = make()
    model.generate(PROMPTS, 2)
    mine = next(one for one in engine._engines if one._loops)
    ((_, loop),) = mine._loops.values()
    gone = [weakref.ref(function) for function in loop]
    del loop
    model.generate(PROMPTS, 2, "sampling")
    gc.collect()
    assert [function() for function in gone] == [None] * 5


@pytest.mark.slow
def test_loops_go_with_their_model(monkeypatch):
    model = make()
    before = len(kept())
    model.generate(PROMPTS, 2)
    assert len(kept()) == before + 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and len(kept()) == before


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="runs eagerly")
def test_a_loop_is_traced_once_for_its_shapes():
    traces = []

    def sampler(logits, seed):
        traces.append(logits.shape)
        return ops.argmax(logits, axis=-1)

    model, counts = make(), []
    for rows, length in ((2, 3), (2, 30), (1, 3), (2, 7), (1, 1)):
        model.generate([[1] * length] * rows, 4, sampler)
        counts.append(len(traces))
    assert counts[0] > 0 and counts == [counts[0], counts[0], 2 * counts[0], 2 * counts[0], 2 * counts[0]]


@pytest.mark.slow
def test_threads_that_forget_each_others_loops(monkeypatch):
    monkeypatch.setattr(engine, "MAX_LOOPS", 2)
    models = [make(seed) for seed in (1, 2)]
    calls = [
        (model, prompts, sampler)
        for model in models
        for prompts, sampler in ((PROMPTS, "greedy"), (PROMPTS[:1], txf.generation.Sampling(1.5)))
    ]

    def run(call):
        model, prompts, sampler = call
        return model.generate(prompts, 4, sampler, seed=5)

    expected = [run(call) for call in calls]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found, right in zip(pool.map(run, 2 * calls), 2 * expected, strict=True):
            np.testing.assert_array_equal(found, right)
    assert len(kept()) <= 2


@pytest.mark.slow
@on_tensorflow
def test_beyond_a_number_of_functions_xla_compiles_no_more(monkeypatch):
    """TensorFlow frees none of them, and each takes some megabytes."""
    asked = []
    own = compilers._one_more_by_xla
    monkeypatch.setattr(compilers, "_xla_functions", 0)
    monkeypatch.setattr(compilers, "XLA_FUNCTIONS", 2)
    monkeypatch.setattr(compilers, "_one_more_by_xla", lambda: asked.append(own()) or asked[-1])
    samplers = ["greedy", txf.generation.Sampling(1.5, top_p=0.9), "beam", "contrastive"]
    by_xla, as_graph = make(), make()
    for sampler in samplers:
        monkeypatch.setattr(compilers, "_xla_functions", 0)
        expected = by_xla.generate(PROMPTS, 5, sampler, seed=3, return_scores=True)
        monkeypatch.setattr(compilers, "_xla_functions", 2)
        found = as_graph.generate(PROMPTS, 5, sampler, seed=3, return_scores=True)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    assert asked == [True, False] * len(samplers)


@on_tensorflow
def test_draws_are_the_same_by_xla_and_without():
    import tensorflow as tf

    def shares(count):
        return compilers.uniform(5, StepSeed(tf.constant([3, 2**31 - 1], "int64"), count))

    counts = [tf.constant(count) for count in (0, 1, 700)]
    by_xla = [tf.function(shares, jit_compile=True)(count).numpy() for count in counts]
    for jit_compile in (False, None):
        np.testing.assert_array_equal([tf.function(shares, jit_compile=jit_compile)(count) for count in counts], by_xla)
    assert len(np.unique(by_xla)) == 15


@pytest.mark.slow
@on_tensorflow
def test_shares_are_uniform_and_of_each_other_independent():
    import tensorflow as tf
    from scipy import stats

    seeds = [tf.constant([seed, 0], "int64") for seed in range(40)]
    shares = np.array(
        [[compilers.uniform(50, StepSeed(seed, tf.constant(count))) for count in range(20)] for seed in seeds]
    )
    shares = shares[..., 0]  # (seed, step, row)
    assert shares.min() >= 0 and shares.max() < 1
    assert stats.kstest(shares.ravel(), "uniform").pvalue > 1e-3
    for axis in range(3):
        x, y = np.moveaxis(shares, axis, 0)[:-1], np.moveaxis(shares, axis, 0)[1:]
        assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 4 / np.sqrt(x.size)


@on_tensorflow
@pytest.mark.parametrize("dtype, by_xla", [("bfloat16", False), ("float32", True)])
def test_large_weights_of_bfloat16_are_not_compiled_by_xla(dtype, by_xla, monkeypatch):
    """On a CPU XLA would hold them in float32 too: 2.2 GB for one of bfloat16."""
    asked = []
    monkeypatch.setattr(compilers, "LARGE", 1000)
    monkeypatch.setattr(compilers, "_one_more_by_xla", lambda: asked.append(True) or True)
    model = txf.models.decoder_generator(100, 1, 16, 2, dtype=dtype)
    found = model.generate(PROMPTS, 5, return_scores=True)
    assert bool(asked) == by_xla
    monkeypatch.setattr(compilers, "LARGE", 2**28)
    asked.clear()
    again = type(model)(model.input, model.output).generate(PROMPTS, 5, return_scores=True)
    assert asked
    np.testing.assert_allclose(found.scores, again.scores, atol=0.2 if dtype == "bfloat16" else 1e-4)
