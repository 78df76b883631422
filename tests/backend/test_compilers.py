"""Functions, and the loop of `generate`, as the backends compile them."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops

from keras_txf.backend import compilers, random
from keras_txf.backend.compilers import compiled
from keras_txf.generation.loop import run_steps
from keras_txf.generation.parameters import StepSeed

pytestmark = pytest.mark.usefixtures("compiled")
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow's functions and XLA")


def start():
    return {"count": ops.zeros((), "int32"), "running": ops.ones((2,), "bool"), "nested": [ops.ones((2, 3))]}


def test_a_loop_reads_variables_and_tensors_of_outside():
    variable = keras.Variable(2.0)

    def run(outside):
        def step(state):
            return {**state, "count": state["count"] + 1, "nested": [state["nested"][0] * variable + outside]}

        return run_steps(step, start(), 6)

    function = compiled(run, [variable])
    for factor, value in ((2.0, 0.5), (3.0, 0.25)):
        variable.assign(factor)
        found, expected = function(ops.convert_to_tensor(value)), 1.0
        for _ in range(6):
            expected = expected * factor + value
        assert int(found["count"]) == 6
        np.testing.assert_allclose(drawing.array(found["nested"][0]), np.full((2, 3), expected), rtol=1e-6)


def test_a_loop_ends_when_no_row_is_running():
    def run(until):
        def step(state):
            return {**state, "count": state["count"] + 1, "running": ops.arange(2) > state["count"] - 2}

        return run_steps(step, start(), until)

    counts = [int(compiled(run, [])(ops.convert_to_tensor(until))["count"]) for until in (1, 3, 9)]
    assert counts == [1, 3, 4]


@on_tensorflow
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_loop_calls_functions_of_tensorflow(eagerly):
    import tensorflow as tf

    def step(state):
        x = state["nested"][0]
        x = tf.cond(state["count"] % 2 == 0, lambda: x + 1, lambda: tf.map_fn(lambda row: 2 * row, x))
        return {**state, "count": state["count"] + 1, "nested": [x]}

    tf.config.run_functions_eagerly(eagerly)
    try:
        found = compiled(lambda state: run_steps(step, state, 6), [])(start())
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(found["nested"][0], np.full((2, 3), 22.0))  # 1 2 4 5 10 11 22


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the order of operations of JAX's XLA")
@pytest.mark.parametrize("steps", [0, 1])
def test_jax_holds_one_weight_of_bfloat16_in_float32(monkeypatch, steps):
    """On a CPU, where XLA multiplies in float32: it would hold all four at once, before the first product."""
    import jax

    jitted = []
    jit = jax.jit
    monkeypatch.setattr(jax, "jit", lambda *args, **kwargs: jitted.append(jit(*args, **kwargs)) or jitted[-1])
    draw = np.random.default_rng(0)
    weights = [keras.Variable(0.1 * draw.standard_normal((256, 256)), dtype="bfloat16") for _ in range(4)]

    def product(x):
        for weight in weights:
            x = ops.tanh(ops.matmul(x, weight))
        return x

    def run(x):
        if steps == 0:
            return product(x)
        state = {"count": ops.zeros((), "int32"), "running": ops.ones((2,), "bool"), "x": x}
        return run_steps(lambda state: {**state, "count": state["count"] + 1, "x": product(state["x"])}, state, 1)["x"]

    x = ops.ones((2, 256), "bfloat16")
    found = compiled(run, weights, steps)(x)
    exact = np.ones((2, 256))
    for weight in weights:
        exact = np.tanh(exact @ drawing.array(ops.cast(weight, "float32")).astype("float64"))
    np.testing.assert_allclose(drawing.array(ops.cast(found, "float32")), exact, atol=0.05)
    (function,) = (function for function in jitted if function.__wrapped__.__name__ == "with_values")
    memory = function.lower([weight.value for weight in weights], (x,)).compile().memory_analysis()
    if jax.default_backend() == "cpu":
        assert memory.temp_size_in_bytes < 2 * 4 * 256 * 256


@on_tensorflow
@pytest.mark.parametrize("dtype, large, expected", [
    ("float32", 1000, [True, False]),  # TensorFlow frees no function of XLA, and each takes some megabytes
    ("bfloat16", 2000, [True, False]),
    ("bfloat16", 1000, []),  # on a CPU XLA would hold them in float32 too: 2.2 GB for one of bfloat16
])  # fmt: skip
def test_xla_compiles_a_limited_number_of_functions_and_none_with_large_bfloat16_weights(
    monkeypatch, dtype, large, expected
):
    asked, own = [], compilers._one_more_by_xla
    monkeypatch.setattr(compilers, "_xla_functions", 0)
    monkeypatch.setattr(compilers, "XLA_FUNCTIONS", 1)
    monkeypatch.setattr(compilers, "LARGE", large)
    monkeypatch.setattr(compilers, "_one_more_by_xla", lambda: asked.append(own()) or asked[-1])
    weight = keras.Variable(np.ones((40, 40)), dtype=dtype)
    for factor in (2.0, 3.0):
        function = compiled(lambda x: factor * ops.matmul(x, weight), [weight])
        np.testing.assert_array_equal(drawing.array(function(ops.ones((1, 40), dtype))), np.full((1, 40), 40 * factor))
        function(ops.ones((1, 40), dtype))
    compiled(lambda x: ops.matmul(x, weight), [weight], steps=0)(ops.ones((1, 40), dtype))
    assert asked == expected


@on_tensorflow
def test_draws_are_the_same_by_xla_and_without():
    import tensorflow as tf

    def shares(count):
        return random.uniform(5, StepSeed(tf.constant([3, 2**31 - 1], "int64"), count))

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
        [[random.uniform(50, StepSeed(seed, tf.constant(count))) for count in range(20)] for seed in seeds]
    )
    shares = shares[..., 0]  # (seed, step, row)
    assert shares.min() >= 0 and shares.max() < 1
    assert stats.kstest(shares.ravel(), "uniform").pvalue > 1e-3
    for axis in range(3):
        x, y = np.moveaxis(shares, axis, 0)[:-1], np.moveaxis(shares, axis, 0)[1:]
        assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 4 / np.sqrt(x.size)
