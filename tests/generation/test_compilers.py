"""The loop of `generate` as the backends compile it."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

import drawing
from keras_txf.generation.compilers import compiled, unfused, while_loop


def wanted(state):
    return state["count"] < 6


def start():
    return {"count": ops.zeros((), "int32"), "nested": [ops.ones((2, 3))]}


def test_a_loop_reads_variables_and_tensors_of_outside():
    variable = keras.Variable(2.0)

    def run(outside):
        def body(state):
            return {"count": state["count"] + 1, "nested": [state["nested"][0] * variable + outside]}

        return while_loop(wanted, body, start())

    function = compiled(run, [variable])
    for factor, value in ((2.0, 0.5), (3.0, 0.25)):
        variable.assign(factor)
        found, expected = function(ops.convert_to_tensor(value)), 1.0
        for _ in range(6):
            expected = expected * factor + value
        assert int(found["count"]) == 6
        np.testing.assert_allclose(drawing.array(found["nested"][0]), np.full((2, 3), expected), rtol=1e-6)


def test_what_is_unfused_is_the_same():
    x = ops.convert_to_tensor(np.arange(6, dtype="float32").reshape(2, 3))
    expected = np.arange(6).reshape(2, 3) + 1
    drawing.assert_same(unfused(x) + 1, expected)
    found = compiled(lambda x: unfused(x) + 1, [])(x)
    drawing.assert_same(found, expected)
    assert tuple(found.shape) == (2, 3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="names functions that a graph calls")
@pytest.mark.parametrize("eagerly", [False, True])
def test_what_a_loop_calls_lives_as_long_as_the_loop(eagerly):
    import tensorflow as tf

    def body(state):
        x = state["nested"][0]
        x = tf.cond(state["count"] % 2 == 0, lambda: x + 1, lambda: tf.map_fn(lambda row: 2 * row, x))
        return {"count": state["count"] + 1, "nested": [x]}

    def run(state):
        state = while_loop(wanted, body, state)
        gc.collect()  # before anything is compiled
        return state

    tf.config.run_functions_eagerly(eagerly)
    try:
        found = compiled(run, [])(start())
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(found["nested"][0], np.full((2, 3), 22.0))  # 1 2 4 5 10 11 22
