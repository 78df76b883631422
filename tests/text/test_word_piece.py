"""WordPiece compared with Hugging Face's `tokenizers`, on any Unicode."""

import itertools

import numpy as np
import pytest
import tokenizers
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from text_cases import HARD, STRINGS, learnt

from keras_txf.text import bert
from keras_txf.text.lazy_imports import tf
from keras_txf.text.word_piece import WordPieceTokenizer

OPTIONS = list(itertools.product([True, False], [None, True, False], [True, False], [True, False]))


def reference(tokenizer, lowercase=True, strip_accents=None, split_chinese=True, clean=True):
    """The tokenizer of `tokenizers` with the same vocabulary."""
    ids = {tokenizer.id_to_token(id): id for id in range(tokenizer.vocab_size)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = tokenizers.normalizers.BertNormalizer(clean, split_chinese, strip_accents, lowercase)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece(cleanup=False)
    made.add_special_tokens(list(tokenizer.special_tokens))
    return made


def reference_ids(made, texts):
    return [found.ids for found in made.encode_batch(texts, add_special_tokens=False)]


def words(texts, lowercase, strip_accents, split_chinese, clean):
    strip_accents = lowercase if strip_accents is None else strip_accents
    found, _, splits = bert.words(tf.constant(texts), lowercase, strip_accents, split_chinese, clean)
    return [[word.decode() for word in row] for row in tf.RaggedTensor.from_row_splits(found, splits).to_list()]


def reference_words(texts, lowercase, strip_accents, split_chinese, clean):
    normalizer = tokenizers.normalizers.BertNormalizer(clean, split_chinese, strip_accents, lowercase)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    return [[word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))] for text in texts]


def code_points(first, last):
    """Lines with each code point of a range between letters, next to accents, and twice."""
    codes = [code for code in range(first, last) if not 0xD800 <= code < 0xE000]
    parts = [f"a{chr(code)}B \u0334{chr(code)}{chr(code)}\u0345" for code in codes]
    return ["_".join(parts[start : start + 64]) for start in range(0, len(parts), 64)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(True, None, True, True), (False, True, False, False), (False, None, True, True)])
def test_words_of_every_code_point(options):
    texts = code_points(0, 0x110000)
    assert words(texts, *options) == reference_words(texts, *options)


@few(40)
@given(texts=STRINGS.filter(bool), keep=st.booleans(), options=st.sampled_from(OPTIONS))
def test_ids(texts, keep, options):
    named = dict(zip(("lowercase", "strip_accents", "split_chinese", "clean"), options))
    tokenizer = learnt("WordPiece", special_tokens_in_text="keep" if keep else "escape", **named)
    made = reference(tokenizer, *options)
    made.encode_special_tokens = not keep
    assert tokenizer.tokenize(texts).to_list() == reference_ids(made, texts)


def test_ids_of_random_lines():
    rng = np.random.default_rng(0)
    alphabet = [*"etaoinshr .,THE", *HARD, *map(chr, range(0xA0, 0x600))]
    texts = ["".join(rng.choice(alphabet, size)) for size in rng.integers(0, 60, 2000)]
    tokenizer = learnt("WordPiece")
    assert tokenizer.tokenize(texts).to_list() == reference_ids(reference(tokenizer), texts)


@pytest.mark.parametrize("word", ["a" * 100, "a" * 101, "é" * 100, "é" * 101, "𐐀" * 100, "𐐀" * 101, "foxdog" * 17])
def test_long_words(word):
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "a", "##a", "é", "##é", "𐐀", "##𐐀"], lowercase=False)
    ids = tokenizer.tokenize(f"a {word} a").numpy().tolist()
    assert ids == reference_ids(reference(tokenizer, lowercase=False), [f"a {word} a"])[0]
    assert (ids == [2, 1, 2]) == (len(word) > 100)


def test_special_words_cannot_be_slipped_in():
    """Not even special tokens that a text could spell."""
    vocabulary = ["[PAD]", "[UNK]", "stop", "st", "##op", "##stop", "a"]
    options = dict(special_tokens=["[PAD]", "[UNK]", "stop"])
    assert WordPieceTokenizer(vocabulary, **options).tokenize("stop a").numpy().tolist() == [3, 4, 6]
    keep = WordPieceTokenizer(vocabulary, **options, special_tokens_in_text="keep")
    assert keep.tokenize("stop a").numpy().tolist() == [2, 6]


@few(15)
@given(texts=STRINGS.filter(bool))
def test_text_of_ids(texts):
    """The text equals that of `tokenizers`, and has the same ids except unknown tokens."""
    tokenizer = learnt("WordPiece")
    ids = tokenizer.tokenize(texts).to_list()
    back = tokenizer.detokenize(ids, skip_special_tokens=False)
    assert back == [reference(tokenizer).decode(row, skip_special_tokens=False) for row in ids]
    known = [text for text, row in zip(back, ids) if tokenizer.unk_id not in row]
    assert tokenizer.tokenize(known).to_list() == [row for row in ids if tokenizer.unk_id not in row]


def test_bytes_that_are_no_text():
    assert words([b"fox\xff\xfedog \xc3"], True, None, True, True) == [["foxdog"]]


def test_a_training_gives_the_same_vocabulary_each_time():
    draw = np.random.default_rng(1)
    texts = ["".join(draw.choice(list("abcdefghijkl "), 12)) for _ in range(300)]
    vocabularies = [WordPieceTokenizer.train(texts, 100).get_config()["vocabulary"] for _ in range(3)]
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]


def test_a_vocabulary_smaller_than_the_characters_raises():
    lines = ["the quick brown fox"] * 2
    with pytest.raises(ValueError, match="`vocab_size` must be [0-9]+ at least.*; received 10") as error:
        WordPieceTokenizer.train(lines, 10)
    least = int(str(error.value).split(" at least")[0].split()[-1])
    assert WordPieceTokenizer.train(lines, least).vocab_size == least


def test_training_learns_no_token_that_the_tokenizer_cannot_hold():
    """Words of more than 100 characters are unknown, and tensorflow-text takes tokens of at most 256 bytes."""
    blob, thai = "Zm9vYmFy" * 40, "\u0e01" * 95
    tokenizer = WordPieceTokenizer.train([f"one two {blob}", f"two one {thai}"] * 4, vocab_size=400)
    tokens = tokenizer.get_config()["vocabulary"]
    assert not any(token.startswith(("zm", "##zm")) for token in tokens)  # no token is from the blob
    assert 100 < max(len(token.encode()) for token in tokens) <= 258  # "##" adds two
    assert [tokenizer.id_to_token(id) for id in tokenizer([f"two {blob}"])[0].numpy()] == ["two", "[UNK]"]
    made = reference(tokenizer)
    assert tokenizer([thai, "one"]).to_list() == reference_ids(made, [thai, "one"])
