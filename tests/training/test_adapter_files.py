"""Adapters are saved and loaded in adapter files, Keras files and SavedModels."""

import drawing
import keras
import numpy as np
import pytest
from adapter_cases import BUILDERS, IDS, OPTIONS, array, every_builder, fit, run, same, train, trained, values
from refusals import refused

import keras_txf as txf
from keras_txf.layers.adapters import describe
from keras_txf.layers.projections import Projection
from keras_txf.training import add_adapter, remove_adapter, use_adapter


@pytest.mark.slow
@every_builder
def test_files(builder, tmp_path):
    model, inputs = trained(builder, dropout=0.1, alpha=5)
    tuned = run(model, inputs)
    txf.training.save_adapter(model, tmp_path / "new" / "one.safetensors")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["one.safetensors"]
    remove_adapter(model)
    bare = run(model, inputs)
    txf.training.load_adapter(model, tmp_path / "new" / "one.safetensors", name="other")
    np.testing.assert_array_equal(run(model, inputs), tuned)
    assert all("/other_" in variable.path for variable in model.trainable_variables)
    use_adapter(model, None)
    np.testing.assert_array_equal(run(model, inputs), bare)


@pytest.mark.slow
@pytest.mark.parametrize("file, words", [(".", ["a folder"]), (3, ["3"]), (b"one", ["b'one'"]), ("", ["''"])])
def test_a_file_that_cannot_be_written(file, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: txf.training.save_adapter(trained("classifier")[0], file), ["`file`", *words])
    assert not [*tmp_path.iterdir()]


def test_a_file_holds_tensors_and_metadata(tmp_path):
    from safetensors.numpy import load_file

    model = BUILDERS["classifier"][0]()
    add_adapter(model, rank=2, targets=["encoder_1/attention/key", "*_0/feed_forward/output"])
    drawing.randomize(model)
    txf.training.save_adapter(model, tmp_path / "one.safetensors")
    tensors = load_file(tmp_path / "one.safetensors")
    assert {key: tensor.shape for key, tensor in tensors.items()} == {
        "encoder_1/attention/key/lora_a": (12, 2),
        "encoder_1/attention/key/lora_b": (2, 12),
        "encoder_0/feed_forward/output/lora_a": (48, 2),
        "encoder_0/feed_forward/output/lora_b": (2, 12),
        "pooling/score/kernel": (12, 1),
        "logits/kernel": (12, 4),
        "logits/bias": (4,),
    }
    same({f"{path.replace('default_', '')}": v for path, v in values(model.trainable_variables).items()}, tensors)


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["classifier", "generator"])
def test_keras_files_keep_everything(builder, tmp_path):
    model, inputs = trained(builder)
    add_adapter(model, "second", rank=3, dropout=0.2, targets="*/attention/*", heads=())
    use_adapter(model, "default")
    train(model, inputs, epochs=1)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    pairs = zip(model._flatten_layers(), reloaded._flatten_layers(), strict=True)
    assert all(describe(one) == describe(other) for one, other in pairs if isinstance(one, Projection))
    for name in ("default", "second", None):
        use_adapter(model, name), use_adapter(reloaded, name)
        np.testing.assert_array_equal(run(reloaded, inputs), run(model, inputs))
        same(values(reloaded.trainable_variables), values(model.trainable_variables))
    same(values(reloaded.optimizer.variables), values(model.optimizer.variables))
    use_adapter(model, "default"), use_adapter(reloaded, "default")
    for one in (model, reloaded):
        train(one, inputs, epochs=1)
    same(values(reloaded.weights), values(model.weights))


@pytest.mark.slow
def test_heads_of_others(tmp_path):
    def build(units=4):
        keras.utils.set_random_seed(3)
        encoder = txf.models.encoder(11, norm="rms", norm_placement="pre", **OPTIONS)
        ids = keras.Input((None,), dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D()(encoder(ids))
        return keras.Model(ids, keras.layers.Dense(units, name="mine")(pooled))

    model = build()
    add_adapter(model, rank=2)
    fit(model, IDS)
    assert [v.path for v in model.trainable_variables][-2:] == ["mine/kernel", "mine/bias"]
    tuned = run(model, IDS)
    txf.training.save_adapter(model, tmp_path / "one.safetensors")
    other = build()
    txf.training.load_adapter(other, tmp_path / "one.safetensors")
    np.testing.assert_array_equal(run(other, IDS), tuned)
    with pytest.raises(
        ValueError, match="`heads` must be projections .*; received mine/kernel, which 'two' would train"
    ):
        add_adapter(model, "two")
    with pytest.raises(ValueError, match="must have the sizes of .*: 'mine/bias' is .4,.; received a model with .5,"):
        txf.training.load_adapter(build(5), tmp_path / "one.safetensors")
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    same(values(reloaded.trainable_variables), values(model.trainable_variables))


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="SavedModels are TensorFlow's")
def test_exports_have_the_active_adapter(tmp_path):
    import tensorflow as tf

    model, inputs = trained("generator")
    model.export(tmp_path / "one", verbose=False)
    tuned = run(model, inputs)
    use_adapter(model, None)
    reloaded = tf.saved_model.load(tmp_path / "one")
    np.testing.assert_allclose(array(reloaded.serve(inputs.astype("int32"))), tuned, atol=1e-5)


@pytest.mark.slow
def test_an_optimizer_that_keeps_copies_begins_with_the_files_values(tmp_path):
    model, inputs = trained("generator")
    tuned = values(model.trainable_variables)
    txf.training.save_adapter(model, tmp_path / "one.safetensors")
    remove_adapter(model)
    add_adapter(model, "default")
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.0), "mse", run_eagerly=True)
    train(model, inputs, epochs=1)
    remove_adapter(model)
    txf.training.load_adapter(model, tmp_path / "one.safetensors", "default")
    train(model, inputs, epochs=1)
    for path, value in values(model.trainable_variables).items():
        np.testing.assert_allclose(value, tuned[path], atol=1e-6)
