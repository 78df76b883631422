"""Kernels that lie elsewhere during generation: which ones do, and that it changes nothing but the time."""

import keras
import numpy as np
import pytest
from generation.test_generate import FEWER, KINDS, NEW, PROMPTS, VOCABULARY, assert_generates, enliven, make

import drawing
import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, layouts
from keras_txf.layers.projections import apply, elsewhere
from keras_txf.models import generative
from keras_txf.models.stepping import step_model

pytestmark = [
    pytest.mark.usefixtures("uncompiled"),
    pytest.mark.skipif(keras.backend.backend() == "torch", reason="XLA's products alone gain from it"),
]


@pytest.fixture
def small(monkeypatch):
    """The kernels of a test's models are worth a copy."""
    monkeypatch.setattr(layouts, "SMALLEST", 1)


def kinds_of(chosen):
    return [type(layout) for layout in chosen]


@pytest.mark.parametrize("kind", FEWER)
@pytest.mark.parametrize(
    "options, sampler, count",
    [
        ("llama", "greedy", 1),
        ("defaults", Beam(3), 1),
        pytest.param("defaults", "greedy", 3, marks=drawing.not_on_jax),
        pytest.param("heads alone", "greedy", 1, marks=drawing.not_on_jax),
        pytest.param("heads alone", Beam(3), 1, marks=drawing.not_on_jax),
        pytest.param("t5", "greedy", 1, marks=drawing.not_on_jax),
        pytest.param("llama", Contrastive(num_candidates=2, penalty=0.5), 1, marks=drawing.not_on_jax),
    ],
)
def test_results_stay_the_same(kind, options, sampler, count, small, monkeypatch):
    assert_unchanged(make(kind, options), monkeypatch, sampler, count)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEWER)
def test_compiled_results_stay_the_same(kind, small, monkeypatch, compiled):
    """With what XLA is kept from fusing."""
    monkeypatch.setattr(layouts, "LARGE", 1)
    model = make(kind, "llama")
    chosen = kinds_of(layouts.choose_layouts(step_model(model), 1))
    assert layouts.Unfused in chosen and layouts.Parts in chosen
    assert_unchanged(model, monkeypatch)


@drawing.not_on_jax
@pytest.mark.parametrize("kind", KINDS)
def test_one_row_without_output_projections_equals_the_naive_loop(kind, small):
    assert layouts.choose_layouts(step_model(make(kind, "heads alone")), 1)
    assert_generates(kind, "heads alone", PROMPTS[:1])


def assert_unchanged(model, monkeypatch, sampler="greedy", count=1, tolerance=1e-5):
    results = []
    for elsewhere in (True, False):
        monkeypatch.setattr(layouts, "compiles_for_cpu", lambda: elsewhere)
        generative._ENGINES.pop(model, None)  # else the loop that was compiled first would run twice
        results.append(model.generate(PROMPTS[:count], NEW, sampler, return_scores=True))
    actual, expected = results
    np.testing.assert_array_equal(actual.ids, expected.ids)
    np.testing.assert_allclose(actual.log_probs, expected.log_probs, rtol=tolerance, atol=tolerance)


def test_what_lies_elsewhere(small, monkeypatch):
    model = txf.models.decoder_generator(VOCABULARY, 2, 8, 2, gated=True)
    one, several = (kinds_of(layouts.choose_layouts(step_model(model), rows)) for rows in (1, 3))
    assert one == [layouts.TableInParts] + 2 * 5 * [layouts.Parts]
    assert several == [layouts.Table]
    alone = txf.models.decoder_generator(VOCABULARY, 2, 8, 2, output_projection=False)
    assert kinds_of(layouts.choose_layouts(step_model(alone), 1)) == [layouts.TableInParts] + 2 * 3 * [layouts.Parts]
    monkeypatch.setattr(layouts, "LARGE", 8 * 12)
    head = txf.models.decoder_generator(VOCABULARY, 2, 8, 2, tie_embeddings=False, intermediate_dim=12)
    one, several = (kinds_of(layouts.choose_layouts(step_model(head), rows)) for rows in (1, 3))
    assert one == 2 * [layouts.Parts, layouts.Parts, layouts.Unfused, layouts.Unfused]
    assert several == []


def test_many_rows_copy_nothing(small):
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, 2)
    assert layouts.choose_layouts(step_model(model), layouts.FEW) != []
    assert layouts.choose_layouts(step_model(model), layouts.FEW + 1) == []


@pytest.mark.parametrize("units, numbers, parts", [(12, 8 * 5, 2), (12, 8 * 7, 1), (12, 3, 12), (13, 8 * 5, 1)])
def test_parts(units, numbers, parts, monkeypatch):
    """Each of at least so many numbers, and all of one size."""
    monkeypatch.setattr(layouts, "SMALLEST", numbers)
    matrix = keras.random.normal((units, 8))
    actual = layouts._in_parts(matrix)
    assert actual.shape == (parts, units // parts, 8)
    x = keras.random.normal((1, 1, 8))
    expected = keras.ops.matmul(x, keras.ops.transpose(matrix))
    drawing.assert_same(layouts._multiply(actual, x), expected)


def test_small_kernels_stay():
    model = txf.models.decoder_generator(VOCABULARY, 2, 8, 2)
    assert layouts.choose_layouts(step_model(model), 1) == layouts.choose_layouts(step_model(model), 3) == []


@drawing.not_on_jax
def test_quantized_kernels_stay(small):
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, 2)
    model.quantize("int8")
    assert layouts.choose_layouts(step_model(model), 1) == layouts.choose_layouts(step_model(model), 3) == []


@drawing.not_on_jax
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_half_precision(policy, small, monkeypatch):
    """The same products of the same numbers, up to the order of their sums."""
    keras.config.set_dtype_policy(policy)
    try:
        model = enliven(txf.models.decoder_generator(VOCABULARY, 1, 8, 2), 3)
    finally:
        keras.config.set_dtype_policy("float32")
    assert_unchanged(model, monkeypatch, tolerance=0.05)


@drawing.not_on_jax
def test_lora_counts(small, monkeypatch):
    model = enliven(txf.models.decoder_generator(VOCABULARY, 1, 8, 2), 3)
    block = model.get_layer("decoder_0")
    before = model.generate(PROMPTS[:1], NEW, return_scores=True)
    for projection in (block.attention.query, block.attention.value, block.feed_forward.output_dense):
        projection.enable_lora(2)
    enliven(model, 5)
    assert len(layouts.choose_layouts(step_model(model), 1)) == 5
    assert (model.generate(PROMPTS[:1], NEW, return_scores=True).scores != before.scores).all()
    assert_unchanged(model, monkeypatch)


def test_a_scope_ends(small):
    dense = keras.layers.Dense(3)
    x = keras.random.normal((1, 2))
    expected = drawing.array(dense(x))
    with pytest.raises(RuntimeError, match="inside"), elsewhere({id(dense): lambda x: x}):
        assert apply(dense, x) is x
        raise RuntimeError("inside")
    drawing.assert_same(apply(dense, x), expected)
