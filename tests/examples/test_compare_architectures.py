"""examples/compare_architectures.py: counts in compiled programs against those by hand, and the whole script."""

import json

import architecture_tables
import compare_architectures
import costs
import keras
import numpy as np
import pytest
import tensorflow as tf
from script_cases import run_apart

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads TensorFlow's programs")
T, D = 11, 8


def count(name):
    layer = compare_architectures.LAYERS[name](D)
    inputs = tf.random.normal((1, T, D))
    layer.build(inputs.shape)
    return costs.count(tf.function(layer.__call__, jit_compile=True), inputs)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name, weight_products, pair_products, steps", [
    ("SimpleRNN", T * 2 * D * D, 0, T),  # the input's and the state's matrix
    ("LSTM", T * 8 * D * D, 0, T),  # for four gates
    ("GRU", T * 6 * D * D, 0, T),
    ("convolution", T * 3 * D * D, 0, 1),
    ("causal attention", 4 * T * D * D, 2 * T * T * D, 4),  # query and key, scores, values, output
    ("attention", 4 * T * D * D, 2 * T * T * D, 4),
])  # fmt: skip
def test_counts_are_those_of_a_hand(name, weight_products, pair_products, steps):
    found = count(name)
    assert found.multiply_adds == found.weight_products + found.pair_products
    assert found.weight_products == pytest.approx(weight_products, rel=0.05)
    assert found.pair_products == pytest.approx(pair_products, rel=0.05)
    assert found.steps == steps and found.trips == (T if steps == T else 0)


def test_the_longest_chain_leaves_out_products_beside_it_and_those_of_weights_alone():
    a, b = (tf.Variable(tf.random.normal((5, 5))) for _ in range(2))

    def function(x):
        return tf.matmul(tf.nn.relu(tf.matmul(x, a)), b) + tf.matmul(x, tf.nn.relu(tf.matmul(a, b)))

    found = costs.count(tf.function(function, jit_compile=True), tf.random.normal((3, 5)))
    assert found.steps == 2 and found.pair_products == 0
    assert found.weight_products == 3 * 3 * 5 * 5 + 5 * 5 * 5


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name, applications", [("GRU", 9), ("convolution", 4), ("causal attention", 1)])
def test_path_of_a_gradient(name, applications):
    found, norm = compare_architectures.gradient_path(name, 9, D, seeds=[1])
    assert found == applications and 0 < norm < 1


def test_the_gradient_that_a_convolution_keeps_is_the_product_of_its_first_taps():
    keras.utils.set_random_seed(3)
    layer = compare_architectures.LAYERS["convolution"](D, dtype="float64")
    layer.build((8, 5, D))
    kernel = np.asarray(layer.kernel)
    _, norm = compare_architectures.gradient_path("convolution", 5, D, seeds=[3])
    jacobian = np.linalg.svd(kernel[0] @ kernel[0], compute_uv=False)  # two layers of kernel 3 reach back four
    assert jacobian[-1] <= norm <= jacobian[0]


def test_exponent_and_crossing():
    sizes = [8, 16, 32, 64]
    assert costs.exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert costs.crossing(sizes, [size**2 for size in sizes], [20 * size for size in sizes]) == pytest.approx(20)
    assert costs.crossing(sizes, sizes, [2 * size for size in sizes]) is None


@pytest.mark.slow
def test_the_script_fits_theory_and_draws(tmp_path):
    folder = tmp_path / "new" / "folder"
    done = run_apart("compare_architectures", "--quick", "--out", folder)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["architectures.png", "results.json", "results.txt"]
    assert (folder / "architectures.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((folder / "results.json").read_text())
    for axis in "Td":
        results[axis] = {int(size): found for size, found in results[axis].items()}
    results["distance"] = {int(T): found for T, found in results["distance"].items()}
    for name in architecture_tables.ORDERS:
        for cost in architecture_tables.COUNTED:
            whole = cost == "multiply_adds" and "attention" in name  # of two orders, each of which is fitted
            for axis in "Td":
                if (found := architecture_tables.fit(results, name, cost, axis)) and not whole:
                    assert abs(found[0] - found[1]) <= architecture_tables.LIMIT, (name, cost, axis)
    longest = results["T"][max(results["T"])]
    assert all(found["memory"] > 0 and found["training"] > 0 for found in list(longest.values())[:-1])
    fits = "Fitted exponents of the counts, but for the multiply-adds of attention, lie within 0.0"
    assert fits in done.stdout
    assert "multiply-adds, d = 64: causal attention costs more than the LSTM from T = 1" in done.stdout
