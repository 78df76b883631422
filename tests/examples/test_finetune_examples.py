"""The examples that fine-tune checkpoints, each from start to end on a checkpoint of a few thousand weights."""

import re
import types

import data
import finetune_sentiment
import numpy as np
import pytest
import rerank
import script_cases
import semantic_search
from script_cases import output

import keras_txf as txf

WORDS = "a the good dull warm film story man eats food plays flute cat sits on mat".split()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return script_cases.write_bert(tmp_path_factory.mktemp("bert"), WORDS)


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
    words = r"holds a training with \{'seed': 1, 'updates': 8\}, this one has \{'seed': 2"
    with pytest.raises(SystemExit, match=words):
        data.claim(tmp_path, seed=2, updates=8)


@pytest.mark.parametrize("how", [[], ["--lora", "--rank", "2"]])
def test_finetune_sentiment(how, bert, tmp_path):
    script_cases.write_reviews(tmp_path)
    common = ("--out", tmp_path / "out")
    out = output("finetune_sentiment", *common, "--checkpoint", bert, "--data", tmp_path, "--epochs", 2, *how)
    assert 0 <= float(re.search(r"^Dev accuracy (\d\.\d{4})$", out, re.M)[1]) <= 1
    script_cases.assert_kept(tmp_path / "out", out, log=2)
    trained = int(re.search(r"^([\d,]+) weights are trained", out, re.M)[1].replace(",", ""))
    adapter = 4 * 2 * (16 + 16) + 2 * 2 * (16 + 24)  # of rank 2 in six projections of a block
    assert trained == 2 * 16 + 2 + (adapter if how else txf.checkpoints.load(bert, "encoder").count_params())
    assert (tmp_path / "out" / "adapter.safetensors").is_file() == bool(how)
    again = output("finetune_sentiment", *common, "a good film")
    assert re.fullmatch(r" *\d+\.\d% positive: a good film\n", again)


def test_semantic_search(bert, tmp_path):
    script_cases.write_similarities(tmp_path)
    (tmp_path / "lines.txt").write_text("a man plays the flute\n\na cat sits on the mat\nthe film\n")
    out = output(
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
    out = output("finetune_generator", *common, "--epochs", 1, "--context", 16, tmp_path / "mine.txt")
    before, after = map(float, re.findall(r"Held-out cross-entropy (\d+\.\d+) (?:before|after)", out))
    assert after < before
    script_cases.assert_kept(tmp_path / "out", out, log=1)
    again = output("finetune_generator", *common)
    assert again.startswith("a good") and out.endswith(again)  # the same seed, the same adapter


def test_lines_are_found_by_their_words():
    lines = ["a cat sits", "the man eats", "a cat sits", "a cat", "the man plays the flute"]
    assert rerank.by_words("a cat sits", lines, 2) == ["a cat", "the man eats"]
    assert rerank.by_words("who plays the flute", lines, 1) == ["the man plays the flute"]
    assert rerank.by_words("a cat", ["a cat"], 3) == ["a cat"]


def test_rerank(bert, tmp_path):
    script_cases.write_similarities(tmp_path)
    common = ("--out", tmp_path / "out", "--count", 3)
    out = output("rerank", "--checkpoint", bert, "--data", tmp_path, "--quick", "--batch", 2, *common)
    assert re.search(r"^Spearman -?\d+\.\d\d, Pearson -?\d+\.\d\d on 4 pairs of STS-B dev$", out, re.M)
    script_cases.assert_kept(tmp_path / "out", out, log=1)
    (tmp_path / "lines.txt").write_text("a man plays\n\na cat sits on the mat\nthe film\na cat\n")
    again = output("rerank", tmp_path / "lines.txt", "a cat sits", *common)
    query, header, *ranked = again.splitlines()
    assert query == "a cat sits" and {line.split()[1] for line in ranked} < {"1", "2", "3", "4"}
    assert len(ranked) == 3
    scores = [float(line.split()[0]) for line in ranked]
    assert scores == sorted(scores, reverse=True)
