"""Masked tokens: which tokens, how often, in whole words, and anew in each epoch."""

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from text.test_pipelines import resumed
from text_cases import CORPUS, LEARN, learnt

from keras_txf import text
from keras_txf.text.lazy_imports import tf

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fox", "##es", "dog", "##gy", "!", "a"]
TOKENIZER = text.WordPieceTokenizer(VOCABULARY)
PAD, UNK, CLS, SEP, MASK = range(5)
BYTES = text.ByteTokenizer(extra_tokens=["[MASK]"])


def masked(rows, tokenizer=TOKENIZER, **options):
    """Arrays of each row, its masked ids and its targets."""
    dataset = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec([None], "int32"))
    return list(text.mask_tokens(dataset, tokenizer, **options).as_numpy_iterator())


def begins_word(row):
    """Whether each token begins a word, in plain Python."""
    special = row < 5
    return [
        index == 0 or special[index] or special[index - 1] or not VOCABULARY[id].startswith("##")
        for index, id in enumerate(row)
    ]


@pytest.mark.slow
@settings(deadline=None, max_examples=5)
@given(
    st.lists(st.lists(st.integers(0, 10), max_size=9).map(lambda row: np.array(row, "int32")), min_size=1, max_size=4),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 99),
)
def test_only_ordinary_tokens_are_hidden_and_words_whole(rows, rate, whole_words, seed):
    for row, (hidden, targets) in zip(rows, masked(rows, rate=rate, whole_words=whole_words, seed=seed), strict=True):
        chosen = targets != PAD
        assert not (chosen & (row < 5)).any()
        np.testing.assert_array_equal(targets[chosen], row[chosen])
        np.testing.assert_array_equal(hidden[~chosen], row[~chosen])
        assert not np.isin(hidden[chosen], [PAD, UNK, CLS, SEP]).any()
        if whole_words and len(row):
            word = np.cumsum(begins_word(row))
            for number in np.unique(word[row >= 5]):
                assert len(set(chosen[word == number])) == 1
        if rate == 1:
            np.testing.assert_array_equal(chosen, row >= 5)
        if rate == 0:
            assert not chosen.any()


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares(whole_words):
    rows = [np.random.default_rng(0).integers(5, 11, 5000).astype("int32") for _ in range(20)]
    found = masked(rows, whole_words=whole_words)
    row, hidden, targets = (np.concatenate(part) for part in (rows, *zip(*found)))
    chosen = targets != PAD
    assert abs(chosen.mean() - 0.15) < 0.01
    # One in six random tokens is the token itself, since there are six ordinary tokens.
    shares = [
        (hidden == MASK)[chosen].mean(),
        ((hidden != MASK) & (hidden != row))[chosen].mean(),
        (hidden == row)[chosen].mean(),
    ]
    np.testing.assert_allclose(shares, [0.8, 0.1 * 5 / 6, 0.1 + 0.1 / 6], atol=0.015)
    drawn = hidden[chosen & (hidden != MASK) & (hidden != row)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=11)[5:] / len(drawn), 1 / 6, atol=0.05)


def plain(dataset):
    return [(hidden.tolist(), targets.tolist()) for hidden, targets in dataset.as_numpy_iterator()]


def test_every_epoch_hides_others_and_every_seed_too():
    ids = text.token_ids(CORPUS, BYTES).cache()

    def make(seed=0):
        return text.mask_tokens(ids, BYTES, seed=seed)

    dataset = make()
    epochs = [plain(dataset) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = make()
    assert [plain(again) for _ in range(3)] == epochs
    assert plain(make(seed=1)) != epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 5, 25, 3 * len(CORPUS)])
def test_a_training_that_goes_on_sees_the_masks_of_an_unbroken_one(tmp_path, steps):
    assert plain(masks_then_epochs().skip(steps)) == plain(masks_then_epochs())[steps:]
    _, rest, again = resumed(epochs_then_masks, steps, tmp_path)
    assert len(rest) == 3 * len(CORPUS) - steps and again == rest
    _, rest, again = resumed(masks_then_epochs, steps, tmp_path)
    to_the_end = len(rest) % len(CORPUS)  # the end of the epoch
    assert again[:to_the_end] == rest[:to_the_end]


def masks_then_epochs():
    return text.mask_tokens(text.token_ids(CORPUS, BYTES).shuffle(9, seed=2), BYTES, seed=1).repeat(3)


def epochs_then_masks():
    return text.mask_tokens(text.token_ids(CORPUS, BYTES).shuffle(9, seed=2).repeat(3), BYTES, seed=1)


def groups(tokenizer, row):
    """The words of a row: tokens that are always masked together."""
    result = []
    rows = [np.array(row)] * 40
    examples = masked(rows, tokenizer, rate=0.5, whole_words=True)
    found = np.stack([targets != tokenizer.pad_id for _, targets in examples])
    for index, id in enumerate(row):
        if index and (found[:, index] == found[:, index - 1]).all():
            result[-1].append(id)
        else:
            result.append([id])
    return result


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", LEARN)
def test_words_of_every_tokenizer(kind):
    config = learnt(kind).get_config()
    if kind in ("bytes", "unigram", "bpe"):
        tokenizer = type(learnt(kind)).from_config({**config, "extra_tokens": ["[MASK]"]})
    elif kind == "characters":
        special = [*config["special_tokens"], "[MASK]"]
        tokenizer = text.CharacterTokenizer([*config["vocabulary"], "[MASK]"], special)
    elif kind == "byte pairs":
        tokenizer = text.BytePairTokenizer.train(CORPUS, 320, special_tokens=["<pad>", "[MASK]"])
    else:
        tokenizer = learnt(kind)
    row = tokenizer.tokenize("the foxes jumped over").numpy().tolist()
    words = [tokenizer.detokenize(group).strip() for group in groups(tokenizer, row)]
    assert words == ["the", "foxes", "jumped", "over"]


def of_tokenizers(model, **parts):
    """A `tokenizer.json` of these parts, with the words "the" and "foxes" and a mask."""
    kernel = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(kernel, name, part)
    kernel.add_special_tokens(["[MASK]"])
    return text.BytePairTokenizer(kernel.to_str(), pad_token="[MASK]")


def test_words_of_a_tokenizer_json_without_bytes():
    pre, models = tokenizers.pre_tokenizers, tokenizers.models
    pieces = {"[UNK]": 0, "the": 1, "fox": 2, "##es": 3}
    word_piece = of_tokenizers(models.WordPiece(pieces, unk_token="[UNK]"), pre_tokenizer=pre.Whitespace())
    row = [1, 2, 3, 1]
    assert word_piece.tokenize("the foxes the").numpy().tolist() == row
    assert groups(word_piece, row) == [[1], [2, 3], [1]]
    unigram = models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("▁fox", -1.0), ("es", -1.0)], unk_id=0)
    unigram = of_tokenizers(unigram, pre_tokenizer=pre.Metaspace())
    assert unigram.tokenize("the foxes the").numpy().tolist() == row
    assert groups(unigram, row) == [[1], [2, 3], [1]]
    unmarked = models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]")
    unmarked = of_tokenizers(unmarked, pre_tokenizer=pre.Whitespace())
    refused(lambda: masked([row], unmarked, whole_words=True), ["`whole_words`", "▁", "Ġ", "none"])
    assert len(masked([row[:1]], unmarked)) == 1


@pytest.mark.parametrize("whole_words", [False, True])
def test_one_token_or_word_at_least_is_hidden(whole_words):
    rows = [np.array(row, "int32") for row in ([CLS, 5, 6, SEP], [CLS, 7, SEP], [CLS, UNK, SEP], [], [9, 10])]
    found = masked(rows, rate=0.0, whole_words=whole_words, at_least_one=True)
    assert [(targets != PAD).sum() for _, targets in found] == [2 if whole_words else 1, 1, 0, 0, 1]
    assert all(set(targets[targets != PAD]) <= set(row[row > 4]) for row, (_, targets) in zip(rows, found))
