"""Adapters and files of `Resume` with random damage: read correctly, or an error names the file and changes nothing."""

import functools
import io
import json
import random
import struct
import traceback
import warnings

import keras
import mutations
import numpy as np
import pytest
from adapter_cases import trained, values

import keras_txf as txf
from keras_txf.checkpoints.files import open_tensors
from keras_txf.training.adapters import adapted_layers


def names(file, error):
    """Whether an error is of a kind that a caller expects, in a line, and names the file."""
    words = str(error)
    assert isinstance(error, ValueError) and str(file) in words and "\n" not in words and len(words) < 1200, error


def edit_adapter(draw, content):
    """The JSON of the header, or the JSON within its metadata, or the length."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    if draw.random() < 0.7:
        described = mutations.edit_json(draw, json.loads(header["__metadata__"]["keras_txf"]))
        header["__metadata__"]["keras_txf"] = json.dumps(described)
    else:
        header = mutations.edit_json(draw, header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


@functools.cache
def adapted(folder):
    model, _ = trained("classifier")
    txf.training.save_adapter(model, folder / "adapter.safetensors")
    txf.training.remove_adapter(model)
    return model, (folder / "adapter.safetensors").read_bytes()


def load_broken_adapters(folder, number, seed):
    """How many could be loaded, of `number` files."""
    model, content = adapted(folder)
    draw, loaded, file = random.Random(seed), 0, folder / "broken.safetensors"
    before, ids = values(model.variables), [id(variable) for variable in model.variables]
    for _ in range(number):
        damage = draw.choice([*mutations.BYTES, mutations.lengthen, *[edit_adapter] * 6])
        file.write_bytes(damage(draw, content))
        try:
            txf.training.load_adapter(model, file)
        except ValueError as error:
            names(file, error)
        else:
            loaded += 1
            from safetensors.numpy import load_file

            for key, array in load_file(file).items():  # the loaded values are the values of the file
                path, _, part = key.rpartition("/")
                adapter = adapted_layers(model)[path].adapters["default"]
                np.testing.assert_array_equal(keras.ops.convert_to_numpy(adapter.variables[part]), array)
            txf.training.remove_adapter(model)
        assert [id(variable) for variable in model.variables] == ids
        assert not adapted_layers(model)
    after = values(model.variables)
    assert all((before[path] == after[path]).all() for path in before)
    return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("broken")


@pytest.mark.slow
def test_adapters(folder):
    assert 20 < load_broken_adapters(folder, 500, seed=1) < 400


def load_broken_keras_files(folder, number, seed):
    """Keras reads these. Its errors are its own; of this package's code none but a ValueError comes through."""
    model, _ = trained("classifier")
    model.save(folder / "sound.keras")
    content, draw, loaded = (folder / "sound.keras").read_bytes(), random.Random(seed), 0
    whole = functools.partial(mutations.edit_zip, edit=edit_member)
    for _ in range(number):
        (folder / "broken.keras").write_bytes(draw.choice([*mutations.BYTES, *[whole] * 6])(draw, content))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras' own, of what it passes over
                keras.saving.load_model(folder / "broken.keras")
            loaded += 1
        except Exception as error:
            ours = [x.filename for x in traceback.extract_tb(error.__traceback__) if "keras_txf/" in x.filename]
            assert isinstance(error, ValueError) or not ours, (ours, error)
    return loaded


def edit_member(draw, name, content):
    return mutations.edit_text(draw, content) if name.endswith(".json") else mutations.flip(draw, content)


@pytest.mark.slow
def test_keras_files(folder):
    assert 5 < load_broken_keras_files(folder, 60, seed=1) < 55


def edit_array(draw, name, content):
    """The JSON of the callbacks, or an array replaced by another."""
    if name == "callbacks.npy" and draw.random() < 0.7:
        plain = json.loads(str(np.load(io.BytesIO(content))))
        changed = np.array(json.dumps(mutations.edit_json(draw, plain)))
    else:
        scalars = [np.array(value) for value in (-1, 2.5, "x", True)]
        changed = draw.choice([np.zeros(3), *scalars, np.zeros((0, 2)), np.zeros(4, "complex64")])
    stream = io.BytesIO()
    np.save(stream, changed)
    return stream.getvalue()


def counting():
    """Callbacks that carry something from epoch to epoch."""
    stopping = keras.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True)
    return [stopping, keras.callbacks.ReduceLROnPlateau("loss", patience=3)]


def compiled_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


@functools.cache
def saved_training(folder):
    model, callbacks = compiled_model(), counting()
    resume = txf.training.Resume(folder / "resume.npz", callbacks)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), epochs=2, verbose=0, callbacks=[*callbacks, resume])
    return (folder / "resume.npz").read_bytes(), state(model, callbacks)


def state(model, callbacks):
    kinds = (bool, int, float, str, type(None))
    others = ("params", "min_delta", "monitor_op")  # which `fit` sets each time
    plain = [{k: v for k, v in vars(c).items() if isinstance(v, kinds) and k not in others} for c in callbacks]
    arrays = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
    arrays += callbacks[0].best_weights or []
    return plain, [(array.shape, array.tobytes()) for array in arrays]


def resume_broken_files(folder, number, seed):
    content, right = saved_training(folder)
    draw, loaded, file = random.Random(seed), 0, folder / "broken.npz"
    model = compiled_model()
    fresh = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
    whole = functools.partial(mutations.edit_zip, edit=edit_array)
    for _ in range(number):
        damage = draw.choice([*mutations.BYTES, *[whole] * 6])
        file.write_bytes(damage(draw, content))
        callbacks = counting()
        for callback in callbacks:
            callback.set_model(model)
            callback.on_train_begin()
        before = state(model, callbacks)
        try:
            resume = txf.training.Resume(file, callbacks)
            resume.set_model(model)
            resume.on_train_begin()
        except ValueError as error:
            names(file, error)
            assert state(model, callbacks) == before
            continue
        loaded += 1
        # A checksum covers every byte: only a rewritten array may differ.
        assert damage is whole or (state(model, callbacks) == right and resume.epoch == 2)
        for variable, value in zip([*model.variables, *model.optimizer.variables], fresh):
            variable.assign(value)
    return loaded


@pytest.mark.parametrize("number", [100, pytest.param(800, marks=pytest.mark.slow)])
def test_resume(folder, number):
    assert number / 30 < resume_broken_files(folder, number, seed=number) < number * 2 / 3


def test_a_message_is_short_whatever_the_file_holds(tmp_path):
    header = json.dumps({"a": {"dtype": "x" * 200_000, "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"0000")
    words = "no sound safetensors file: .*unknown variant .* [.]{3} "
    with pytest.raises(ValueError, match=words) as error, open_tensors(tmp_path):
        pass
    assert "model.safetensors" in str(error.value) and len(str(error.value)) < 900
