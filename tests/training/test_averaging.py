"""KeepCheckpoints and average_checkpoints against a mean in NumPy."""

import os

import keras
import numpy as np
import pytest

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
    weights = fit(build(), tmp_path)
    model = keras.Sequential.from_config(build().get_config())
    assert not model.compiled
    txf.training.average_checkpoints(model, [tmp_path / "epoch_00004.weights.h5"])
    for variable, value in zip(model.weights, weights[3]):
        np.testing.assert_array_equal(array(variable), value)


def test_what_is_no_float_is_the_last_files(tmp_path):
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


def test_a_training_that_goes_on_keeps_counting(tmp_path):
    model = build()
    fit(model, tmp_path)
    os.rename(tmp_path / "epoch_00005.weights.h5", tmp_path / "unfinished.epoch_00005.weights.h5")  # killed while saving
    fit(model, tmp_path, epochs=6, initial_epoch=4)
    assert files(tmp_path) == [f"epoch_{epoch:05}.weights.h5" for epoch in (4, 5, 6)]
    fit(model, tmp_path, epochs=6, initial_epoch=5)  # killed after saving, before the training knew
    with pytest.raises(ValueError, match="beyond the epoch at which `fit` begins, 0; .* has epoch_00004.weights.h5, "):
        fit(model, tmp_path)


@pytest.mark.parametrize("batch", [0, 1], ids=["first batch", "last batch"])
def test_an_epoch_that_is_stopped_inside_leaves_none(batch, tmp_path):
    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.third = epoch == 2

        def on_train_batch_begin(self, at, logs=None):
            if self.third and at == batch:
                self.model.layers[0].kernel.assign(np.full((3, 5), np.nan))  # on JAX `model` has no state within an epoch

    model, keep = build(), txf.training.KeepCheckpoints(tmp_path, 2)
    stops = [Spoil(), keras.callbacks.TerminateOnNaN(), keep]
    assert model.fit(X, X[:, :2], epochs=4, batch_size=4, verbose=0, callbacks=stops).epoch == [0, 1, 2]
    assert files(tmp_path) == [f"epoch_{epoch:05}.weights.h5" for epoch in (1, 2)]
    txf.training.average_checkpoints(model, tmp_path)
    assert all(np.isfinite(array(weights)).all() for weights in model.weights)


def test_refuses_nothing(tmp_path):
    for nothing in (tmp_path, []):
        with pytest.raises(ValueError, match="`checkpoints` must be a folder with files"):
            txf.training.average_checkpoints(build(), nothing)
    with pytest.raises(ValueError, match="`keep` must be a positive integer; received 0"):
        txf.training.KeepCheckpoints(tmp_path, keep=0)
