"""`generate` keeps a bounded number of compiled loops, and no loop of a deleted model."""

import concurrent.futures
import gc
import weakref

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, Sampling, engine

PROMPTS = [[1, 2, 3], [4, 5]]


def make(seed=1):
    return drawing.randomize(txf.models.decoder_generator(11, 1, 8, 2), seed=seed)


def kept():
    gc.collect()
    return [loop for one in engine._engines for _, loop in one._loops.values()]


def test_a_process_keeps_the_loops_that_were_used_last(monkeypatch):
    monkeypatch.setattr(engine, "MAX_LOOPS", 2)
    models, functions, results = (make(), make(2)), [], []
    for model in (models[0], models[1], models[0]):
        functions.append(lambda logits, history: logits)
        results.append(model.generate(PROMPTS, 2, processors=[functions[-1]]))
        models[0].generate(PROMPTS, 2, processors=[functions[0]])  # always in use
        assert len(kept()) <= 2
    gone = [weakref.ref(function) for function in functions[1:]]
    functions = functions[:1]
    gc.collect()
    assert [function() is None for function in gone] == [True, False]
    np.testing.assert_array_equal(results[2], results[0])
    np.testing.assert_array_equal(models[1].generate(PROMPTS, 2), results[1])  # forgotten, and compiled again


@pytest.mark.parametrize("way", ["uncompiled", pytest.param("compiled", marks=pytest.mark.slow)])
def test_loops_go_with_their_model_or_when_they_are_forgotten(monkeypatch, request, way):
    request.getfixturevalue(way)
    monkeypatch.setattr(engine, "MAX_LOOPS", 1)
    model = make()
    model.generate(PROMPTS, 2)
    gone = [weakref.ref(function) for (loop,) in [kept()] for function in loop if function]
    model.generate(PROMPTS, 2, "sampling")
    assert len(kept()) == 1 and [function() for function in gone] == [None] * 5
    gone = weakref.ref(model)
    del model
    assert not kept() and gone() is None


BUCKETS = [  # rows, columns, new tokens, and whether the call needs another loop
    (2, 3, 4, True), (2, 30, 4, False), (1, 3, 4, True), (2, 32, 32, False), (1, 1, 5, False), (1, 33, 32, True),
]  # fmt: skip


def test_lengths_of_one_bucket_share_a_loop(monkeypatch):
    monkeypatch.setattr(engine, "MAX_LOOPS", 1000)
    model, before = make(), len(kept())
    for rows, columns, new, is_new in [*BUCKETS, (1, 3, 33, True)]:
        model.generate([[1] * columns] * rows, new, stop_ids=range(11))  # all end with their first token
        before += is_new
        assert len(kept()) == before


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="compiles nothing")
def test_a_loop_is_compiled_once(compiled):
    """For all lengths of a bucket, and all numbers of a sampler."""
    traces = []

    def sampler(logits, seed):
        traces.append(logits.shape)
        return ops.argmax(logits, axis=-1)

    def note(logits, history):
        traces.append(logits.shape)
        return logits

    model = make()
    for rows, columns, new, is_new in BUCKETS:
        traces.clear()
        model.generate([[1] * columns] * rows, new, sampler)
        assert bool(traces) == is_new
    for samplers in ((Sampling(0.5, top_p=0.9), Sampling(2.0, top_p=0.3)), (Beam(2, 1.0), Beam(2, -0.3))):
        for number, sampler in enumerate((samplers[0], *samplers[::-1])):
            traces.clear()
            model.generate(PROMPTS, 3, sampler, processors=[note], seed=1)
            assert bool(traces) == (number == 0)


@pytest.mark.drawn(3)
def test_samplers_share_a_loop_for_all_numbers_but_not_for_other_filters(monkeypatch):
    monkeypatch.setattr(engine, "MAX_LOOPS", 1000)
    model = make()
    greedy = model.generate(PROMPTS, 3)
    before = len(kept())
    narrow, wide = Sampling(top_p=0.01), Sampling(2.0, min_p=0.01)
    for sampler in (narrow, wide, Sampling(1.5, min_p=0.5), narrow):
        result = model.generate(PROMPTS, 3, sampler, seed=1)
    assert len(kept()) == before + 2
    np.testing.assert_array_equal(result, greedy)  # as narrow as greedy
    assert (model.generate(PROMPTS, 3, wide, seed=1) != result).any()
    for first, second in ((Beam(2, 1.0), Beam(2, -0.3)), (Contrastive(2, 0.5), Contrastive(2, 0.1))):
        model.generate(PROMPTS, 1, first)
        before = len(kept())
        model.generate(PROMPTS, 1, second)
        assert len(kept()) == before


@pytest.mark.slow
def test_threads_that_forget_each_others_loops(monkeypatch, compiled):
    monkeypatch.setattr(engine, "MAX_LOOPS", 2)
    models = [make(seed) for seed in (1, 2)]
    calls = [(model, prompts, sampler) for model in models
             for prompts, sampler in ((PROMPTS, "greedy"), (PROMPTS[:1], Sampling(1.5)))]  # fmt: skip

    def run(call):
        model, prompts, sampler = call
        return model.generate(prompts, 4, sampler, seed=5)

    expected = [run(call) for call in calls]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found, right in zip(pool.map(run, 2 * calls), 2 * expected, strict=True):
            np.testing.assert_array_equal(found, right)
    assert len(kept()) <= 2
