"""Files of wav2vec 2.0 and HuBERT: older names, and the tensors that no weight is for."""

import json

import numpy as np
import pytest
from checkpoints.test_families import same
from checkpoints.test_golden import parts
from folders import write
from safetensors.numpy import load_file

import keras_txf as txf

load, save = txf.checkpoints.load, txf.checkpoints.save


@pytest.mark.parametrize("family", ["wav2vec2", "hubert"])
def test_older_names_of_the_gain_and_the_direction(family, tmp_path):
    config, arrays = parts(family)
    for old, new in (("g", "original0"), ("v", "original1")):
        path = f"{family}.encoder.pos_conv_embed.conv"
        arrays[f"{path}.weight_{old}"] = arrays.pop(f"{path}.parametrizations.weight.{new}")
    same(write(tmp_path, config, arrays), family)


@pytest.mark.parametrize("with_prefix", [True, False])
def test_the_vector_of_masked_frames_comes_back_in_another_class(with_prefix, tmp_path):
    """A file of the body, or of the pretraining, gets a head of classes or tokens."""
    config, arrays = parts("wav2vec2")
    mask = arrays["wav2vec2.masked_spec_embed"]
    arrays = {name: array for name, array in arrays.items() if not name.startswith("lm_head.")}
    if with_prefix:
        arrays["quantizer.codevectors"] = np.ones((1, 6, 4), "float16")
    else:
        arrays = {name.removeprefix("wav2vec2."): array for name, array in arrays.items()}
    architecture = "Wav2Vec2ForPreTraining" if with_prefix else "Wav2Vec2Model"
    folder = write(tmp_path / "body", {**config, "architectures": [architecture]}, arrays)
    save(load(folder, dtype="auto"), tmp_path / "again")
    assert load_file(tmp_path / "again" / "model.safetensors").keys() == arrays.keys()
    save(load(folder, "ctc", num_classes=9), tmp_path / "tokens")
    saved = load_file(tmp_path / "tokens" / "model.safetensors")
    np.testing.assert_array_equal(saved["wav2vec2.masked_spec_embed"], mask)
    assert saved["lm_head.weight"].shape == (9, 8) and not any("quantizer" in name for name in saved)
    values = json.loads((tmp_path / "tokens" / "config.json").read_text())
    assert (values["vocab_size"], values["architectures"]) == (9, ["Wav2Vec2ForCTC"]) and "id2label" not in values
    assert load(tmp_path / "tokens").output.shape[-1] == 9
