"""Pipelines raise early errors that tell the expected and the received value."""

import numpy as np
import pytest
from refusals import refused
from text_cases import PIPELINES, columns, columns_of, learnt

from keras_txf import text
from keras_txf.text.lazy_imports import tf

WORD = learnt("WordPiece", start="[CLS]", end="[SEP]")
PLAIN = learnt("WordPiece")
BYTES = text.ByteTokenizer()
TEXTS = ["a fox", "the dog"]
PAIRS = (TEXTS, TEXTS)


def rows(*sizes):
    return tf.data.Dataset.from_generator(
        lambda: (np.ones(size, "int32") for size in sizes), output_signature=tf.TensorSpec([None], "int32")
    )


NONE = tf.data.Dataset.from_tensor_slices(np.ones((2, 3), "int32")).take(0)

every_task = pytest.mark.parametrize("task", PIPELINES)
STRUCTURES = [3, None, "a fox", {"text": TEXTS}, np.zeros((2, 2)), (TEXTS,) * 5, columns(*[TEXTS] * 5)]


def called(task, data):
    return lambda: PIPELINES[task][1](data, WORD)


@every_task
def test_structure(task):
    names = PIPELINES[task][0]
    expected = "texts" if names == "text" else f"({names})"
    for data in STRUCTURES:
        refused(called(task, data), ["`dataset`", expected])
    parts = [TEXTS] * (names.count(",") + 1)
    refused(called(task, columns(*parts).batch(2)), ["`dataset`", expected, "not batched", "(None,)"])


@every_task
def test_empty(task):
    parts, full = columns_of(task, []), columns(*columns_of(task, TEXTS))
    for data in (
        tuple(parts) if len(parts) > 1 else [],
        full.take(0),
        full.filter(lambda *element: False),  # an unknown number of elements
    ):
        refused(called(task, data), ["`dataset`", "empty"])


@pytest.mark.parametrize("task", [name for name, (names, _) in PIPELINES.items() if "," in names])
def test_columns_of_other_lengths(task):
    parts = (["a"], *columns_of(task, TEXTS)[1:])
    refused(called(task, parts), ["`dataset`", "one length", "1 of", "2 of"])


@pytest.mark.parametrize("labels, words", [
    ([0, 3], ["0 to 2", "3", "index 1"]),
    ([-1, 0], ["0 to 2", "-1", "index 0"]),
    ([0.0, 1.5], ["integer", "1.5"]),
    (["good", "bad"], ["integer", "good"]),
    ([[0], [1]], ["integer", "[[0], [1]]"]),
    ([None, 1], ["integer", "None"]),
])  # fmt: skip
def test_labels_in_memory(labels, words):
    refused(lambda: text.classification((TEXTS, labels), WORD, 3), ["labels", *words])
    refused(lambda: text.sentence_pairs((TEXTS, TEXTS, labels), WORD, 3), ["labels", *words])


OPTIONS = [
    (lambda: text.classification(columns(TEXTS, [0.5, 1.0]), WORD, 3), ["label", "integer from 0 to 2", "float32"]),
    (lambda: text.classification(columns(TEXTS, TEXTS), WORD, None), ["label", "a finite number", "string"]),
    (lambda: text.classification((TEXTS, [0.5, np.nan]), WORD, None), ["labels", "a finite number", "nan", "1"]),
    (lambda: text.sentence_pairs((*PAIRS, [np.inf, 0.5]), WORD, None), ["labels", "a finite number", "inf", "0"]),
    (lambda: text.classification((TEXTS, [0, 1]), WORD, 2, max_length=2), ["`max_length`", "2 special", "2"]),
    (lambda: text.classification((["a", 3], [0, 1]), WORD, 2), ["`text`", "3"]),
    (lambda: text.sentence_pairs((TEXTS, TEXTS, [0, 1]), WORD, 2, max_length=4), ["`max_length`", "4"]),
    (lambda: text.sentence_pairs((TEXTS, TEXTS, [0, 1]), PLAIN, 2), ["`separator`", "[SEP]", "None"]),
    (lambda: text.sentence_pairs((TEXTS, TEXTS, [0, 1]), WORD, 2, separator="fox"), ["`separator`", "fox"]),
    (lambda: text.translation(PAIRS, WORD, PLAIN), ["`target_tokenizer`", "`start`"]),
    (lambda: text.translation(PAIRS, PLAIN), ["`source_tokenizer`", "`start`"]),
    (lambda: text.question_answering((*PAIRS, TEXTS), PLAIN, WORD), ["`separator`"]),
    (lambda: text.mask_tokens(TEXTS, WORD), ["`dataset`", "ids (length,)", "a fox"]),
    (lambda: text.mask_tokens(columns(TEXTS), WORD), ["`dataset`", "ids (length,)", "string"]),
    (lambda: text.mask_tokens(rows(2).padded_batch(2), WORD), ["`dataset`", "ids (length,)", "(None, None)"]),
    (lambda: text.mask_tokens(rows(2), BYTES), ["`mask_token`", "[MASK]"]),
    (lambda: text.mask_tokens(NONE, WORD), ["`dataset`", "empty"]),
    (lambda: text.batch_by_length(rows(2), 7, [4, 8]), ["`tokens`", "8", "7"]),
    (lambda: text.batch_by_length(rows(2), 9, []), ["`lengths`", "[]"]),
    (lambda: text.batch_by_length(rows(2), 9, [4, 4]), ["`lengths`", "grow", "[4, 4]"]),
    (lambda: text.batch_by_length(rows(2), 9, [0, 4]), ["`lengths`", "0"]),
    (lambda: text.batch_by_length(rows(2).padded_batch(2), 9, 9), ["`dataset`", "not batched"]),
    (lambda: text.batch_by_length(NONE, 9, 9), ["`dataset`", "empty"]),
    (lambda: text.contrastive_targets({"anchor_ids": np.ones((2, 3))}), ["`batch`", "positive_ids", "anchor_ids"]),
    (lambda: text.contrastive_targets({"anchor_ids": np.ones((2, 3), int), "positive_ids": np.ones((3, 3), int)}),
     ["`batch`", "2 and 3"]),
    (lambda: text.contrastive_targets({"anchor_ids": np.ones((2, 3)), "positive_ids": np.ones((2, 3), int)}),
     ["`batch`", "integers", "float64"]),
    (lambda: text.counted(rows(2).filter(lambda ids: False)), ["`dataset`", "empty"]),
    (lambda: text.counted(rows(2).repeat()), ["`dataset`", "end"]),
    (lambda: text.bucket_lengths(rows()), ["`dataset`", "empty"]),
    (lambda: text.bucket_lengths(rows(2).repeat()), ["`dataset`", "end"]),
    (lambda: text.bucket_lengths(columns([1, 2])), ["`dataset`", "rows of ids"]),
    (lambda: text.pack(rows(2).map(lambda ids: ids > 1), 4), ["`dataset`", "integers", "bool"]),
    (lambda: text.pack(rows(2), 4, pad_id=2**31), ["`pad_id`", "received 2147483648"]),
    (lambda: text.token_ids(["a", 3], WORD), ["`text` of `dataset`", "3"]),
    (lambda: text.pack(rows(2), {"source_ids": 4}), ["`length`", "token_ids", "source_ids"]),
    (lambda: text.pack(rows(2).map(lambda ids: {"words": ids}), 4), ["`dataset`", "_ids", "words"]),
    (lambda: text.pack(rows(2).map(lambda ids: ({"a_ids": ids, "b_ids": ids}, ids)), 4), ["`target_ids`", "a_ids"]),
    (lambda: text.pack(rows(2).map(lambda ids: (ids, {"a": ids})), 4), ["`dataset`", "targets", "'a'"]),
    (lambda: text.pack(rows(2).batch(2), 4), ["`dataset`", "not batched"]),
    (lambda: text.pack(columns(TEXTS), 4), ["`dataset`", "rows of ids"]),
    (lambda: text.pack(NONE, 4), ["`dataset`", "empty"]),
    (lambda: text.pack(rows(2).map(lambda ids: tf.ensure_shape(ids, [9])), 4), ["`length`", "9", "4"]),
]  # fmt: skip


@pytest.mark.parametrize("call, words", OPTIONS)
def test_options(call, words):
    refused(call, words)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("make, words", [
    (lambda: text.classification(columns(TEXTS, [0, 3]), BYTES, 3), r"from 0 to 2; received[\s\S]*\[3\]"),
    (lambda: text.classification(columns(TEXTS, [0, -1]), BYTES, 3), r"from 0 to 2; received[\s\S]*\[-1\]"),
    (lambda: text.batch_by_length(rows(2, 9), 8, [4, 8]), r"`lengths`[\s\S]*8[\s\S]*9"),
    (lambda: text.pack(rows(2, 9), 8), r"`length`[\s\S]*token_ids[\s\S]*8[\s\S]*9"),
    (lambda: text.pack(rows(2).map(lambda ids: tf.cast(ids, "int64") + 2**40), 8),
     r"from 0 to 2\*\*31 - 1[\s\S]*token_ids[\s\S]*1099511627777"),
    (lambda: text.pack(rows(2).map(lambda ids: ids - 9), 8), r"from 0 to 2\*\*31 - 1"),
    (lambda: text.pack(rows(2, 0).map(lambda ids: (ids, 1)), 8), "must have a token"),
    (lambda: text.pack(rows(2).map(lambda ids: (ids, ids[1:])), 8), "as long as the ids"),
    (lambda: text.mask_tokens(rows(2).map(lambda ids: ids + 10**6), WORD), "ids from 0 to"),
], ids=range(9))  # fmt: skip
def test_while_reading(make, words):
    dataset = make()
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        list(dataset)
