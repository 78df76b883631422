"""The examples that fine-tune checkpoints, each from start to end on a checkpoint of a few thousand weights."""

import importlib
import json
import re
import sys
import types

import data
import finetune_sentiment
import numpy as np
import pytest
import script_cases
import semantic_search

import keras_txf as txf

WORDS = "a the good dull warm film story man eats food plays flute cat sits on mat".split()
TINY = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=128
)
pytestmark = pytest.mark.slow


def run(script, *arguments):
    done = script_cases.run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = dict(model_type="bert", architectures=["BertModel"], vocab_size=len(vocabulary), **TINY)
    model = txf.models.encoder(
        len(vocabulary), 2, 16, 2, intermediate_dim=24, activation="gelu", position_encoding="learned", max_length=128,
        token_types=2, scale_embedding=False, embedding_norm=True,
    )  # fmt: skip
    txf.checkpoints.save(model, folder, config)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


@pytest.mark.parametrize("tokens, text", [
    ("it 's dull , is n't it ?", "it's dull, isn't it?"),
    ("they 've `` wo n't ''", "they've `` won't ''"),
    ("a ' sure thing ' , nothing 'sly", "a ' sure thing ', nothing 'sly"),
    ("", ""),
])  # fmt: skip
def test_sentences_lose_their_tokens_blanks(tokens, text):
    assert finetune_sentiment.natural(tokens.split()) == text


def test_rows_are_padded_with_the_tokenizers_own_padding(tmp_path):
    vocabulary = ["[UNK]", *WORDS, "[PAD]"]
    tokenizer = txf.text.WordPieceTokenizer(vocabulary, special_tokens=["[UNK]", "[PAD]"])
    options = types.SimpleNamespace(batch=64, seed=1)
    (tmp_path / "train.tsv").write_text("a film\t1\nthe good warm story\t1\n")
    ((ids, _),) = finetune_sentiment.batches(tmp_path / "train.tsv", tokenizer, options)
    pairs = [("a film", "the good warm story"), ("the good warm story", "a film")]
    ((inputs, _),) = semantic_search.pair_batches(pairs, tokenizer, types.SimpleNamespace(batch=2, seed=1))
    for rows in (ids, inputs["anchor_ids"], inputs["positive_ids"]):
        padded = rows.numpy() == tokenizer.pad_id
        np.testing.assert_array_equal(np.sort(padded[:, :4].sum(axis=1)), [0, 2])
        assert (rows.numpy()[~padded] > 0).all()


def test_a_training_with_other_options_does_not_go_on(tmp_path):
    for _ in range(2):
        data.claim(tmp_path, seed=1, updates=8)
    with pytest.raises(
        SystemExit, match=r"holds a training with \{'seed': 1, 'updates': 8\}, this one has \{'seed': 2"
    ):
        data.claim(tmp_path, seed=2, updates=8)


@pytest.mark.parametrize("script, arguments, reason", [
    ("finetune_sentiment", ["--rank", "2"], "--rank: without --lora"),
    ("finetune_sentiment", ["--checkpoint", "DIR", "a film"], "--checkpoint: is for training"),
    ("finetune_generator", ["--rank", "2"], "--rank: is for training"),
    ("classify_sentiment", ["--word-dropout", "0.1", "a film"], "--word-dropout: is for training"),
    ("pretrain_encoder", ["--pretraining-epochs", "2", "a [MASK]"], "--pretraining-epochs: is for training"),
    ("translate", ["--dim", "64", "a dog"], "--dim: is for training"),
    ("semantic_search", ["--rate", "0.1", "lines.txt"], "--rate: is for training"),
    ("semantic_search", ["--epochs", "1", "lines.txt"], "--epochs: fine-tuning needs --data"),
    ("semantic_search", [], "expected a file"),
    ("semantic_search", ["--data", "DIR", "--count", "2"], "--count: there is no file"),
    ("finetune_generator", ["--prompt", ""], "--prompt: expected a text"),
    ("finetune_generator", ["--length", "0"], "--length: expected at least 1, got 0"),
    ("finetune_generator", ["--temperature", "-1"], "`temperature` must"),
    ("generate_text", ["--length", "0"], "--length: expected at least 1, got 0"),
    ("generate_text", ["--steps", "-1"], "--steps: expected at least 1, got -1"),
    ("generate_text", ["--size", "gpu", "To be"], "--size: is for training"),
    ("generate_text", ["--top-p", "2"], "`top_p` must"),
    ("multi30k", ["--variant", "reverse"], "--published: is for --variant reverse or diverse, which must have it"),
    ("multi30k", ["--published", "DIR"], "--published: is for --variant reverse or diverse"),
    ("multi30k", ["--variant", "diverse", "--published", "DIR"], "--reverse: is for --variant diverse, which"),
    ("multi30k", ["--variant", "diverse-2", "--published", "DIR"],
     "--published: is for --variant reverse or diverse, which"),
    ("translate", ["--beams", "0"], "--beams: expected at least 1, got 0"),
    ("classify_sentiment", ["..."], "text: expected a sentence with at least one word, got '...'"),
])  # fmt: skip
def test_options_that_do_not_apply_are_refused_at_once(script, arguments, reason, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit):
        importlib.import_module(script).parse_options()
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("how", [[], ["--lora", "--rank", "2"]])
def test_finetune_sentiment(how, bert, tmp_path):
    lines = [f"a {word} film\t{label}" for word, label in (("good", 1), ("dull", 0)) for _ in range(9)]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    common = ("--out", tmp_path / "out")
    out = run(
        "finetune_sentiment", *common, "--checkpoint", bert, "--data", tmp_path, "--epochs", 2, "--batch", 128, *how
    )
    assert 0 <= float(re.search(r"^Dev accuracy (\d\.\d{4})$", out, re.M)[1]) <= 1
    script_cases.assert_kept(tmp_path / "out", out, log=2)
    trained = int(re.search(r"^([\d,]+) weights are trained", out, re.M)[1].replace(",", ""))
    adapter = 2 * (4 * 2 * (16 + 16) + 2 * 2 * (16 + 24))  # of rank 2 in six projections of two blocks
    assert trained == 2 * 16 + 2 + (adapter if how else txf.checkpoints.load(bert, "encoder").count_params())
    assert (tmp_path / "out" / "adapter.safetensors").is_file() == bool(how)
    again = run("finetune_sentiment", *common, "a good film")
    assert re.fullmatch(r" *\d+\.\d% positive: a good film\n", again)


def test_semantic_search(bert, tmp_path):
    rows = [
        ("a man eats food", "the man eats", 5.0),
        ("a cat sits", "the cat on a mat", 4.0),
        ("a film", "food", 0.5),
        ("flute", "a man plays", 2.5),
    ]
    for name in ("sts-train.csv", "sts-dev.csv"):
        lines = [
            "\t".join(["main", "x", "2012", str(i), str(points), first, second])
            for i, (first, second, points) in enumerate(rows)
        ]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "lines.txt").write_text("a man plays the flute\n\na cat sits on the mat\nthe film\n")
    out = run(
        "semantic_search", "--checkpoint", bert, "--data", tmp_path, "--epochs", 1, "--batch", 2, "--count", 2,
        "--out", tmp_path / "tuned", tmp_path / "lines.txt", "a cat sits on the mat",
    )  # fmt: skip
    assert len(re.findall(r"^Spearman -?\d+\.\d\d on STS-B dev$", out, re.M)) == 2
    script_cases.assert_kept(tmp_path / "tuned", out, log=1)
    best, second = out.splitlines()[-2:]
    assert best == "1.000  a cat sits on the mat" and second != best
    plain, tuned = (txf.checkpoints.load(folder, "encoder") for folder in (bert, tmp_path / "tuned"))
    assert any((a != b).any() for a, b in zip(plain.get_weights(), tuned.get_weights(), strict=True))
    ids = [txf.text.from_checkpoint(folder)("a cat sits").numpy().tolist() for folder in (bert, tmp_path / "tuned")]
    assert ids[0] == ids[1]


def test_finetune_generator(tmp_path):
    folder, text = tmp_path / "gpt2", " ".join(WORDS * 40)
    tokenizer = txf.text.BytePairTokenizer.train([text], 270, special_tokens=["<end>"])
    config = dict(
        model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=tokenizer.vocab_size, n_embd=16, n_layer=2,
        n_head=2, n_positions=64,
    )  # fmt: skip
    model = txf.models.decoder_generator(
        tokenizer.vocab_size, 2, 16, 2, activation="gelu_tanh", norm_placement="pre", position_encoding="learned",
        max_length=64, pad_id=None, scale_embedding=False,
    )  # fmt: skip
    txf.checkpoints.save(model, folder, config)
    (folder / "tokenizer.json").write_text(tokenizer.get_config()["definition"])
    (tmp_path / "mine.txt").write_text(text)
    common = ("--checkpoint", folder, "--out", tmp_path / "out", "--length", 5, "--prompt", "a good")
    out = run("finetune_generator", *common, "--epochs", 1, "--context", 16, tmp_path / "mine.txt")
    before, after = (
        float(re.search(rf"Held-out cross-entropy (\d+\.\d+) {when}", out)[1]) for when in ("before", "after")
    )
    assert after < before
    script_cases.assert_kept(tmp_path / "out", out, log=1)
    again = run("finetune_generator", *common)
    assert again.startswith("a good") and out.endswith(again)  # the same seed, the same adapter
