"""LoRA against NumPy in float64, on every builder: the base never changes."""

import drawing
import keras
import numpy as np
import pytest
from adapter_cases import BUILDERS, IDS, OPTIONS, array, every_builder, fit, run, same, train, trained, values
from refusals import refused

import keras_txf as txf
from keras_txf.layers.adapters import attach
from keras_txf.layers.projections import Projection
from keras_txf.training import add_adapter, merge_adapter, use_adapter

TORCH = keras.backend.backend() == "torch"
random = np.random.default_rng(0)


def test_a_step_of_training_is_the_papers():
    x, y = random.normal(size=(6, 3)), random.normal(size=(6, 5))
    layer = Projection(5)
    model = keras.Sequential([keras.Input((3,)), layer])
    attach(layer, "default", "low_rank", rank=2, alpha=3, dropout=0.0)
    layer._kernel.trainable = layer.bias.trainable = False
    layer.adapters.active = "default"
    a, b = layer.adapters["default"].variables.values()
    b.assign(random.normal(size=(2, 5)))
    kernel, bias, a0, b0 = (array(v).astype("float64") for v in (layer._kernel, layer.bias, a, b))
    expected = x @ kernel + bias + 3 / 2 * x @ a0 @ b0
    np.testing.assert_allclose(run(model, x.astype("float32")), expected, atol=1e-5)

    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
    model.fit(x, y, batch_size=6, verbose=0)
    upstream = 2 * (expected - y) / y.size
    np.testing.assert_allclose(array(a), a0 - 0.1 * 1.5 * x.T @ upstream @ b0.T, atol=1e-6)
    np.testing.assert_allclose(array(b), b0 - 0.1 * 1.5 * (x @ a0).T @ upstream, atol=1e-6)
    np.testing.assert_array_equal(array(layer._kernel), kernel.astype("float32"))


def test_a_begins_as_in_pytorch():
    layer = Projection(7)
    layer.build((None, 400))
    attach(layer, "default", "low_rank", rank=50, alpha=1, dropout=0.0)
    a = array(layer.adapters["default"].variables["lora_a"])
    assert 0.049 < abs(a).max() <= 0.05 and abs(a.std() - 0.05 / 3**0.5) < 1e-3  # ± 1 / sqrt(400)
    assert not array(layer.adapters["default"].variables["lora_b"]).any()


@pytest.mark.slow
@every_builder
def test_the_base_stays(builder):
    build, inputs = BUILDERS[builder]
    model = build()
    paths, before, bare = [v.path for v in model.weights], values(model.weights), run(model, inputs)
    add_adapter(model, rank=2)
    # PyTorch has another kernel of attention for a bias that is not trained.
    np.testing.assert_allclose(run(model, inputs), bare, atol=5e-6 if TORCH else 0)
    assert [v.path for v in model.weights if v.path in paths] == paths
    kinds = {v.path.rpartition("/default_")[2] for v in model.trainable_variables}
    assert kinds == {"lora_a", "lora_b"} | ({"kernel", "bias"} if builder == "classifier" else set())
    adapter = values(model.trainable_variables)
    fit(model, inputs)
    assert all((value != adapter[path]).any() for path, value in values(model.trainable_variables).items())
    same(values(v for v in model.weights if v.path in paths), before)
    assert abs(run(model, inputs) - bare).max() > 1e-3
    use_adapter(model, None)
    np.testing.assert_allclose(run(model, inputs), bare, atol=5e-6 if TORCH else 0)
    assert not model.trainable_variables
    steps = int(model.optimizer.iterations)
    model.evaluate(inputs, bare, verbose=0)
    use_adapter(model, "default")  # after a switch to the base and back the optimizer continues
    train(model, inputs, epochs=1)
    assert int(model.optimizer.iterations) == steps + 2


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["classifier", "generator"])
def test_merging(builder):
    model, inputs = trained(builder, dropout=0.3)
    tuned, size = run(model, inputs), len(BUILDERS[builder][0]().weights)
    merge_adapter(model)
    np.testing.assert_allclose(run(model, inputs), tuned, atol=1e-5)
    assert len(model.weights) == size and not model.trainable_variables
    txf.training.unfreeze(model)
    assert len(model.trainable_variables) == size
    fit(model, inputs, epochs=1)


def test_dropout_in_training_alone():
    build, inputs = BUILDERS["generator"]
    model, layer = build(), Projection(7)
    add_adapter(model, dropout=0.5)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    np.testing.assert_array_equal(run(model, inputs), array(model(inputs, training=False)))
    one, other = (array(model(inputs, training=True)) for _ in range(2))
    assert (one != other).any() and (one != run(model, inputs)).any()

    x = np.ones((1000, 3), "float32")  # of each x a half is 0, a half 2: the mean is as without
    layer.build(x.shape)
    attach(layer, "default", "low_rank", rank=2, alpha=2, dropout=0.5)
    layer.adapters.active, variables = "default", layer.adapters["default"].variables
    variables["lora_b"].assign(np.ones((2, 7)))
    plain, dropped = run(layer, x), array(layer(x, training=True))
    assert len(np.unique(dropped[:, 0])) == 8 and abs(dropped.mean() - plain.mean()) < 0.1


@pytest.mark.slow
def test_switching_between_compiled_functions():
    model = txf.models.encoder_classifier(11, 4, num_layers=1, dim=12, num_heads=3, dropout=0.0)
    model.compile("adam", "mse")
    bare = model.predict(IDS, verbose=0)
    add_adapter(model, "one", rank=2)
    train(model, IDS)
    one, base = model.predict(IDS, verbose=0), values(model.non_trainable_weights)
    add_adapter(model, "two", rank=2)
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), bare)  # the head too begins as the base's
    assert int(model.optimizer.iterations) == 0
    train(model, IDS, epochs=3)
    two = model.predict(IDS, verbose=0)
    for name, expected in ((None, bare), ("one", one), ("two", two)):
        use_adapter(model, name)
        np.testing.assert_array_equal(model.predict(IDS, verbose=0), expected)
        assert model.evaluate(IDS, expected, verbose=0) < 1e-9 < model.evaluate(IDS, expected + 0.1, verbose=0)
    use_adapter(model, "one")
    train(model, IDS, epochs=1)
    assert (model.predict(IDS, verbose=0) != one).any()
    use_adapter(model, "two")
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), two)
    same(values(v for v in model.weights if v.path in base), base)


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("builder", ["generator", "seq2seq"])
def test_generate_follows(builder):
    model, found = BUILDERS[builder][0](num_layers=1), {}
    for name in (None, "one"):
        if name:
            add_adapter(model, name, targets="*")
            for variable in model.trainable_variables:
                variable.assign(0.7 * random.normal(size=variable.shape))
        found[name] = model.generate([[3, 5, 8]], 6, seed=1)
    assert (found[None] != found["one"]).any()
    for name in (None, "one"):
        use_adapter(model, name)
        np.testing.assert_array_equal(model.generate([[3, 5, 8]], 6, seed=1), found[name])
    merge_adapter(model, "one")
    np.testing.assert_array_equal(model.generate([[3, 5, 8]], 6, seed=1), found["one"])


@pytest.mark.slow
@pytest.mark.skipif(TORCH, reason="compiles nothing")
def test_a_stream_keeps_the_adapter_that_it_began_with():
    model = BUILDERS["generator"][0](num_layers=1)
    base = model.generate([[3, 5, 8]], 6)[0, 3:].tolist()
    add_adapter(model, "one", targets="*")
    for variable in model.trainable_variables:
        variable.assign(0.7 * random.normal(size=variable.shape))
    stream = model.generate([[3, 5, 8]], 6, stream=True)
    use_adapter(model, None)
    tokens = [int(token[0]) for token in stream]
    use_adapter(model, "one")
    assert tokens == model.generate([[3, 5, 8]], 6)[0, 3:].tolist() != base


@pytest.mark.slow
@pytest.mark.parametrize("first", ["quantized", "adapted"])
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_quantized(mode, first, tmp_path):
    build, inputs = BUILDERS["classifier"]
    model = build()
    if first == "quantized":
        model.quantize(mode)
    add_adapter(model, rank=2)
    if first == "adapted":
        fit(model, inputs)
        tuned = run(model, inputs)
        model.quantize(mode)
        np.testing.assert_allclose(run(model, inputs), tuned, atol=0.1 if mode == "int8" else 0.6)
    query = model.get_layer("encoder_0").attention.query
    assert query.quantization_mode == mode and (mode == "int4" or array(query._kernel).max() == 127)
    before, base = run(model, inputs), values(model.non_trainable_weights)
    fit(model, inputs)
    same(values(model.non_trainable_weights), base)
    assert (run(model, inputs) != before).any()
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    for name in ("default", None):
        use_adapter(model, name), use_adapter(reloaded, name)
        np.testing.assert_allclose(run(reloaded, inputs), run(model, inputs), rtol=0, atol=5e-7 if TORCH else 0)
    with pytest.raises(ValueError, match=f"must be a float model .* received one with .* in {mode}"):
        merge_adapter(model)


@pytest.mark.parametrize("mode, block_size", [("int8", None), ("int4", 2), ("int4", -1)])
def test_quantized_against_numpy(mode, block_size):
    x = random.normal(size=(6, 3)).astype("float32")
    layer = Projection(5)
    layer.build(x.shape)
    int4 = keras.quantizers.Int4QuantizationConfig
    layer.quantize(mode) if block_size is None else layer.quantize(config=int4(block_size=block_size))
    bare, kernel, scale = run(layer, x), array(layer.kernel).astype("float32"), array(layer.kernel_scale)
    if block_size == 2:  # rows of a group
        group = [0, 0, 1]
        kernel = (kernel - array(layer.kernel_zero)[group]) * scale[group]
    else:
        kernel = kernel / scale
    attach(layer, "whole", "whole")
    np.testing.assert_allclose(array(layer.adapters["whole"].variables["kernel"]), kernel, atol=1e-6)
    np.testing.assert_allclose(bare, x @ kernel, atol=1e-5 if block_size else 0.03)  # int8 rounds x too
    attach(layer, "default", "low_rank", rank=2, alpha=3, dropout=0.0)
    layer.adapters.active = "default"
    a, b = layer.adapters["default"].variables.values()
    b.assign(random.normal(size=(2, 5)))
    np.testing.assert_allclose(run(layer, x), bare + 1.5 * x @ array(a) @ array(b), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_policies(policy, tmp_path):
    model = txf.models.decoder_generator(11, dtype=policy, **OPTIONS)
    add_adapter(model, rank=2)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    outputs, before = run(model, IDS), values(model.non_trainable_weights)
    fit(model, IDS, rate=0.1)
    tuned = run(model, IDS)
    assert (tuned != outputs).any() and np.isfinite(tuned).all()
    same(values(model.non_trainable_weights), before)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(run(keras.saving.load_model(tmp_path / "model.keras"), IDS), tuned)
    merge_adapter(model)
    np.testing.assert_allclose(run(model, IDS), tuned, atol=0.1)


REFUSED = [
    ("`name` must be new; received 'one', and the model has ['one']", {"name": "one"}),
    ("`name` must be of letters, digits, `_` and `-`; received 'a/b'", {"name": "a/b"}),
    ("`rank` must be a positive integer; received 0", {"rank": 0}),
    ("`alpha` must be a positive number; received -1", {"alpha": -1}),
    ("`dropout` must be a rate in [0, 1); received 1.0", {"dropout": 1.0}),
    ("received '*/qeury', which matches none", {"targets": ["*/key", "*/qeury"]}),
    ("`heads` must match the paths of layers; received 'logit'", {"heads": "logit"}),
    ("`targets` must be a pattern such as '*/query', or a list of them; received 3", {"targets": 3}),
    ("`model` must be a built Keras model; received 3", {"model": 3}),
]


def test_bad_calls_raise_value_errors():
    model, lora = BUILDERS["classifier"][0](), BUILDERS["generator"][0]()
    add_adapter(model, "one")
    before = values(model.weights)
    lora.get_layer("decoder_0").attention.query.enable_lora(2)
    for words, options in REFUSED:
        refused(lambda: add_adapter(**{"model": model, "name": "two", **options}), [words])
    for words, call in {
        "must not have Keras' own LoRA next to adapters; decoder_0/attention/query has": lambda: add_adapter(lora),
        "`name` must be an adapter of the model, which has ['one']; received 'two'": lambda: use_adapter(model, "two"),
        "`name` must be an adapter of the model, which has none; received 'default'": lambda: merge_adapter(lora),
    }.items():
        refused(call, [words])
    same(values(model.weights), before)
    add_adapter(model, "two")
    with pytest.raises(ValueError, match="must have no other adapter when 'two' is merged; it has .'one'."):
        merge_adapter(model, "two")


@pytest.mark.slow
def test_of_a_recurrent_model_the_adapter_alone_is_trained(tmp_path):
    model = txf.models.recurrent_encoder_decoder(11, 11, 2, 12, cell="gru", attention="additive")
    inputs = {"source_ids": np.array([[3, 5, 8]]), "target_ids": np.array([[1, 4]])}
    before = drawing.array(model(inputs))
    add_adapter(model, "one", rank=2, targets="decoder/*")
    assert {variable.path.rpartition("/")[2] for variable in model.trainable_variables} == {"one_lora_a", "one_lora_b"}
    model.compile(keras.optimizers.Adam(0.1), txf.training.TokenCrossEntropy())
    model.fit(inputs, np.array([[4, 7]]), epochs=2, verbose=0)
    assert np.abs(drawing.array(model(inputs)) - before).max() > 1e-3
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    use_adapter(model, None)
    np.testing.assert_array_equal(drawing.array(model(inputs)), before)
