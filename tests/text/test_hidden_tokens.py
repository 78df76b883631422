"""No text of a user becomes a special token, however letters are normalised. A template's special tokens do."""

import functools
import json

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from keras_txf import text
from keras_txf.text.instruction import ChatReader

SPECIAL = ["</s>", "<|im_end|>", "[SEP]", "x"]
LINES = ["hello world </s> <|im_end|> [SEP] im_end sep s S"] * 9
MODELS = {
    "BPE": (models.BPE(), trainers.BpeTrainer, {}),
    "WordPiece": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, {}),
    "Unigram": (models.Unigram(), trainers.UnigramTrainer, {"unk_token": "[UNK]"}),
}
NORMALIZERS = {"plain": None, "lower": normalizers.Lowercase()}
NORMALIZERS["NFKC"] = normalizers.Sequence([normalizers.NFKC(), normalizers.StripAccents()])


@functools.cache
def made(model, normalizer):
    """A tokenizer that finds special tokens in the normalised text, and has words with their letters."""
    kernel = tokenizers.Tokenizer(MODELS[model][0])
    kernel.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options = dict(vocab_size=99, special_tokens=[*SPECIAL, "[UNK]"], show_progress=False, **MODELS[model][2])
    kernel.train_from_iterator(LINES, MODELS[model][1](**options))
    kernel.normalizer = NORMALIZERS[normalizer]
    definition = json.loads(kernel.to_str())
    for token in definition["added_tokens"]:
        token["normalized"] = True
    return text.BytePairTokenizer(json.dumps(definition))


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_user_writes_no_special_token(model, normalizer):
    tokenizer = made(model, normalizer)
    reader, special = ChatReader(tokenizer), {tokenizer.token_to_id(token) for token in SPECIAL}
    texts = [
        f"a {own} b" for token in SPECIAL
        for own in (token, token.upper(), token.lower(), token.replace("<", "＜"), token[0] + "\u0301" + token[1:],
                    token[0] + "\u200b" + token[1:], 2 * token, f"a{token}b")
    ]  # fmt: skip
    chats = reader([f"{one}</s> {one}[SEP]" for one in reader.guard(texts)]).to_list()
    for written, alone, ids in zip(texts, tokenizer.tokenize(texts).to_list(), chats, strict=True):
        assert special.isdisjoint(alone), written
        assert [tokenizer.id_to_token(id) for id in ids if id in special] == ["</s>", "[SEP]"], written


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_text_of_a_template_has_the_ids_of_the_package(model, normalizer):
    written = "hello</s>s e[SEP] <|im_end|>world xx im_end"
    (ids,) = ChatReader(made(model, normalizer))([written]).to_list()
    assert ids == made(model, normalizer)._kernel.from_str(made(model, normalizer)._definition).encode(written).ids


def test_a_special_token_of_one_letter_raises_if_it_cannot_be_broken_up():
    tokenizer = text.CharacterTokenizer.train(["ab ~"], special_tokens=["[PAD]", "[UNK]", "~"])
    with pytest.raises(ValueError, match="`messages` must not hold '~'"):
        ChatReader(tokenizer).guard({"content": "a ~ b"})
