"""The contract of every layer and every model: one function a check, so that a failure names what broke.

A check takes a `Case` and an empty folder; `parameters` pairs checks with cases.
"""

import functools
import gc
import json

import keras
import numpy as np
import pytest
from cases import OTHER_SIZES, SIZES, assert_same, inner_layers, numpy, wave
from keras import ops

BACKEND = keras.backend.backend()
# Of a few roundings of numbers that reach about 4: bfloat16 has 8 bits, float16 has 11.
POLICY_TOLERANCES = {"float32": 0.0, "bfloat16": 0.25, "float16": 0.03}


def check_config(case, path):
    """A new object from the configuration, with the same weights, computes the same."""
    if case.shares:
        pytest.skip("Keras keeps shared objects in `.keras` files, not through `from_config`")
    config = case.shared.get_config()
    clone = type(case.shared).from_config(json.loads(json.dumps(config)))
    model = case.model(clone)
    clone.set_weights(case.shared.get_weights())
    assert_same(case.run(model), case.expected)
    assert json.dumps(clone.get_config()) == json.dumps(config)


def check_saving(case, path):
    """A `.keras` file reloads in safe mode: same outputs, same weight paths, and what was shared still is."""
    model = case.shared_model
    reloaded = _reload(model, path)
    assert type(reloaded) is type(model)
    assert_same(case.run(reloaded), case.expected)
    assert [weight.path for weight in reloaded.weights] == [weight.path for weight in model.weights]
    names = [layer.name for layer in inner_layers(reloaded)]
    assert names == [layer.name for layer in inner_layers(model)]
    assert case.shares == (len({id(x) for x in _positions(reloaded)}) < len(_positions(reloaded)))


def _positions(model):
    """The position layer of each self-attention."""
    layers = inner_layers(model)
    return [x.position_layer for x in layers if getattr(x, "position_layer", None) is not None]


def _reload(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def check_shapes(case, path):
    """Symbolic shapes and dtypes are the real ones; only what the caller's lengths decide is unknown."""
    model, static = case.shared_model, case.model(case.shared, sizes=SIZES)
    outputs = keras.tree.flatten(model(case.feed(case.arrays())))
    real, other = ([array.shape for array in arrays] for arrays in (case.expected, case.run(model, OTHER_SIZES)))
    expected = [tuple(a if a == b else None for a, b in zip(*shapes)) for shapes in zip(real, other)]
    assert [tuple(symbol.shape) for symbol in keras.tree.flatten(model.outputs)] == expected
    assert [tuple(symbol.shape) for symbol in keras.tree.flatten(static.outputs)] == real
    dtypes = [keras.backend.standardize_dtype(output.dtype) for output in outputs]
    assert [symbol.dtype for symbol in keras.tree.flatten(model.outputs)] == dtypes
    assert_same(case.run(static), case.expected, tolerance=1e-6)


def check_policy(case, path, policy):
    """Variables and outputs have the policy's dtypes, every inner layer has the policy, nothing overflows."""
    policy = keras.DTypePolicy(policy)
    subject = case.make(dtype=policy)
    model = case.model(subject)
    wrong = [layer.path for layer in inner_layers(subject) if layer.dtype_policy.name != policy.name]
    assert not wrong
    assert {weight.dtype for weight in subject.trainable_weights} <= {policy.variable_dtype}
    outputs = keras.tree.flatten((model(case.feed(case.arrays())), model.outputs))
    dtypes = {keras.backend.standardize_dtype(output.dtype) for output in outputs}
    assert dtypes == {getattr(policy, case.output_dtype, case.output_dtype)}
    subject.set_weights(case.shared.get_weights())
    assert_same(case.run(model), case.expected, tolerance=POLICY_TOLERANCES[policy.compute_dtype])


def check_fit(case, path, **compile_options):
    """One step of training moves the weights and leaves everything finite."""
    subject = case.make(dtype=None)
    model = case.model(subject)  # a layer has no weights before
    if not subject.trainable_weights:
        pytest.skip("no weights to train")
    arrays = case.feed(case.arrays())
    targets = keras.tree.map_structure(wave, model(arrays))
    before = subject.get_weights()
    model.compile("sgd", "mse", **compile_options)
    loss = model.fit(arrays, targets, batch_size=SIZES["batch"], verbose=0).history["loss"]
    after = subject.get_weights()
    assert np.isfinite(loss).all()
    assert all(np.isfinite(weight).all() for weight in after)
    assert any((old != new).any() for old, new in zip(before, after))


def check_gradients(case, path):
    """Every trainable weight has a gradient, finite and not all zero."""
    if not case.shared.trainable_weights:
        pytest.skip("no weights to train")
    model = case.shared_model
    found = gradients(model, case.feed(case.arrays()))
    missing = [weight.path for weight, gradient in zip(model.trainable_weights, found) if gradient is None]
    assert not missing
    for weight, gradient in zip(model.trainable_weights, found):
        assert np.isfinite(gradient).all(), weight.path
        # A bias on the keys alone moves all logits of a query alike, and softmax does not see it.
        assert gradient.any() or weight.path.endswith("key/bias"), weight.path


def gradients(model, inputs):
    """NumPy gradients of a weighted sum of all outputs with respect to the trainable weights, None if missing.

    The sum is weighted, for a plain one does not depend on anything before a layer norm or a softmax.
    """

    def weighted_sum(outputs):
        return sum(ops.sum(ops.multiply(ops.cast(x, "float32"), wave(x))) for x in keras.tree.flatten(outputs))

    values = [weight.value for weight in model.trainable_weights]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = weighted_sum(model(inputs, training=False))
        found = tape.gradient(total, values)
    elif BACKEND == "jax":
        import jax

        others = [weight.value for weight in model.non_trainable_variables]
        found = jax.grad(lambda x: weighted_sum(model.stateless_call(x, others, inputs, training=False)[0]))(values)
    else:
        model.zero_grad()
        weighted_sum(model(inputs, training=False)).backward()
        found = [value.grad for value in values]
    return [None if gradient is None else ops.convert_to_numpy(gradient) for gradient in found]


def check_quantization(case, path):
    """int8 stays close to float, covers every Dense and Embedding, and reloads with equal outputs."""
    model = case.model(case.make(dtype=None))
    expected = case.run(model)
    gc.collect()
    gc.freeze()  # Keras collects garbage once for each layer: let it not look through everything else
    model.quantize("int8")
    kinds = (keras.layers.Dense, keras.layers.Embedding)
    modes = [layer.quantization_mode for layer in inner_layers(model) if isinstance(layer, kinds)]
    assert modes == ["int8"] * len(modes) and bool(modes) == case.quantizes
    quantized = case.run(model)
    assert_same(quantized, expected, tolerance=0.2)
    if case.quantizes:
        assert any((one != other).any() for one, other in zip(quantized, expected))
    assert_same(case.run(_reload(model, path)), quantized)


def check_export(case, path):
    """The SavedModel computes the same for another batch size and other lengths."""
    import tensorflow as tf

    model = case.shared_model
    model.export(path / "exported", verbose=False)
    reloaded = tf.saved_model.load(path / "exported")
    served = reloaded.serve(case.feed(case.arrays(OTHER_SIZES)))
    assert_same(numpy(served), case.run(model, OTHER_SIZES), tolerance=1e-5)


class Subclassed(keras.Model):
    """A user's own model around the case."""

    def __init__(self, case):
        super().__init__()
        self.case = case
        self.inner = case.make(dtype=None)

    def call(self, inputs):
        return self.case.apply(self.inner, inputs if isinstance(inputs, dict) else {self.case.first: inputs})


def check_subclassing(case, path):
    """A subclassed model tracks the weights, saves and loads them, and computes what the functional one does."""
    model = Subclassed(case)
    case.run(model)
    assert len(model.trainable_weights) == len(case.shared.trainable_weights)
    model.inner.set_weights(case.shared.get_weights())
    model.save_weights(path / "model.weights.h5")
    model.inner.set_weights([weight + 1 for weight in case.shared.get_weights()])
    model.load_weights(path / "model.weights.h5")
    assert_same(case.run(model), case.expected, tolerance=1e-6)


def check_sequential(case, path):
    """A layer with one input works in `Sequential`, and tells wrappers such as `TimeDistributed` its shape."""
    if len(case.tensors) > 1 or isinstance(case.shared, keras.Model):
        pytest.skip("Sequential takes layers with one input")
    tensor = case.tensors[case.first]
    masking = [keras.layers.Masking()] if case.is_maskable(tensor) else []
    model = keras.Sequential([tensor.symbol("inputs"), *masking, case.shared])
    assert_same(case.run(model), case.expected, tolerance=1e-6)
    for layer in (case.shared, case.make(dtype=None)):
        found = layer.compute_output_shape(case.arrays()[case.first].shape)
        assert keras.tree.flatten(found) == list(case.expected[0].shape)


class MaskProbe(keras.layers.Layer):
    """Returns the mask that reaches it as numbers, or -1 for none."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return ops.full_like(inputs[..., 0], -1) if mask is None else ops.cast(mask, "float32")


def check_mask(case, path):
    """The padding mask of the first input reaches the layer after this one, or ends here."""
    symbols = {name: tensor.symbol(name) for name, tensor in case.tensors.items()}
    outputs = case.apply(case.shared, symbols)
    if isinstance(outputs, dict):
        outputs = next(outputs[name] for name in ("logits", "output", "start_logits") if name in outputs)
    probe = keras.Model(case.feed(symbols), MaskProbe()(keras.tree.flatten(outputs)[0]))
    (seen,) = case.run(probe)
    if case.mask == "passes":
        first = case.arrays()[case.first]
        real = first != 0 if first.ndim == 2 else (first != 0).any(axis=-1)
        assert not real.all()
        np.testing.assert_array_equal(seen, real)
    else:
        assert (seen == -1).all()


def check_padding(case, path):
    """More padding at the end changes nothing before it."""
    if case.mask == "none":
        pytest.skip("knows no padding")
    padded = {name: case.tensors[name].padded(array) for name, array in case.arrays().items()}
    long = numpy(case.shared_model(case.feed(padded)))
    long = [y[tuple(map(slice, x.shape))] for x, y in zip(case.expected, long)]
    assert_same(long, case.expected, tolerance=1e-5)


def check_scores(case, path):
    """Attention scores have their shape, add up to 1 for each query, or less with sinks, and give padding nothing."""
    if not case.scores:
        pytest.skip("gives no attention scores")
    model = case.shared_model
    if not isinstance(case.shared, keras.Model):
        # Keras fixes a layer's number of outputs at its first call in a graph: this one needs its own.
        model = case.model(case.make(dtype=None), return_attention_scores=True)
        assert len(model.outputs) == 1 + len(case.scores)
    outputs = model(case.feed(case.arrays()))
    for key, shape in case.scores.items():
        (scores,) = numpy(outputs[key])
        assert scores.shape == (SIZES["batch"], *(SIZES.get(size, size) for size in shape))
        if any("sinks" in weight.path for weight in model.weights):
            assert 0 < scores.sum(axis=-1).min() <= scores.sum(axis=-1).max() < 1
        else:
            np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-5)
        assert case.mask == "none" or not scores[0, :, :-1, -1].any()  # under a causal mask padding sees itself


# Name -> check, on which cases it runs, the backends it needs.
# "always": on all, and of them on JAX and PyTorch on the core and the fullest. "tensorflow": on all, "fullest": on the
# core and the fullest, both elsewhere on the core, as Keras' own code of it is the same for all backends. "core" and
# "never": on the core and the fullest, in the fast suite on the core or on none. "core alone": on the core.
CHECKS = {
    "config": (check_config, "tensorflow", None),
    "saving": (check_saving, "tensorflow", None),
    "shapes": (check_shapes, "always", None),
    "float32": (functools.partial(check_policy, policy="float32"), "never", None),
    "mixed_bfloat16": (functools.partial(check_policy, policy="mixed_bfloat16"), "core", None),
    "mixed_float16": (functools.partial(check_policy, policy="mixed_float16"), "core alone", None),
    "bfloat16": (functools.partial(check_policy, policy="bfloat16"), "core alone", None),
    "float16": (functools.partial(check_policy, policy="float16"), "tensorflow", None),
    "fit": (functools.partial(check_fit, run_eagerly=True), "fullest", None),
    "fit_compiled": (check_fit, "core alone", None),
    "fit_jit": (functools.partial(check_fit, jit_compile=True), "never", ("tensorflow",)),
    "gradients": (check_gradients, "always", None),
    "quantization": (check_quantization, "fullest", None),
    "export": (check_export, "core", ("tensorflow",)),
    "subclassing": (check_subclassing, "fullest", None),
    "sequential": (check_sequential, "tensorflow", None),
    "mask": (check_mask, "always", None),
    "padding": (check_padding, "tensorflow", None),
    "scores": (check_scores, "always", None),
}


def parameters(cases, long=()):
    """Checks with cases, as `pytest.mark.parametrize` takes them; `long` names those that are slow on TensorFlow."""
    return [
        _parameter(name, case, name in long)
        for case in cases
        for name, (_, when, _) in CHECKS.items()
        if _runs(case, when)
    ]


def _runs(case, when):
    on_tensorflow, often = BACKEND == "tensorflow", case.core or case.fullest
    return {
        "always": on_tensorflow or often,
        "tensorflow": on_tensorflow or case.core,
        "fullest": case.core or (on_tensorflow and case.fullest),
        "core": often,
        "never": often,
        "core alone": case.core,
    }[when]


def _parameter(name, case, is_long):
    check, when, backends = CHECKS[name]
    marks = [pytest.mark.long] * is_long
    # On TensorFlow, where every case runs, README's tests have the core; other backends have the fullest cases too.
    if when == "never" or (not case.core and (when == "core" or BACKEND == "tensorflow")):
        marks.append(pytest.mark.slow)
    if backends is not None:
        reason = f"needs a backend of {backends}"
        marks.append(pytest.mark.skipif(BACKEND not in backends, reason=reason))
    return pytest.param(check, case, marks=marks, id=f"{name}-{case.name}")
