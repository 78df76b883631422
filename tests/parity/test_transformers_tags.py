"""Tokens of words, and their tags, equal Hugging Face."""

import json
import random

import pytest
import tokenizers
import transformers
from text_cases import CORPUS, HARD

import keras_txf as txf

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
LABELS = ["O", "B-PER", "I-PER", "B-LOC"]


def word_piece():
    kernel = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    kernel.normalizer = tokenizers.normalizers.BertNormalizer()
    kernel.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    kernel.train_from_iterator(CORPUS, tokenizers.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    return transformers.BertTokenizerFast(vocab=kernel.get_vocab())


def byte_pairs():
    kernel = tokenizers.ByteLevelBPETokenizer(add_prefix_space=True)
    kernel.train_from_iterator(CORPUS, 330, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    merges = [tuple(pair) for pair in json.loads(kernel._tokenizer.to_str())["model"]["merges"]]
    return transformers.RobertaTokenizerFast(vocab=kernel.get_vocab(), merges=merges, add_prefix_space=True)


@pytest.fixture(scope="module", params=[word_piece, byte_pairs], ids=lambda make: make.__name__)
def pair(request, tmp_path_factory):
    """A tokenizer of transformers, and ours of its folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    theirs = request.param()
    theirs.save_pretrained(folder)
    kind = {"word_piece": "bert", "byte_pairs": "roberta"}[request.param.__name__]
    (folder / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    return theirs, txf.text.from_checkpoint(folder)


def test_tokens_and_words_are_those_of_word_ids(pair):
    theirs, ours = pair
    random.seed(5)
    alphabet = [*"abcdefoxdgsThe" * 4, *"äéß狗!?',.-", *HARD[:200]]
    words = [
        ["".join(random.choices(alphabet, k=random.randint(1, 6))) for _ in range(random.randint(0, 7))]
        for _ in range(300)
    ]
    tags = [[random.choice(LABELS) for _ in row] for row in words]
    examples = list(txf.text.token_classification((words, tags), ours, LABELS, max_length=12).as_numpy_iterator())
    compared = 0
    for row, names, (ids, targets) in zip(words, tags, examples):
        encoded = theirs(row, is_split_into_words=True, truncation=True, max_length=12)
        expected, last = [], None
        for word in encoded.word_ids():  # the recipe of Hugging Face's course
            expected.append(-100 if word is None or word == last else LABELS.index(names[word]))
            last = word
        assert ids.tolist() == encoded.input_ids, row
        assert targets.tolist() == expected, row
        compared += len(ids)
    assert compared > 2000
