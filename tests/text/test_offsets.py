"""Offsets of tokens equal those of Hugging Face's tokenizers and of sentencepiece; ids equal `tokenize`."""

import base64

import numpy as np
import pytest
import sentencepiece
from drawing import few
from hypothesis import example, given
from text.test_word_piece import reference
from text_cases import CORPUS, HARD, LEARN, STRINGS, learnt

from keras_txf.text import bert

TEXTS = [
    *CORPUS[:6], "", " ", "  a  fox\n\ndogs ", "naïve e\u0301te\u0301 İstanbul ﬁne", "狗🎉 fox", "x" * 101 + " dogs",
    "the [MASK] </s> ##s",
]  # fmt: skip
MOVED = set(map(chr, bert.code_points(bert.REORDERED)))  # accents that `tokenizers` sorts without their offsets


@pytest.mark.parametrize("name", LEARN)
def test_ids_equal_tokenize(name):
    tokenizer = learnt(name)
    for text, (ids, offsets) in zip(TEXTS, tokenizer.tokenize_with_offsets(TEXTS)):
        assert ids.tolist() == tokenizer.tokenize(text).numpy().tolist()
        assert offsets.shape == (len(ids), 2) and ids.dtype == offsets.dtype == np.int32
        assert (offsets >= 0).all() and (offsets <= len(text)).all() and (offsets[:, 0] <= offsets[:, 1]).all()
        assert (np.diff(offsets, axis=0) >= 0).all()
    assert tokenizer.tokenize_with_offsets([]) == []


@pytest.mark.drawn(2)
@few(20)
@given(texts=STRINGS)
@example(texts=TEXTS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_equal_hugging_face(lowercase, texts):
    ours = learnt("WordPiece", lowercase=lowercase)
    theirs = reference(ours, lowercase)
    theirs.encode_special_tokens = True
    texts = [text for text in texts if not MOVED & {*text}]
    for text, (ids, offsets) in zip(texts, ours.tokenize_with_offsets(texts)):
        expected = theirs.encode(text)
        assert ids.tolist() == expected.ids
        assert [tuple(pair) for pair in offsets.tolist()] == expected.offsets, text


@pytest.mark.parametrize("name", ["unigram", "bpe"])
def test_sentence_pieces_equal_sentencepiece(name):
    ours = learnt(name)
    model = base64.b64decode(ours.get_config()["model"])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = [*TEXTS, HARD[::7]]
    for text, (ids, offsets) in zip(texts, ours.tokenize_with_offsets(texts)):
        before = [len(text.encode()[:index].decode("utf-8", "ignore")) for index in range(len(text.encode()) + 1)]
        found = theirs.encode(text, return_type="proto").pieces
        expected = [(one.id, before[one.begin], before[one.end]) for one in found]
        assert [(id, *pair) for id, pair in zip(ids.tolist(), offsets.tolist())] == expected, text


@pytest.mark.parametrize("name", ["bytes", "characters", "byte pairs"])
def test_characters_are_covered_in_order(name):
    text = "naïve 狗🎉\n fox"
    [(ids, offsets)] = learnt(name).tokenize_with_offsets([text])
    assert "".join(text[start:end] for start, end in dict.fromkeys(map(tuple, offsets.tolist()))) == text or (
        name == "byte pairs"  # its tokens may hold a part of a character
        and set(range(len(text))) == {index for start, end in offsets for index in range(start, end)}
    )


def test_special_tokens_in_a_text():
    text = "a [MASK] fox"
    kept = learnt("WordPiece", special_tokens_in_text="keep")
    with pytest.raises(ValueError, match='`special_tokens_in_text` must be "escape"'):
        kept.tokenize_with_offsets([text])
    pairs = learnt("byte pairs", special_tokens_in_text="keep")
    [(ids, offsets)] = pairs.tokenize_with_offsets(["a</s>"])
    assert ids[-1] == pairs.token_to_id("</s>") and offsets[-1].tolist() == [1, 5]


@pytest.mark.parametrize("texts", ["a text", [3], None, ["a", "\ud800"]])
def test_other_values_than_a_list_of_texts_raise(texts):
    with pytest.raises(ValueError, match="`texts` must be"):
        learnt("WordPiece").tokenize_with_offsets(texts)
