"""KeepCheckpoints and average_checkpoints against a mean in NumPy."""

import os

import keras
import numpy as np
import pytest
from kills import full_disk
from refusals import refused

import keras_txf as txf

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


class Recorder(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.weights = [*getattr(self, "weights", []), [array(w) for w in self.model.weights]]


def array(x):
    return np.array(keras.ops.convert_to_numpy(x))


def build(dtype="float32"):
    hidden = keras.layers.Dense(5, dtype=dtype)
    model = keras.Sequential([keras.Input((3,)), hidden, keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def fit(model, folder, keep=3, epochs=5, **options):
    recorder = Recorder()
    keep = txf.training.KeepCheckpoints(folder, keep)
    model.fit(X, X[:, :2], epochs=epochs, batch_size=4, verbose=0, callbacks=[keep, recorder], **options)
    return recorder.weights


def files(folder):
    return sorted(os.listdir(folder))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_the_mean_of_the_last(dtype, tmp_path):
    model = build(dtype)
    weights = fit(model, tmp_path / "all")
    assert files(tmp_path / "all") == [f"epoch_{epoch:05}.weights.h5" for epoch in (3, 4, 5)]
    iterations = int(model.optimizer.iterations)
    txf.training.average_checkpoints(model, tmp_path / "all")
    for variable, *values in zip(model.weights, *weights[-3:]):
        mean = np.mean([value.astype("float64") for value in values], axis=0)
        precision = 1e-2 if variable.dtype == "bfloat16" else 1e-6
        np.testing.assert_allclose(array(variable).astype("float64"), mean, rtol=precision, atol=1e-7)
    assert int(model.optimizer.iterations) == iterations


def test_a_list_of_files_and_a_model_that_was_not_compiled(tmp_path):
    weights = fit(build(), tmp_path, epochs=2)
    model = keras.Sequential.from_config(build().get_config())
    assert not model.compiled
    txf.training.average_checkpoints(model, [tmp_path / "epoch_00001.weights.h5"])
    for variable, value in zip(model.weights, weights[0]):
        np.testing.assert_array_equal(array(variable), value)


def test_weights_that_are_not_floats_come_from_the_last_file(tmp_path):
    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

        def call(self, inputs):
            return inputs

    model = keras.Sequential([keras.Input((3,)), Counting(), keras.layers.Dense(1)])
    paths = [tmp_path / f"{count}.weights.h5" for count in (3, 8)]
    for path, count in zip(paths, (3, 8)):
        model.layers[0].count.assign(count)
        model.save_weights(path)
    model.layers[0].count.assign(0)
    txf.training.average_checkpoints(model, paths)
    assert int(model.layers[0].count) == 8


@pytest.mark.slow
def test_a_training_that_goes_on_keeps_counting(tmp_path):
    model = build()
    fit(model, tmp_path)
    # killed while saving
    os.rename(tmp_path / "epoch_00005.weights.h5", tmp_path / "unfinished.epoch_00005.weights.h5")
    fit(model, tmp_path, epochs=6, initial_epoch=4)
    assert files(tmp_path) == [f"epoch_{epoch:05}.weights.h5" for epoch in (4, 5, 6)]
    fit(model, tmp_path, epochs=6, initial_epoch=5)  # killed after saving, before the training knew
    with pytest.raises(ValueError, match="after the epoch at which `fit` begins, 0; .* has epoch_00004.weights.h5, "):
        fit(model, tmp_path)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("batch", [0, 1], ids=["first batch", "last batch"])
def test_an_epoch_that_is_stopped_inside_leaves_none(batch, tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.third = epoch == 2

        def on_train_batch_begin(self, at, logs=None):
            if self.third and at == batch:  # on JAX `model` has no state within an epoch
                self.model.layers[0].kernel.assign(np.full((3, 5), np.nan))

    model, keep = build(), txf.training.KeepCheckpoints(tmp_path, 2)
    stops = [Spoil(), keras.callbacks.TerminateOnNaN(), keep]
    assert model.fit(X, X[:, :2], epochs=4, batch_size=4, verbose=0, callbacks=stops).epoch == [0, 1, 2]
    assert files(tmp_path) == [f"epoch_{epoch:05}.weights.h5" for epoch in (1, 2)]
    txf.training.average_checkpoints(model, tmp_path)
    assert all(np.isfinite(array(weights)).all() for weights in model.weights)


def test_epochs_are_ordered_by_number(tmp_path):
    """By name 100000 comes before 99999: the files of a folder from before, and those that are written."""
    model, places = build(), [99_998, 99_999, 100_000, 100_001]
    model.optimizer.build(model.trainable_variables)
    for epoch in (99_997, *places[:2]):
        model.save_weights(tmp_path / f"epoch_{epoch:05}.weights.h5")
    weights = fit(model, tmp_path, keep=3, epochs=100_001, initial_epoch=99_999)
    assert files(tmp_path) == [f"epoch_{epoch}.weights.h5" for epoch in (100_000, 100_001, 99_999)]
    model.layers[0].kernel.assign(np.zeros((3, 5)))
    txf.training.average_checkpoints(model, [tmp_path / "epoch_99999.weights.h5"])
    first = model.get_weights()
    txf.training.average_checkpoints(model, tmp_path)
    for variable, *values in zip(model.weights, first, *weights):
        mean = np.mean(np.asarray(values, "float64"), axis=0)
        np.testing.assert_allclose(array(variable), mean, rtol=1e-6, atol=1e-7)
    assert int(model.optimizer.iterations) == 4  # of the last file: two epochs of two steps
    with pytest.raises(ValueError, match="after the epoch at which `fit` begins, 99999; .* has .*epoch_100001"):
        fit(model, tmp_path, epochs=100_002, initial_epoch=99_999)


def test_other_files_of_the_folder_are_none_of_its(tmp_path):
    names = ["epoch_best.weights.h5", "epoch_00009.weights.h5.old", "epoch_9.weights.h5"]
    names += ["unfinished.epoch_00004.weights.h5"]
    for name in names:
        (tmp_path / name).write_text("mine")
    fit(build(), tmp_path, keep=1, epochs=2)
    assert files(tmp_path) == sorted([*names, "epoch_00002.weights.h5"])


def test_a_failed_average_leaves_the_model_unchanged(tmp_path):
    model = build()
    model.fit(X, X[:, :2], verbose=0)
    names = ["good", "missing", "folder", "empty", "broken", "other"]
    paths = {name: tmp_path / f"{name}.weights.h5" for name in names}
    good = paths.pop("good")
    model.save_weights(good)
    model.layers[0].kernel.assign(np.full((3, 5), 2.0))
    paths["folder"].mkdir()
    paths["empty"].write_bytes(b"")
    paths["broken"].write_bytes(good.read_bytes()[:-999])
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(7)]).save_weights(paths["other"])
    variables = [*model.variables, *model.optimizer.variables]
    before = [array(variable) for variable in variables]
    for bad in (*paths.values(), None):
        with pytest.raises(ValueError, match=bad.name if bad else "`checkpoints`"):
            txf.training.average_checkpoints(model, [good, bad])
        for variable, value in zip(variables, before):
            np.testing.assert_array_equal(array(variable), value)


def test_arguments_of_another_kind(tmp_path):
    model = build()
    for wrong in (None, 3, True, [], {}, b"x", "", "a\0b"):
        refused(lambda: txf.training.average_checkpoints(model, wrong), ["`checkpoints`"])
        refused(lambda: txf.training.KeepCheckpoints(wrong), ["`folder`"])
        refused(lambda: txf.training.average_checkpoints(wrong, tmp_path), ["`model` must be a built Keras model"])
    for nothing in (tmp_path, []):
        refused(lambda: txf.training.average_checkpoints(model, nothing), ["`checkpoints` must be a folder with files"])
    refused(lambda: txf.training.KeepCheckpoints(tmp_path, keep=0), ["`keep` must be a positive integer; received 0"])
    (tmp_path / "file").write_text("")
    refused(lambda: txf.training.KeepCheckpoints(tmp_path / "file"), ["`folder` must be a folder", "file"])
    with pytest.raises(ValueError, match="`folder` must be a writable path; .*inner"):
        fit(model, tmp_path / "file" / "inner")


@pytest.mark.slow
def test_a_full_disk_leaves_the_epochs_before(tmp_path):
    model = build()
    fit(model, tmp_path, epochs=1)
    [before] = tmp_path.iterdir()
    content, limit = before.read_bytes(), 1
    while limit < len(content):  # HDF5 itself would end the process at some of these sizes
        words = "`folder` must be a writable path; received '.*epoch_00002"
        with pytest.raises(ValueError, match=words) as error, full_disk(limit):
            fit(model, tmp_path, epochs=2, initial_epoch=1)
        assert "\n" not in str(error.value) and len(str(error.value)) < 700
        assert [before] == list(tmp_path.iterdir()) and before.read_bytes() == content
        limit += 1 + len(content) // 25
    with full_disk(4 * len(content)):
        fit(model, tmp_path, epochs=2, initial_epoch=1)
    assert len(files(tmp_path)) == 2
