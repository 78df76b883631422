"""Resume: a training that was interrupted and continued ends with the weights of an unbroken training."""

import itertools
import re

import keras
import numpy as np
import pytest
from kills import every_kill, full_disk

import keras_txf as txf

STEPS, EPOCHS = 3, 6


class Cut(Exception):
    pass


class CutAt(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.place, self.epoch = (epoch, batch), None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            raise Cut


def batches(first):
    for number in itertools.count(first):
        generator = np.random.default_rng(number)
        yield generator.normal(size=(4, 3)).astype("float32"), generator.normal(size=(4, 1)).astype("float32")


def train(file, seed=1, cut=None, epochs=EPOCHS, patience=99, units=5, rate=0.01, first_epoch=None, min_delta=0,
          more=(), dtype="float32"):  # fmt: skip
    """A training with dropout, moments, and callbacks that count; its model, callbacks and history."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units), keras.layers.Dropout(0.5), keras.layers.Dense(1, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    # To trace takes longer than these steps: only trainings with a schedule are compiled.
    model.compile(keras.optimizers.Adam(rate), "mse", run_eagerly=isinstance(rate, float))
    stopping = keras.callbacks.EarlyStopping("loss", min_delta, patience, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau(
        "loss", patience=0, factor=0.5
    )  # this callback changes the learnt weights
    if not isinstance(rate, float):
        plateau = keras.callbacks.TerminateOnNaN()
    resume = txf.training.Resume(file, [stopping, plateau])
    begin = resume.epoch if first_epoch is None else first_epoch
    callbacks = [*more, stopping, plateau, resume, *([CutAt(*cut)] if cut else [])]
    stream = batches(resume.epoch * STEPS)
    options = {"steps_per_epoch": STEPS, "epochs": epochs, "initial_epoch": begin, "shuffle": False, "verbose": 0}
    history = model.fit(stream, callbacks=callbacks, **options)
    return model, stopping, history


def arrays(model):
    variables = model.variables + model.optimizer.variables
    return {variable.path: keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32")) for variable in variables}


def assert_same(model, other):
    assert_equal(arrays(model), arrays(other))


def assert_equal(found, expected):
    for (path, one), other in zip(found.items(), expected.values(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=path)


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, SCHEDULE], ids=["plateau", "schedule"])
def test_goes_on_as_if_nothing_had_happened(rate, tmp_path):
    unbroken, stopping, history = train(tmp_path / "one.npz", rate=rate)
    for seed, cut in ((1, (0, 1)), (2, (2, 0)), (3, (2, 2)), (4, (5, 2))):
        with pytest.raises(Cut):
            train(tmp_path / "two.npz", 1 if cut[0] == 0 else seed, cut, rate=rate)
        if cut[0] == 0:
            assert not (tmp_path / "two.npz").exists()  # no epoch was complete: the training starts again
            with pytest.raises(Cut):
                train(tmp_path / "two.npz", 1, (1, 1), rate=rate)
    resumed, other_stopping, other_history = train(tmp_path / "two.npz", 5, rate=rate)
    assert_same(unbroken, resumed)
    assert other_stopping.best == stopping.best and other_stopping.best_epoch == stopping.best_epoch
    assert other_history.epoch == [5] and other_history.history["loss"] == history.history["loss"][5:]
    # Once more: nothing is left to do.
    complete, _, nothing = train(tmp_path / "two.npz", 6, rate=rate)
    assert_same(unbroken, complete)
    assert nothing.epoch == []


def test_a_training_that_was_stopped_is_complete(tmp_path):
    # A loss cannot improve on the best of all: patience ends.
    model, stopping, history = train(tmp_path / "one.npz", epochs=50, patience=1)
    assert 0 < stopping.stopped_epoch < 49
    again, _, nothing = train(tmp_path / "one.npz", 2, epochs=50, patience=1)
    assert nothing.epoch == []
    for one, two in zip(model.get_weights(), again.get_weights()):  # the best epoch's, which early stopping brings back
        np.testing.assert_array_equal(one, two)


class StopWithin(keras.callbacks.Callback):
    """Ends the training in the second epoch, after its first step."""

    def on_epoch_begin(self, epoch, logs=None):
        self.second = epoch == 1

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = self.second


@pytest.mark.slow
def test_an_epoch_that_is_stopped_inside_is_not_saved(tmp_path):
    unbroken, _, _ = train(tmp_path / "one.npz")
    _, _, history = train(tmp_path / "two.npz", more=[StopWithin()])
    assert history.epoch == [0, 1] and txf.training.Resume(tmp_path / "two.npz").epoch == 1
    again, _, history = train(tmp_path / "two.npz", seed=9)
    assert history.epoch == list(range(1, EPOCHS))
    assert_same(unbroken, again)


@pytest.mark.slow
def test_callbacks_keep_their_best_value(tmp_path):
    """Keras turns the sign of `min_delta` once for each new callback."""
    _, stopping, history = train(tmp_path / "one.npz", min_delta=1e3)
    assert max(history.history["loss"]) < 1e3 and stopping.best_epoch == 0  # nothing is better by so much
    with pytest.raises(Cut):
        train(tmp_path / "two.npz", cut=(2, 0), min_delta=1e3)
    _, resumed, _ = train(tmp_path / "two.npz", min_delta=1e3)
    assert resumed.best_epoch == 0 and resumed.wait == stopping.wait == EPOCHS - 1


def test_a_training_that_does_not_continue_the_file_raises_an_error(tmp_path):
    train(tmp_path / "one.npz", epochs=1)
    with pytest.raises(ValueError, match="received 15 variables and 2 callbacks, of another model") as refused:
        train(tmp_path / "one.npz", units=6)
    assert re.search(r"first that differs is '.*kernel', float \(.*6\), in the file float \(", str(refused.value))


class Before(keras.callbacks.Callback):
    """Keeps what the model is when training begins, before a later callback changes it."""

    def on_train_begin(self, logs=None):
        self.model.optimizer.build(self.model.trainable_variables)
        self.arrays = arrays(self.model)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_refused_fit_changes_nothing(tmp_path, epochs):
    """Keras tells a callback which epoch comes first only when that epoch begins."""
    train(tmp_path / "one.npz", epochs=1)
    before = Before()
    words = "must continue with epoch 1; received epoch 0. Pass initial_epoch=resume.epoch"
    with pytest.raises(ValueError, match=words):
        train(tmp_path / "one.npz", seed=2, epochs=epochs, first_epoch=0, more=[before])
    assert_equal(arrays(before.model), before.arrays)


def test_bfloat16_is_kept(tmp_path):
    train(tmp_path / "one.npz", epochs=1, dtype="bfloat16")
    resumed, _, _ = train(tmp_path / "one.npz", 2, epochs=2, dtype="bfloat16")
    assert_same(train(tmp_path / "two.npz", epochs=2, dtype="bfloat16")[0], resumed)


def test_later_fits_of_the_same_callbacks_lose_nothing(tmp_path):
    """What has not changed since the second began may have changed since the first."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(-0.1), "mse", run_eagerly=True)  # each epoch is worse
    x, y = next(batches(0))

    def fit(best, resume, epochs):
        model.fit(x, y, initial_epoch=resume.epoch, epochs=epochs, callbacks=[best, resume], verbose=0)

    def checkpoint():
        return keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)

    best = checkpoint()
    resume = txf.training.Resume(tmp_path / "resume.npz", [best])
    fit(best, resume, 1)
    first = best.best
    fit(best, resume, 2)
    again = checkpoint()
    fit(again, txf.training.Resume(tmp_path / "resume.npz", [again]), 3)
    assert again.best == best.best == first


def test_arguments_of_another_kind(tmp_path):
    for wrong in (None, 3, True, [3], "x", {}, b"x", [None], keras.callbacks.EarlyStopping("loss")):
        with pytest.raises(ValueError, match="`callbacks` must be a list of Keras callbacks; received"):
            txf.training.Resume(tmp_path / "one.npz", wrong)
        if not isinstance(wrong, str):
            with pytest.raises(ValueError, match="`file` must be a path"):
                txf.training.Resume(wrong)


def test_a_place_that_cannot_be_written_to(tmp_path):
    with pytest.raises(ValueError, match="`file` must be a file, such as .*; received .*, which is a folder"):
        txf.training.Resume(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="`file` must be a writable path; received .*one.npz"):
        train(tmp_path / "file" / "one.npz", cut=(0, 0))  # before the first step


@pytest.mark.slow
def test_a_full_disk_leaves_the_epoch_before(tmp_path):
    file = tmp_path / "one.npz"
    train(file, epochs=1)
    content = file.read_bytes()
    for limit in range(1, len(content), 1 + len(content) // 15):
        words = "`file` must be a writable path; received .*one.npz"
        with pytest.raises(ValueError, match=words), full_disk(limit):
            train(file, epochs=2)
        assert [file] == list(tmp_path.iterdir()) and file.read_bytes() == content


@pytest.mark.slow
def test_a_kill_at_any_change_of_the_disk(tmp_path):
    file = tmp_path / "one.npz"
    kills = every_kill(lambda: train(file, epochs=2), (np, "savez", 0))
    epochs = [txf.training.Resume(file).epoch for _ in kills]
    assert epochs[0] == 0 and epochs[-1] == 2 and epochs == sorted(epochs)
    assert_same(train(file, 2, epochs=2)[0], train(tmp_path / "two.npz", epochs=2)[0])
