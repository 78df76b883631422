"""Options drawn by hypothesis, and the few lines that every property needs.

Legend: B batch, T length, D model dim, N heads, K key-value heads, H head dim.
"""

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import keras_txf as txf

DIM = 8
# Of what Python decides on every backend alike.
not_on_jax = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="compiles for seconds what the others answer for too"
)


def few(max_examples):
    """The same few examples on every machine, without a limit of time: a first call compiles.

    A failure is reported as it was drawn: to shrink it takes minutes, and the options are few.
    """
    if keras.backend.backend() == "jax":  # each compiles its operations anew; the first has the simplest options
        max_examples = max(2, -(-max_examples // 4))
    return settings(
        max_examples=max_examples, derandomize=True, deadline=None, database=None,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip


def one_of(*values):
    return st.sampled_from(values)


# Of each option what is drawn, in this order.
ATTENTION = {
    "head_dim": one_of(None, 2, 6), "window": one_of(None, 1, 2, 3),
    "position": one_of(None, "rotary", "alibi", "relative"),
    "qk_norm": one_of(False, True, "full", "layer", "layer_per_head", "head_zero_centered"), "sinks": st.booleans(),
    "output_gate": st.booleans(), "logit_soft_cap": one_of(None, 1.5), "scale": one_of(None, 0.7),
    "use_bias": st.booleans(),
}  # fmt: skip
BLOCK = {
    "norm": one_of("layer", "rms", "rms_zero_centered"),
    "norm_placement": one_of("pre", "post", "sandwich", "res_post"),
    "gated": st.booleans(), "layer_scale": one_of(None, 0.5), "residual_scale": one_of(None, 0.4),
    "dropout": st.just(0.3), "attention_dropout": one_of(0.0, 0.4),
}  # fmt: skip


@st.composite
def attention_options(draw, exclude=()):
    """Options of `MultiHeadSelfAttention` that any width divisible by 4 can have."""
    num_heads = draw(one_of(1, 2, 4))
    divisors = [k for k in (1, 2, 4) if num_heads % k == 0]
    options = {"num_heads": num_heads, "num_key_value_heads": draw(one_of(None, *divisors))}
    options |= {name: draw(values) for name, values in ATTENTION.items()}
    return {name: value for name, value in options.items() if name not in exclude}


@st.composite
def block_options(draw, exclude=()):
    """Options that both blocks have. Without dropout in effect the rates must not matter."""
    options = draw(attention_options(exclude))
    options |= {name: draw(values) for name, values in BLOCK.items()}
    if options["norm_placement"] != "post":
        one_norm = ["parallel_one_norm"] * (options["norm_placement"] == "pre")
        options["residual"] = draw(st.sampled_from(["sequential", "parallel", *one_norm]))
    return {name: value for name, value in options.items() if name not in exclude}


ENCODINGS = (
    {"position_encoding": "sinusoidal"},
    {"position_encoding": "learned", "max_length": 16},
    {"position_encoding": "learned", "max_length": 16, "combine": "concat", "position_dim": 2},
    {"position_encoding": "sinusoidal", "combine": "concat"},
    {"position_encoding": None},
)


def with_embedding(options, vocab_size):
    """Options of a builder in which an embedding replaces the options that a builder does not have."""
    if "combine" not in options:
        return options
    names = ("position_encoding", "max_length", "combine", "position_dim")
    embedding = txf.layers.PositionalEmbedding(vocab_size, DIM, **{x: options[x] for x in names if x in options})
    return {**{name: value for name, value in options.items() if name not in names}, "embedding": embedding}


@st.composite
def model_options(draw, exclude=()):
    """Options that every builder has."""
    return {**draw(block_options(exclude)), **draw(st.sampled_from(ENCODINGS))}


def randomize(layer, seed=0):
    """Weights that all differ: a bias at zero or a norm at one would hide its absence."""
    random = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        weight.assign(keras.ops.cast(random.normal(0.3 * (len(weight.shape) == 1), 0.5, weight.shape), weight.dtype))
    return layer


def built(layer, *tensors):
    """The layer after a call on these tensors, with random weights."""
    layer(*tensors)
    return randomize(layer)


def normal(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def array(tensor):
    """float32 NumPy, of a tensor in any dtype or a list of arrays."""
    tensor = np.array(tensor) if isinstance(tensor, list) else tensor
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def assert_same(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(array(actual), array(expected), rtol=tolerance, atol=tolerance)


def difference(first, second):
    return np.abs(array(first) - array(second)).max()


def gradient(function, x):
    """The gradient of a scalar function at the NumPy array x, on whichever backend runs."""
    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(jax.grad(function)(x))
    if keras.backend.backend() == "torch":
        import torch

        x = torch.tensor(x, requires_grad=True)
        function(x).backward()
        return x.grad.numpy()
    import tensorflow as tf

    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x).numpy()


def fused_backend():
    """Whether the backend has a fused kernel of attention."""
    return keras.backend.backend() != "tensorflow"
