"""Tags of words become targets of tokens; `tests/parity` compares the alignment with Hugging Face's."""

import numpy as np
import pytest
import tensorflow as tf
from text_cases import LEARN, START_AND_END, learnt

from keras_txf import text
from keras_txf.text.words import has_blanks_in_tokens, split_into_words

LABELS = ["O", "B-a", "I-a", "B-b"]
WORDS = [["The", "fox", ",", "Straße"], [], ["dogs"]]
TAGS = [["B-a", "I-a", "O", "B-b"], [], ["B-a"]]


def slow(tokenizer, words, tags, all_tokens, room):
    """The same, word after word."""
    ids, targets = [], []
    for place, (word, tag) in enumerate(zip(words, tags)):
        blank = " " if place and has_blanks_in_tokens(tokenizer) else ""
        pieces = tokenizer.tokenize(blank + word).numpy().tolist()
        following = {"B-a": "I-a"}.get(tag, tag)
        rest = LABELS.index(following) if all_tokens else -100
        ids += pieces
        targets += [LABELS.index(tag), *[rest] * (len(pieces) - 1)][: len(pieces)]
    start, end = ([tokenizer.token_to_id(token) for token in part] for part in (tokenizer.start, tokenizer.end))
    return [*start, *ids[:room], *end], [-100] * len(start) + targets[:room] + [-100] * len(end)


@pytest.mark.parametrize("all_tokens", [False, True])
@pytest.mark.parametrize("name", LEARN)
def test_targets_are_those_of_the_words(name, all_tokens):
    start, end = START_AND_END[name]
    tokenizer = learnt(name, start=start, end=end)
    examples = text.token_classification((WORDS, TAGS), tokenizer, LABELS, 9, all_tokens)
    assert int(examples.cardinality()) == 3
    found = [(ids.tolist(), targets.tolist()) for ids, targets in examples.as_numpy_iterator()]
    assert found == [slow(tokenizer, words, tags, all_tokens, 7) for words, tags in zip(WORDS, TAGS)]


@pytest.mark.parametrize("name, expected", [("WordPiece", False), ("unigram", False), ("bpe", False), ("bytes", True),
                                            ("characters", True), ("byte pairs", True)])  # fmt: skip
def test_the_tokens_of_words_are_those_of_the_text(name, expected):
    tokenizer = learnt(name)
    assert has_blanks_in_tokens(tokenizer) == expected
    words = ["The", "fox", "naïve", "dogs"]
    [(ids, _)] = text.token_classification(([words], [["O"] * 4]), tokenizer, LABELS).as_numpy_iterator()
    assert ids.tolist() == tokenizer.tokenize(" ".join(words)).numpy().tolist()


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
    (([["a"]], [["B-c"]]), LABELS, {}, ["labels", "'B-c'", "place 0"]),
    (([["a"]], [[4]]), LABELS, {}, ["labels", "4"]),
    (([["a"]], [[True]]), LABELS, {}, ["labels", "True"]),
    (([["a", "b"]], [["O"]]), LABELS, {}, ["as many tags as words", "2 words and 1 tags"]),
    (([["a"], ["b"]], [["O"]]), LABELS, {}, ["columns of one length", "2 of words, 1 of tags"]),
    (([[3]], [["O"]]), LABELS, {}, ["strings as words", "3"]),
    ((["a b"], [["O"]]), LABELS, {}, ["lists of words"]),
    (([], []), LABELS, {}, ["at least one element"]),
    ("words", LABELS, {}, ["`dataset`", "'words'"]),
    ((WORDS, TAGS), ["O"], {}, ["`labels`", "at least two"]),
    ((WORDS, TAGS), ["O", "O"], {}, ["`labels`", "different"]),
    ((WORDS, TAGS), LABELS, {"ignore_label": 3}, ["`ignore_label`", "3"]),
    ((WORDS, TAGS), LABELS, {"max_length": 0}, ["`max_length`", "0"]),
    ((WORDS, TAGS), LABELS, {"label_all_tokens": 1}, ["`label_all_tokens`", "1"]),
    (tf.data.Dataset.from_tensors((["a"], [0.5])), LABELS, {}, ["`dataset`", "string or int"]),
    (tf.data.Dataset.from_tensors(["a"]), LABELS, {}, ["`dataset`", "elements"]),
])  # fmt: skip
def test_bad_input_is_refused(data, labels, options, words):
    with pytest.raises(ValueError) as error:
        text.token_classification(data, learnt("WordPiece"), labels, **options)
    message = str(error.value)
    assert "\n" not in message and all(word in message for word in words), message


@pytest.mark.parametrize(
    "row, message", [((["a"], ["B-c"]), "must be of the labels"), ((["a"], ["O", "O"]), "as many")]
)
def test_bad_elements_of_a_data_set_stop_it(row, message):
    data = tf.data.Dataset.from_tensors(row)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(text.token_classification(data, learnt("WordPiece"), LABELS))
