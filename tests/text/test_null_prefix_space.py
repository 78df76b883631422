"""Folders of transformers 5 hold `add_prefix_space: null`."""

import json

import numpy as np
import pytest

import keras_txf as txf

transformers = pytest.importorskip("transformers")


def test_null_prefix_space(tmp_path):
    tokens = ["<|endoftext|>", "a", "b", "Ġ", "Ġa", "ab"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = transformers.Qwen2TokenizerFast(vocab=vocabulary, merges=[("Ġ", "a"), ("a", "b")])
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_prefix_space": None}))
    ours = txf.text.from_checkpoint(tmp_path, length="longest")
    assert np.array(ours(["ab a"]))[0].tolist() == tokenizer("ab a")["input_ids"]
