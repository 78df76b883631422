"""The example of a reranker, from start to end, on a checkpoint of a few thousand weights."""

import json
import re

import pytest
import rerank
import script_cases

import keras_txf as txf

WORDS = "a the man eats food plays flute cat sits on mat film".split()
ROWS = [
    ("a man eats food", "the man eats", 5.0),
    ("a cat sits", "the cat on a mat", 4.0),
    ("a film", "food", 0.5),
    ("flute", "a man plays", 2.5),
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = dict(
        model_type="bert", architectures=["BertModel"], vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=24, max_position_embeddings=128,
    )  # fmt: skip
    model = txf.models.encoder(
        len(vocabulary), 1, 16, 2, intermediate_dim=24, activation="gelu", position_encoding="learned", max_length=128,
        token_types=2, scale_embedding=False, embedding_norm=True,
    )  # fmt: skip
    txf.checkpoints.save(model, folder, config)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def test_lines_are_found_by_their_words():
    lines = ["a cat sits", "the man eats", "a cat sits", "a cat", "the man plays the flute"]
    assert rerank.by_words("a cat sits", lines, 2) == ["a cat", "the man eats"]
    assert rerank.by_words("who plays the flute", lines, 1) == ["the man plays the flute"]
    assert rerank.by_words("a cat", ["a cat"], 3) == ["a cat"]


@pytest.mark.slow
def test_it_trains_and_orders(bert, tmp_path):
    for name in ("sts-train.csv", "sts-dev.csv"):
        lines = ["\t".join(["main", "x", "2012", "1", str(points), first, second]) for first, second, points in ROWS]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    common = ("--out", tmp_path / "out", "--count", 3)
    done = script_cases.run("rerank", "--checkpoint", bert, "--data", tmp_path, "--quick", "--batch", 2, *common)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Spearman -?\d+\.\d\d, Pearson -?\d+\.\d\d on 4 pairs of STS-B dev$", done.stdout, re.M)
    script_cases.assert_kept(tmp_path / "out", done.stdout, log=1)
    (tmp_path / "lines.txt").write_text("a man plays\n\na cat sits on the mat\nthe film\na cat\n")
    again = script_cases.run("rerank", tmp_path / "lines.txt", "a cat sits", *common)
    query, header, *ranked = again.stdout.splitlines()
    assert query == "a cat sits" and sorted(line.split()[1] for line in ranked) == ["1", "2", "3"]
    scores = [float(line.split()[0]) for line in ranked]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("arguments, code, reason", [
    ([], 2, "expected --data to train on, or a file to order"),
    (["lines.txt", "--epochs", 2], 2, "--epochs: is for training"),
    (["lines.txt"], 1, "train a model first"),
])  # fmt: skip
def test_calls_that_do_not_go_are_refused(arguments, code, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("a line\n")
    done = script_cases.run("rerank", *arguments, "--out", tmp_path / "out")
    assert done.returncode == code and reason in done.stderr
