"""A small checkpoint of each family, and the logits that transformers had for it."""

import json
import pathlib
import re
import shutil

import checkpoint_cases
import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_txf as txf
from keras_txf.checkpoints.families import FAMILIES

GOLDEN = pathlib.Path(__file__).parent / "golden"


def parts(family):
    """config.json and the tensors of a family."""
    return json.loads((GOLDEN / family / "config.json").read_text()), load_file(GOLDEN / family / "model.safetensors")


def changed_folder(family, folder, **changes):
    """A folder whose config.json has other values; `...` takes a key away."""
    values = {**json.loads((GOLDEN / family / "config.json").read_text()), **changes}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({key: x for key, x in values.items() if x is not ...}))
    shutil.copy(GOLDEN / family / "model.safetensors", folder)
    return folder


def expected(family):
    """Inputs, logits, and where they count."""
    with np.load(GOLDEN / family / "expected.npz") as file:
        values = dict(file)
    logits, real = values.pop("logits"), values.pop("real")
    return values.get("inputs", values), logits, real


def answers(model, inputs):
    """The outputs of a model as arrays, the logits first."""
    outputs = model(inputs)
    if isinstance(outputs, dict):
        outputs = [outputs["logits"], *(outputs[name] for name in sorted(outputs) if name != "logits")]
    return [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request):
    """A family, and its model: on one day the same sixth of the families in all functions."""
    yield request.param, txf.checkpoints.load(GOLDEN / request.param)
    keras.backend.clear_session()


@pytest.mark.drawn(6)
def test_logits_are_those_of_transformers(loaded):
    family, model = loaded
    inputs, logits, real = expected(family)
    ours = answers(model, inputs)[0]
    where = real if real.ndim else slice(None)
    np.testing.assert_allclose(ours[where], logits[where], atol=1e-4)


@pytest.mark.drawn(6)
def test_a_saved_model_is_the_same_again(loaded, tmp_path):
    family, model = loaded
    txf.checkpoints.save(model, tmp_path)
    again = txf.checkpoints.load(tmp_path)
    for before, after in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(after, before)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == family


@pytest.mark.slow
@pytest.mark.drawn(6)
def test_layout_map_knows_each_weight(loaded):
    mesh = keras.distribution.DeviceMesh((2, 1), ("batch", "model"), ["cpu:0", "cpu:1"])
    _, model = loaded
    assert set(txf.training.layout_map(model, mesh)) == {weight.path for weight in model.weights}


@pytest.mark.slow
@pytest.mark.drawn(6)
def test_greedy_answers_are_those_of_transformers(loaded, uncompiled):
    family, model = loaded
    path = GOLDEN / family / "greedy.json"
    assert path.exists() == hasattr(model, "generate")
    if path.exists():
        greedy = json.loads(path.read_text())
        answers = checkpoint_cases.answers(model, greedy["prompts"], greedy["forbidden"])
        np.testing.assert_array_equal(answers, greedy["answers"])


@pytest.mark.slow
@pytest.mark.drawn(6)
def test_a_keras_file_keeps_the_model(loaded, tmp_path):
    family, model = loaded
    inputs, *_ = expected(family)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for before, after in zip(answers(model, inputs), answers(again, inputs), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_of_other_models_raises_value_error(family, tmp_path):
    folder = changed_folder(family, tmp_path, index_n_heads=4)
    with pytest.raises(ValueError, match=re.escape("{'index_n_heads': 4}")):
        txf.checkpoints.load(folder)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_folder_of_half_precision_comes_back_bit_for_bit(loaded, dtype, tmp_path):
    family, model = loaded
    txf.checkpoints.save(model, tmp_path / "half", dtype=dtype)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == dtype
    txf.checkpoints.save(txf.checkpoints.load(tmp_path / "half", dtype="auto"), tmp_path / "again")
    before, after = (load_file(tmp_path / place / "model.safetensors") for place in ("half", "again"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if not name.endswith("rotary_embeddings.inv_freq"):  # float32 in each model, as positions are computed
            assert after[name].dtype == tensor.dtype == dtype, name
        np.testing.assert_array_equal(after[name], tensor, err_msg=name)
