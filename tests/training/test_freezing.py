"""Training changes only the variables that are not frozen, before and after `compile` and from a file."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.training import freeze, unfreeze

IDS = np.random.default_rng(0).integers(1, 11, (6, 5))
TARGETS = np.cos(np.arange(24)).reshape(6, 4)


def build(**options):
    return txf.models.encoder_classifier(11, 4, num_layers=3, dim=12, num_heads=2, **{"dropout": 0.0, **options})


def parts(model):
    """The layers that are trained."""
    return sorted({variable.path.split("/")[0] for variable in model.trainable_variables})


def values(model):
    return {variable.path: np.array(ops.convert_to_numpy(variable)) for variable in model.weights}


def changed(model, before):
    return sorted(path for path, value in values(model).items() if (value != before[path]).any())


def train(model):
    before = values(model)
    model.fit(IDS, TARGETS, batch_size=3, shuffle=False, verbose=0)
    return changed(model, before)


def no_key_bias(variables):
    """Softmax does not see a bias on the keys: where it is trained, roundings alone change it."""
    return sorted(v.path for v in variables if not v.path.endswith("key/bias"))


def test_patterns_of_layers_and_variables():
    model = build(norm_placement="pre")
    for patterns, left in (
        ("*", []),
        ("embedding", ["encoder_0", "encoder_1", "encoder_2", "encoder_norm", "logits"]),
        (["embedding", "encoder_[01]"], ["encoder_2", "encoder_norm", "logits"]),
        (["emb*", "encoder_?", "encoder_norm"], ["logits"]),
    ):
        freeze(model, patterns)
        assert parts(model) == left
        unfreeze(model)
        assert len(model.trainable_variables) == len(model.weights)
    freeze(model)
    unfreeze(model, ["*/bias", "encoder_1/attention/query"])
    expected = {v.path for v in model.weights if v.path.endswith("/bias")} | {"encoder_1/attention/query/kernel"}
    assert {variable.path for variable in model.trainable_variables} == expected


@pytest.mark.slow
def test_training_follows_between_two_fits():
    model = build()
    freeze(model, ["embedding", "encoder_*"])
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    assert train(model) == ["logits/bias", "logits/kernel"]
    unfreeze(model, "encoder_2")
    model.optimizer.learning_rate.assign(2e-2)
    rate = float(ops.convert_to_numpy(model.optimizer.learning_rate))
    assert set(no_key_bias(model.trainable_variables)) <= set(train(model))
    assert parts(model) == ["encoder_2", "logits"] and int(model.optimizer.iterations) == 2
    freeze(model, "logits")  # as many on one side as on the other: on JAX nothing else would tell
    unfreeze(model, "encoder_1/feed_forward/output")
    trained = train(model)
    assert "logits/kernel" not in trained and "encoder_1/feed_forward/output/kernel" in trained
    assert float(ops.convert_to_numpy(model.optimizer.learning_rate)) == rate


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
def test_an_optimizer_that_begins_anew_is_the_same_otherwise(scaled):
    model, optimizer = build(), keras.optimizers.AdamW(1e-2, weight_decay=0.3, clipnorm=2.0)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    model.compile(optimizer, "mse", run_eagerly=True)
    train(model)
    freeze(model, "embedding")
    new = model.optimizer.inner_optimizer if scaled else model.optimizer
    assert model.optimizer is not optimizer and type(model.optimizer) is type(optimizer)
    assert model.optimizer.get_config() == optimizer.get_config()
    kinds = {v.path.rpartition("/")[2]: new._use_weight_decay(v) for v in model.trainable_variables}
    assert not kinds["bias"] and kinds["kernel"]
    train(model)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_files_keep_it(norm, tmp_path):
    model = build(norm=norm, norm_placement="pre", pooling="attention", position="relative")
    freeze(model, ["embedding", "encoder_0/attention", "*_position", "encoder_norm", "pooling"])
    freeze(model, "encoder_2/feed_forward/*/bias")
    model.compile("adam", "mse", run_eagerly=True)
    train(model)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in reloaded.trainable_variables] == [v.path for v in model.trainable_variables]
    assert len(reloaded.optimizer.variables) == len(model.optimizer.variables)
    before = values(reloaded)
    train(model), train(reloaded)
    assert not changed(reloaded, values(model)) and changed(reloaded, before)
    unfreeze(reloaded)
    assert len(reloaded.trainable_variables) == len(reloaded.weights)


def test_layers_of_keras(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, name="one"), keras.layers.Dense(4, name="two")])
    model.get_layer("two").trainable = False
    freeze(model, "*/one")
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not reloaded.trainable_variables
    unfreeze(reloaded, "*two/kernel")
    assert [v.path.rpartition("/")[2] for v in reloaded.trainable_variables] == ["kernel"]
    assert len(reloaded.get_layer("two").trainable_variables) == 1


def test_files_keep_the_lora_of_keras(tmp_path):
    model = txf.models.decoder_generator(11, 1, 12, 2, tie_embeddings=False)
    for layer in (model.get_layer("decoder_0").attention.query, model.get_layer("logits")):
        layer.enable_lora(2, lora_alpha=3)
        layer.lora_kernel_b.assign(keras.random.normal(layer.lora_kernel_b.shape))
    model.trainable = False
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [v.path for v in again.weights] == [v.path for v in model.weights] and not again.trainable_weights
    np.testing.assert_allclose(again(np.array([[3, 4]])), model(np.array([[3, 4]])), atol=1e-6)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_layers_of_keras_with_layers_within(bidirectional, tmp_path):
    model = txf.models.recurrent_encoder_decoder(11, 11, 2, 12, bidirectional=bidirectional, share_embeddings=False)
    freeze(model, ["*encoder_0*", "source_embedding"])
    trained = sorted(variable.path for variable in model.trainable_variables)
    assert not any("encoder_0" in path for path in trained) and any("encoder_1" in path for path in trained)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert sorted(variable.path for variable in again.trainable_variables) == trained
    unfreeze(again)
    assert len(again.trainable_variables) == len(again.weights)


def test_variables_that_training_never_changes_stay_frozen():
    model = build()
    model.quantize("int8")
    txf.training.add_adapter(model, "one")
    txf.training.add_adapter(model, "two")
    unfreeze(model)
    paths = {variable.path for variable in model.trainable_variables}
    assert not any("/one_" in path for path in paths) and any("/two_" in path for path in paths)
    assert not any(variable.dtype == "int8" for variable in model.trainable_variables)


def test_bad_calls_raise_value_errors():
    model = build()
    words = "`patterns` must match the paths of layers or .*; received 'encoder_7', which"
    with pytest.raises(ValueError, match=words):
        freeze(model, ["encoder_0", "encoder_7"])
    with pytest.raises(ValueError, match="`patterns` must be a pattern such as '.*', or a list of them; received None"):
        unfreeze(model, None)
    with pytest.raises(ValueError, match="`model` must be a built Keras model; received"):
        freeze(keras.Sequential([keras.layers.Dense(3)]), "*")
    assert len(model.trainable_variables) == len(model.weights)


def test_weights_that_an_adapter_replaces_stay_unchanged():
    """A head that is trained whole has its own kernel; the kernel of the base is unused meanwhile."""
    model = build()
    txf.training.add_adapter(model)
    unfreeze(model, ["logits", "encoder_1/attention/query"])
    trained = {v.path for v in model.trainable_variables if v.path.startswith(("logits", "encoder_1/attention/query"))}
    assert {"logits/kernel", "logits/bias"}.isdisjoint(trained) and "encoder_1/attention/query/kernel" in trained
