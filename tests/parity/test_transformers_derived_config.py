"""Folders whose config.json `save` derives from the model: transformers has the same outputs."""

import json

import keras
import numpy as np
import pytest
import torch
import transformers
from checkpoints.test_derived_config import CASES, PHI, build, wired
from keras import ops

import keras_txf as txf

pytestmark = pytest.mark.parity
NAMES = {"images": "pixel_values", "source_ids": "input_ids", "token_ids": "input_ids",
         "target_ids": "decoder_input_ids", "token_type_ids": "token_type_ids", "features": "input_values"}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_transformers_has_the_outputs_of_a_model_never_loaded(case, tmp_path):
    builder, options = CASES[case]
    model, random = build(builder, **options), np.random.default_rng(1)
    txf.checkpoints.save(model, tmp_path, family=case.partition(" ")[0])
    given = {
        "images": random.normal(size=(2, 8, 12, 3)).astype("float32"),
        "features": random.normal(size=(2, 50, 1)).astype("float32"),
        "token_type_ids": np.eye(2, 6, dtype="int32"),
    }
    given = {x.name: given.get(x.name, random.integers(6, 90, (2, 6), "int32")) for x in model.inputs}
    [name] = json.loads((tmp_path / "config.json").read_text())["architectures"]
    theirs = getattr(transformers, name).from_pretrained(tmp_path, dtype=torch.float32).eval()
    as_theirs = {"images": lambda x: x.transpose(0, 3, 1, 2), "features": lambda x: x[..., 0]}
    tensors = {
        NAMES[name]: torch.tensor(as_theirs.get(name, lambda x: x.astype("int64"))(x)) for name, x in given.items()
    }
    with torch.no_grad():
        answer = theirs(**tensors)
    ours = model(given)
    for name, one in (ours if isinstance(ours, dict) else {"logits": ours}).items():
        other = answer[name] if name in answer else answer.last_hidden_state
        np.testing.assert_allclose(other.numpy(), ops.convert_to_numpy(one), atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_transformers_has_the_outputs_of_a_model_wired_by_hand(family, tmp_path):
    """With a plain Dense as the head, and more positions than the default of the class."""
    norm = keras.layers.LayerNormalization(name="decoder_norm")
    of_phi = dict(head=keras.layers.Dense(90, name="logits"), final_norm=norm, **PHI)
    model, ids = wired(**(of_phi if family == "phi" else {})), np.random.default_rng(1).integers(0, 90, (1, 2100))
    txf.checkpoints.save(model, tmp_path, family=family)
    assert "max_position_embeddings" not in json.loads((tmp_path / "config.json").read_text())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = theirs(torch.tensor(ids)).logits.numpy()
    assert theirs.config.max_position_embeddings == 2048
    for ours in (model, txf.checkpoints.load(tmp_path)):
        np.testing.assert_allclose(logits, ops.convert_to_numpy(ours(ids)), atol=1e-4)
