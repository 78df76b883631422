"""Tags of words become targets of tokens; `tests/parity` compares the alignment with Hugging Face's."""

import numpy as np
import pytest
import tensorflow as tf
from refusals import refused
from text_cases import LEARN, START_AND_END, learnt

from keras_txf import text
from keras_txf.text.tags import has_blanks_in_tokens, split_into_words

LABELS = ["O", "B-a", "I-a", "B-b"]
WORDS = [["The", "fox", ",", "Straße"], [], ["dogs"], ["naïve", "dogs"]]
TAGS = [["B-a", "I-a", "O", "B-b"], [], ["B-a"], ["B-b", "O"]]
BYTES = text.ByteTokenizer()


def slow(tokenizer, words, tags, all_tokens, room):
    """The same targets, made word by word."""
    ids, targets = [], []
    for index, (word, tag) in enumerate(zip(words, tags)):
        blank = " " if index and has_blanks_in_tokens(tokenizer) else ""
        pieces = tokenizer.tokenize(blank + word).numpy().tolist()
        following = {"B-a": "I-a"}.get(tag, tag)
        rest = LABELS.index(following) if all_tokens else -100
        ids += pieces
        targets += [LABELS.index(tag), *[rest] * (len(pieces) - 1)][: len(pieces)]
    start, end = ([tokenizer.token_to_id(token) for token in part] for part in (tokenizer.start, tokenizer.end))
    return [*start, *ids[:room], *end], [-100] * len(start) + targets[:room] + [-100] * len(end)


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", LEARN)
def test_targets_equal_the_words(name):
    start, end = START_AND_END[name]
    tokenizer, all_tokens = learnt(name, start=start, end=end), name != "bytes"
    examples = text.token_classification((WORDS, TAGS), tokenizer, LABELS, 12, all_tokens)
    assert int(examples.cardinality()) == 4
    found = [(ids.tolist(), targets.tolist()) for ids, targets in examples.as_numpy_iterator()]
    assert found == [slow(tokenizer, words, tags, all_tokens, 10) for words, tags in zip(WORDS, TAGS)]
    assert [ids for ids, _ in found[1:3]] == tokenizer([" ".join(words) for words in WORDS[1:3]]).to_list()


def test_tokens_after_the_first_of_a_word_have_no_target():
    """A byte token is a blank before a word, or a byte of a word."""
    examples = text.token_classification((WORDS[2:], TAGS[2:]), BYTES, LABELS).as_numpy_iterator()
    assert [targets.tolist() for _, targets in examples] == [[1, *[-100] * 3], [3, *[-100] * 5, 0, *[-100] * 4]]


def test_some_tokenizers_have_blanks_in_tokens():
    assert [name for name in LEARN if has_blanks_in_tokens(learnt(name))] == ["bytes", "characters", "byte pairs"]


@pytest.mark.slow
def test_numbers_arrays_and_data_sets_are_the_same():
    tokenizer = learnt("WordPiece")
    numbers = [[LABELS.index(tag) for tag in tags] for tags in TAGS]
    arrays = [np.array(row, object) for row in WORDS], [np.array(row, int) for row in numbers]
    rows = tf.data.Dataset.from_generator(
        lambda: zip(WORDS, TAGS), output_signature=(tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.string))
    )
    results = []
    for data in ((WORDS, TAGS), (WORDS, numbers), arrays, rows):
        examples = text.token_classification(data, tokenizer, LABELS).as_numpy_iterator()
        results.append([(ids.tolist(), targets.tolist()) for ids, targets in examples])
    assert all(result == results[0] for result in results)


def test_words_are_split_at_blanks_and_around_punctuation():
    words, begins, ends = split_into_words(tf.constant(["Hé llo, wörld's\u00a0 x_1 東京!", "", " ... "]))
    expected = [["Hé", "llo", ",", "wörld", "'", "s", "x_1", "東京", "!"], [], [".", ".", "."]]
    assert [[word.decode() for word in row] for row in words.to_list()] == expected
    whole = "Hé llo, wörld's\u00a0 x_1 東京!".encode()
    assert [whole[a:b].decode() for a, b in zip(begins.to_list()[0], ends.to_list()[0])] == expected[0]


@pytest.mark.parametrize("data, labels, options, words", [
    (([["a"]], [["B-c"]]), LABELS, {}, ["labels", "'B-c'", "index 0"]),
    (([["a"]], [[4]]), LABELS, {}, ["labels", "4"]),
    (([["a"]], [[True]]), LABELS, {}, ["labels", "True"]),
    (([["a", "b"]], [["O"]]), LABELS, {}, ["as many tags as words in each text, 2; received 1"]),
    (([["a"], ["b"]], [["O"]]), LABELS, {}, ["columns of one length", "2 of words, 1 of tags"]),
    (([[3]], [["O"]]), LABELS, {}, ["strings as words", "3"]),
    ((["a b"], [["O"]]), LABELS, {}, ["lists of words"]),
    (([], []), LABELS, {}, ["at least one element"]),
    ((WORDS, TAGS), ["O"], {}, ["`labels`", "at least two"]),
    ((WORDS, TAGS), ["O", "O"], {}, ["`labels`", "different"]),
    ((WORDS, TAGS), LABELS, {"ignore_label": 3}, ["`ignore_label`", "3"]),
    (tf.data.Dataset.from_tensors((["a"], [0.5])), LABELS, {}, ["`dataset`", "string or int"]),
    (tf.data.Dataset.from_tensors(["a"]), LABELS, {}, ["`dataset`", "elements"]),
])  # fmt: skip
def test_bad_input_raises(data, labels, options, words):
    refused(lambda: text.token_classification(data, BYTES, labels, **options), words)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("row, message", [
    ((["a"], ["B-c"]), "must be of the labels"), ((["a"], [4]), "must be of the labels"),
    ((["a"], ["O", "O"]), "as many"),
])  # fmt: skip
def test_bad_elements_of_a_data_set_stop_it(row, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(text.token_classification(tf.data.Dataset.from_tensors(row), BYTES, LABELS))
