"""Tokenizers and their training raise errors that tell the expected and the received value."""

import pathlib

import numpy as np
import pytest
from refusals import refused
from text_cases import LEARN, learnt

from keras_txf import text
from keras_txf.text.lazy_imports import tf

Word, Piece, Byte, Character, Pair = (
    text.WordPieceTokenizer, text.SentencePieceTokenizer, text.ByteTokenizer, text.CharacterTokenizer,
    text.BytePairTokenizer,
)  # fmt: skip
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "fox"]
every_kind = pytest.mark.parametrize("kind", LEARN)


TEXTS = [
    (3, ["`text`", "string", "3"]), (None, ["`text`", "None"]), (["fox", 3], ["`text`", "3"]),
    (["fox", None], ["`text`", "None"]), ([["fox"], "dog"], ["`text`", "dog"]), (np.zeros(2), ["`text`", "0."]),
    ("a\ud800", ["`text`", "surrogate"]), (["b", "a\udfff"], ["`text`", "surrogate"]),
]  # fmt: skip
IDS = [
    ("fox", ["`ids`", "fox"]), (3, ["`ids`", "3", "axis"]), ([1.5], ["`ids`", "1.5"]), ([-1], ["`ids`", "-1"]),
    ([[1], ["fox"]], ["`ids`", "fox"]), ([2**32 + 5], ["`ids`", "4294967301"]), ([1, 10**6], ["`ids`", "1000000"]),
]  # fmt: skip


@every_kind
def test_text_and_ids(kind):
    for value, words in TEXTS:
        refused(lambda: learnt(kind).tokenize(value), words)
        refused(lambda: learnt(kind)(value), words)
    for value, words in IDS:
        refused(lambda: learnt(kind).detokenize(value), words)


@every_kind
@pytest.mark.parametrize("options, words", [
    ({"length": 0}, ["`length`", "0"]), ({"length": "long"}, ["`length`", "long"]), ({"end": 3}, ["`end`", "3"]),
    ({"start": "fox"}, ["`start`", "special", "fox"]), ({"padding_side": "middle"}, ["`padding_side`", "middle"]),
    ({"special_tokens_in_text": "drop"}, ["`special_tokens_in_text`", "escape", "drop"]),
    ({"truncation_side": None}, ["`truncation_side`", "None"]),
])  # fmt: skip
def test_options(kind, options, words):
    config = learnt(kind).get_config()
    refused(lambda: type(learnt(kind))(**{**config, **options}), words)


OTHERS = [
    (lambda: Word("vocab.txt"), ["`vocabulary`", "from_file", "vocab.txt"]),
    (lambda: Word([]), ["`vocabulary`", "at least one", "none"]),
    (lambda: Word(VOCABULARY + ["fox"]), ["`vocabulary`", "'fox'", "3 and 4"]),
    (lambda: Word(VOCABULARY + [""]), ["`vocabulary`", "''", "4"]),
    (lambda: Word(VOCABULARY + [3]), ["`vocabulary`", "3", "4"]),
    (lambda: Word(VOCABULARY, unk_token="[UNKNOWN]"), ["`unk_token`", "[UNKNOWN]", "Did you mean '[UNK]'"]),
    (lambda: Word(VOCABULARY, unk_token=None), ["`unk_token`", "None"]),
    (lambda: Word(VOCABULARY, pad_token=None, length=3), ["`length`", "padding", "None"]),
    (lambda: Word(VOCABULARY, length=1, start="[CLS]", end="[CLS]"), ["`length`", "room", "length=1"]),
    (lambda: Word(VOCABULARY, special_tokens=["[SEP]"]), ["`special_tokens`", "[SEP]"]),
    (lambda: Word(VOCABULARY, special_tokens=["[CLS]"]), ["`pad_token`", "special_tokens", "['[CLS]']", "[PAD]"]),
    (lambda: Character(["[PAD]", "[UNK]", "a"], pad_token="a"), ["`pad_token`", "special_tokens", "'a'"]),
    (lambda: Word(VOCABULARY).token_to_id("dog"), ["`token`", "dog"]),
    (lambda: Word(VOCABULARY).id_to_token(4), ["`id`", "4"]),
    (lambda: Character(["[PAD]", "[UNK]", "ab"]), ["`vocabulary`", "single characters", "'ab'"]),
    (lambda: Character(["[PAD]", "a"]), ["`special_tokens`", "[UNK]"]),
    (lambda: Character.train(["ab"], vocab_size=2), ["`vocab_size`", "2"]),
    (lambda: Byte(special_tokens=["<0x41>"], pad_token=None), ["`vocabulary`", "<0x41>"]),
    (lambda: Piece(b"no model"), ["`model`", "no model"]),
    (lambda: Piece("no base64!"), ["`model`", "no base64!"]),
    (lambda: Piece(learnt("unigram").get_config()["model"], extra_tokens=["</s>"]), ["`vocabulary`", "</s>"]),
    (lambda: Piece(learnt("unigram").get_config()["model"], prefix_space="often"), ["`prefix_space`", "often"]),
    (lambda: Piece.train(["a fox"], 400, "bpe"), ["sentencepiece", "400", "Vocabulary size"]),
    (lambda: Piece.train(["a fox"], 9, special_tokens=["<pad>"]), ["`special_tokens`", "<pad>"]),
    (lambda: Piece.train(["a fox"], 3), ["`vocab_size`", "4 tokens", "vocab_size=3"]),
    (lambda: Piece.train(["a fox"], 200, byte_fallback=True), ["`byte_fallback`", "260", "vocab_size=200"]),
    (lambda: Byte(extra_tokens="abc"), ["`extra_tokens`", "'abc'"]),
    (lambda: Word.train(["a fox"], 5), ["`vocab_size`", "5 special tokens", "received 5"]),
    (lambda: Word(np.full((2, 2), 0.5)), ["`vocabulary`", "0.5"]),
    (lambda: Word({"[PAD]": 0, "[UNK]": 1}), ["`vocabulary`", "list", "'[PAD]'"]),
    (lambda: Word.train(["a fox"], 300, min_frequency=-1), ["`min_frequency`", "-1"]),
    (lambda: Pair.train(["a fox"], 300, min_frequency=1.5), ["`min_frequency`", "1.5"]),
    (lambda: Pair("{}"), ["`definition`", "{}"]),
    (lambda: Pair.train(["a fox"], 200), ["`vocab_size`", "256", "200"]),
]


@pytest.mark.parametrize("call, words", OTHERS)
def test_others(call, words):
    refused(call, words)


TRAINED = {"WordPiece": Word, "SentencePiece": Piece, "characters": Character, "byte pairs": Pair}
every_training = pytest.mark.parametrize("cls", TRAINED.values(), ids=TRAINED)


@every_training
@pytest.mark.parametrize("source, words", [
    ([], ["`source`", "none"]),
    (["", " \n"], ["`source`", "none"]),
    (["fox", 3], ["`source`", "3", "index 1"]),
    ([b"fox", b"\xff"], ["`source`", "UTF-8", "0xff", "index 1"]),
    ("nowhere.txt", ["`source`", "nowhere.txt", "missing"]),
    (3, ["`source`", "3"]),
    (b"fox", ["`source`", "fox"]),
    (["nowhere.txt"], ["`source`", "'nowhere.txt'", "no file", "iter(source)"]),
    (("data/train.en", "my data/train.de"), ["`source`", "'data/train.en'", "no file"]),
    (np.array(["/nowhere/train"]), ["`source`", "/nowhere/train", "no file"]),
    ([__file__, "~/nowhere.txt"], ["`source`", "'~/nowhere.txt'", "no file"]),
    ([str(pathlib.Path(__file__).parent)], ["`source`", "tests/text", "a folder"]),
    ([pathlib.Path("nowhere.txt")], ["`source`", "nowhere.txt", "no file"]),
    (map(pathlib.Path, ["nowhere.txt"] * 4), ["`source`", "nowhere.txt", "missing"]),
    ([pathlib.Path(__file__), "a fox"], ["`source`", "'a fox'", "no file"]),
])  # fmt: skip
def test_sources(cls, source, words):
    refused(lambda: cls.train(source, vocab_size=300), words)


@every_training
@pytest.mark.parametrize("content, words", [
    (b"", ["`source`", "empty"]),
    (b"\n \n", ["`source`", "none"]),
    ("läuft".encode("latin-1"), ["`source`", "UTF-8", "0xe4 at 1"]),
    ("läuft".encode("utf-16"), ["`source`", "UTF-8", "0xff at 0"]),
])  # fmt: skip
def test_source_files(cls, content, words, tmp_path):
    (tmp_path / "text").write_bytes(content)
    refused(lambda: cls.train(tmp_path / "text", vocab_size=300), words)


@pytest.mark.parametrize("cls", [Word, Piece, Pair])
def test_files(cls, tmp_path):
    refused(lambda: cls.from_file(tmp_path / "nowhere"), ["`path`", "nowhere", "missing"])
    refused(lambda: cls.from_file(tmp_path), ["`path`", "folder"])
    (tmp_path / "empty").touch()
    refused(lambda: cls.from_file(tmp_path / "empty"), ["`path`", "empty"])


def tokens(cls, source):
    """The learnt tokens; for WordPiece single characters, as chance decides between equally frequent pieces."""
    tokenizer = cls.train(source, vocab_size=280, **({"min_frequency": 1000} if cls is Word else {}))
    return {tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size)}


@every_training
def test_files_are_their_text(cls, tmp_path, monkeypatch):
    files = [tmp_path / "first.txt", tmp_path / "second"]
    for file, line in zip(files, ("the fox sees the dog", "the dog sees the fox fox")):
        file.write_text(f"{line}\n" * 3)
    end = "\n" if cls is Character else ""
    expected = tokens(cls, [line + end for file in files for line in file.read_text().splitlines()])
    monkeypatch.chdir(tmp_path)
    names = ["first.txt", "second"]
    for source in (files, tuple(files), iter(files), [str(file) for file in files], names, np.array(names)):
        assert tokens(cls, source) == expected
    lines = files[1].read_text().splitlines(keepends=cls is Character)
    for source in (files[1], "second", iter(lines), tf.data.Dataset.from_tensor_slices(lines)):
        assert tokens(cls, source) == tokens(cls, lines)


@every_training
@pytest.mark.parametrize("lines", [
    ["nowhere.txt", "a fox"], ["3/3/2018", "4/5/2018"], ["fox", "dog."], ["a file train.txt", "and/or we"],
    [b"nowhere.txt"],
])  # fmt: skip
def test_text_that_is_not_a_list_of_paths(cls, lines):
    assert tokens(cls, lines * 3) == tokens(cls, iter(lines * 3))
    assert (
        cls.train(iter(["nowhere.txt"] * 3), vocab_size=300).vocab_size > 10
    )  # strings of an iterator are text, even if they look like paths


@every_training
@pytest.mark.parametrize("tokens, words", [
    ("[PAD]", ["`special_tokens`", "'[PAD]'"]),
    (["[PAD]", "[UNK]", "<s>", "<s>"], ["`special_tokens` must hold each token once", "'<s>', '<s>'"]),
])  # fmt: skip
def test_special_tokens(cls, tokens, words):
    refused(lambda: cls.train(["a dog"], 300, special_tokens=tokens), words)
