"""Tokens that a loaded model gets after its training."""

import functools
import json

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from folders import BERT, GPT2, LLAMA, tensors, write
from refusals import refused
from safetensors.numpy import load_file
from text_cases import folder_of, learnt

import keras_txf as txf

resize = txf.checkpoints.resize_vocabulary
IDS = np.array([[5, 6, 7, 3]])


def folder(path, config, spare=0):
    """A checkpoint with the tokenizer of byte pairs, whose tables have some rows more than it has tokens."""
    tokenizer = learnt("byte pairs")
    config = {**config, "vocab_size": tokenizer.vocab_size + spare}
    folder_of(write(path, config, tensors(config)), {"tokenizer.json": tokenizer.get_config()["definition"]})
    return txf.checkpoints.load(path), txf.text.from_checkpoint(path, length="longest")


@pytest.mark.parametrize("config, spare", [(BERT, 0), (GPT2, 3), (LLAMA, 0), (LLAMA, 1)])
def test_new_rows_are_means_and_old_logits_stay(config, spare, tmp_path):
    model, tokenizer = folder(tmp_path / "old", config, spare)
    new, changed = resize(*resize(model, tokenizer, ["<drug>"]), ["<dose>"])
    size, rows = tokenizer.vocab_size, max(tokenizer.vocab_size + 2, tokenizer.vocab_size + spare)
    assert changed.length == "longest" and changed.vocab_size == size + 2
    assert changed(["a dog<drug>", "<dose>"])[:, -1:].numpy().tolist()[0] == [size]
    before, after = (np.asarray(keras.ops.convert_to_numpy(one(IDS))) for one in (model, new))
    np.testing.assert_array_equal(after[..., :size], before[..., :size])
    txf.checkpoints.save(new, tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text())["vocab_size"] == rows
    old, written = (load_file(tmp_path / name / "model.safetensors") for name in ("old", "new"))
    tables = [name for name in written if written[name].shape[0] == rows]
    assert len(tables) == {"bert": 2, "gpt2": 1, "llama": 2}[config["model_type"]]  # BERT has a bias
    for name in tables:
        np.testing.assert_array_equal(written[name][:size], old[name][:size])
        np.testing.assert_allclose(written[name][size], old[name][:size].mean(axis=0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(written[name][size + 1], written[name][size], rtol=1e-5, atol=1e-6)
    again = txf.text.from_checkpoint(tmp_path / "new")
    assert [again.token_to_id(token) for token in ("<drug>", "<dose>")] == [size, size + 1]


def test_what_cannot_be_done(tmp_path):
    model, tokenizer = folder(tmp_path / "old", GPT2)
    built, images = txf.models.decoder_generator(400, 1, 8, 2), txf.checkpoints.load(GOLDEN / "vit")
    for one, other, tokens, words in (
        (model, tokenizer, ["<x>", tokenizer.id_to_token(300)], ["`tokens`", "not tokens yet"]),
        (model, tokenizer, ["<x>", "<x>"], ["`tokens`", "<x>"]),
        (model, txf.text.ByteTokenizer(), ["<x>"], ["`tokenizer`", "class that takes more tokens"]),
        (model, learnt("WordPiece"), ["<x>"], ["`tokenizer`", "from_checkpoint"]),
        (built, tokenizer, ["<x>"], ["`model`", "`load`"]),
        (images, tokenizer, ["<x>"], ["`model`", "tables of tokens"]),
    ):
        refused(functools.partial(resize, one, other, tokens), words)
