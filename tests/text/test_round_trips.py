"""Round trips from text to ids and back; ids compared with the packages that train vocabularies."""

import pytest
import sentencepiece
import tokenizers
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from text_cases import CORPUS, STRINGS, learnt

from keras_txf.text import BytePairTokenizer, ByteTokenizer, CharacterTokenizer
from keras_txf.text.lazy_imports import tf


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "byte pairs", "bpe"])
@few(40)
@given(texts=STRINGS)
def test_nothing_is_lost(kind, texts):
    if kind == "bpe":  # its character for a space
        texts = [text.replace("▁", "") for text in texts]
    for tokenizer in (learnt(kind), learnt(kind, special_tokens_in_text="keep")):
        assert tokenizer.detokenize(tokenizer.tokenize(texts), skip_special_tokens=False) == texts


@few(10)
@given(texts=STRINGS)
def test_known_characters_are_kept(texts):
    tokenizer = learnt("characters")
    known = set("".join(CORPUS))
    expected = ["".join(letter if letter in known else "[UNK]" for letter in text) for text in texts]
    assert tokenizer.detokenize(tokenizer.tokenize(texts)) == expected


@few(10)
@given(texts=STRINGS)
def test_bytes_equal_utf8(texts):
    assert ByteTokenizer().tokenize(texts).to_list() == [[byte + 3 for byte in text.encode()] for text in texts]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@few(15)
@given(texts=STRINGS)
def test_sentence_pieces_are_the_packages(kind, texts):
    tokenizer = learnt(kind)
    package = sentencepiece.SentencePieceProcessor(model_proto=tokenizer._model)
    ids = package.encode(texts)
    assert tokenizer.tokenize(texts).to_list() == ids
    assert tokenizer.detokenize(ids) == package.decode(ids)


def test_byte_pairs_of_a_file(tmp_path):
    tokenizer = learnt("byte pairs", length=4)
    (tmp_path / "tokenizer.json").write_text(tokenizer.get_config()["definition"], encoding="utf-8")
    found = BytePairTokenizer.from_file(tmp_path / "tokenizer.json", length=4)
    assert found.get_config() == {**tokenizer.get_config(), "name": found.name}


@few(20)
@given(texts=STRINGS.filter(bool), keep=st.booleans())
def test_byte_pairs_are_the_packages(texts, keep):
    tokenizer = learnt("byte pairs", special_tokens_in_text="keep" if keep else "escape")
    package = tokenizers.Tokenizer.from_str(tokenizer.get_config()["definition"])
    package.encode_special_tokens = not keep
    assert tokenizer.tokenize(texts).to_list() == [found.ids for found in package.encode_batch(texts)]


def test_padding_is_left_out_even_where_it_is_the_unknown_token():
    unknown = CharacterTokenizer(["[UNK]", *"abc"], ["[UNK]"], pad_token="[UNK]", unk_token="[UNK]", length=5)
    assert unknown.detokenize(unknown(["ab", "c"])) == ["ab", "c"]


def test_ragged_text_with_splits_of_any_type():
    tokenizer = ByteTokenizer()
    texts = tf.ragged.constant([["a"], [], ["b", "cd"]], row_splits_dtype=tf.int32)
    for dense in (tokenizer, ByteTokenizer(pad_token="<pad>", length=2)):
        ids = dense(texts)
        assert dense.detokenize(ids) == [["a"], [], ["b", "cd"]]
    ids = tf.ragged.constant([[100], [], [101, 102]], row_splits_dtype=tf.int32)
    assert tokenizer.detokenize(ids) == ["a", "", "bc"]
