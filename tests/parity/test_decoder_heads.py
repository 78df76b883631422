"""Padding of decoders on either side: logits of tokens, and of the last real one, equal transformers."""

import checkpoint_cases
import keras
import numpy as np
import pytest

import keras_txf as txf

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # transformers' own
CASES = {case.name: case for case in checkpoint_cases.CASES}
CLASSIFIERS = ["gpt2-classes", "opt-reward", "llama-reward", "llama-classes", "qwen2-classes", "bloom-classes"]
OTHERS = ["gpt2-scaled", "opt-plain", "llama-yarn", "mistral-window", "gemma2-plain", "bloom-plain"]


@pytest.fixture(params=[*CLASSIFIERS, *OTHERS], scope="module")
def models(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = CASES[request.param].model()
    model.save_pretrained(folder)
    yield model, txf.checkpoints.load(folder)
    keras.backend.clear_session()


def assert_close(ours, theirs, where, **values):
    with torch.no_grad():
        expected = theirs(**{name: torch.tensor(value) for name, value in values.items()}).logits.numpy()
    found = keras.ops.convert_to_numpy(ours(values["input_ids"]))
    np.testing.assert_allclose(found[where], expected[where], atol=1e-4 * max(1, np.abs(expected).max()))
    assert np.abs(expected - expected[:1]).max() > 0.01 or len(expected) == 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(models, side):
    theirs, ours = models
    ids = np.random.default_rng(3).integers(6, 50, (3, 9))
    mask = np.ones_like(ids)
    for row, length in enumerate((9, 5, 1)):
        padding = slice(None, 9 - length) if side == "left" else slice(length, None)
        ids[row, padding], mask[row, padding] = theirs.config.pad_token_id, 0
    values = {"input_ids": ids, "attention_mask": mask}
    if theirs.config.model_type == "gpt2":  # else it counts padding on the left, as its own `generate` does not
        values["position_ids"] = np.maximum(mask.cumsum(1) - 1, 0)
    where = slice(None) if type(theirs).__name__.endswith("SequenceClassification") else mask.astype(bool)
    assert_close(ours, theirs, where, **values)


def test_a_row_without_padding_needs_no_padding_token(tmp_path):
    case = CASES["llama-classes"]
    case = type(case)(case.name, case.family, case.architecture, {**case.options, "pad_token_id": None})
    theirs = case.model()
    theirs.save_pretrained(tmp_path)
    ids = np.random.default_rng(4).integers(0, 50, (1, 7))
    assert_close(txf.checkpoints.load(tmp_path), theirs, slice(None), input_ids=ids)
