"""`load(dtype="auto")` keeps the type of the file, bit for bit; and the copies that loading makes of arrays."""

import keras
import ml_dtypes  # noqa: F401  NumPy learns bfloat16 from it
import numpy as np
import pytest
from folders import CONFIGS, tensors, write
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf
from keras_txf.backend.array_values import ROWS, in_order


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_the_type_of_the_file(kind, dtype, tmp_path):
    draw = np.random.default_rng(3)
    arrays = {
        name: draw.normal(size=array.shape).astype(array.dtype) for name, array in tensors(CONFIGS[kind], dtype).items()
    }  # numbers with all bits of the type
    folder = write(tmp_path / "folder", CONFIGS[kind], arrays)
    model = txf.checkpoints.load(folder, dtype="auto")
    assert {variable.dtype for variable in model.weights if "seed" not in variable.path} == {dtype}
    assert model.get_layer("embedding").compute_dtype == dtype
    txf.checkpoints.save(model, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        assert saved[name].dtype == array.dtype and saved[name].tobytes() == array.tobytes(), name


def test_the_type_of_most_numbers(tmp_path):
    arrays = tensors(CONFIGS["llama"], "bfloat16")
    arrays = {name: array.astype("float32") if "norm" in name else array for name, array in arrays.items()}
    model = txf.checkpoints.load(write(tmp_path, CONFIGS["llama"], arrays), dtype="auto")
    assert {variable.dtype for variable in model.weights} == {"bfloat16"}
    norm = np.asarray(keras.ops.convert_to_numpy(model.get_layer("decoder_norm").weights[0]), "float32")
    np.testing.assert_array_equal(norm, arrays["model.norm.weight"].astype("bfloat16").astype("float32"))


def test_doubles_become_singles(tmp_path):
    arrays = {name: array.astype("float64") for name, array in tensors(CONFIGS["gpt2"]).items()}
    model = txf.checkpoints.load(write(tmp_path, CONFIGS["gpt2"], arrays), dtype="auto")
    assert {variable.dtype for variable in model.weights} == {"float32"}


def test_other_words_are_refused(tmp_path):
    folder = write(tmp_path, CONFIGS["gpt2"], tensors(CONFIGS["gpt2"]))
    refused(lambda: txf.checkpoints.load(folder, dtype="Auto"), ["`dtype`", "Auto"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2 * ROWS, ROWS), (ROWS + 1, 3 * ROWS - 1), (2, 3, 5), (1, 1), (0, 4)])
def test_arrays_in_order(dtype, shape):
    array = np.random.default_rng(1).normal(size=shape).astype(dtype)
    for view in (array, array.T, array[::-1], array[..., 1:], array.T[1:]):
        found = in_order(view)
        assert found.flags.c_contiguous and found.dtype == array.dtype and found.shape == view.shape
        assert found.tobytes() == view.tobytes()  # which is in the order of the shape
