"""Labelled texts, single or in pairs, as examples for a classifier."""

from collections.abc import Sequence
from typing import Any

from keras_txf import checks
from keras_txf.text.datasets import as_dataset, checked_labels, checked_tokenizer, has_labels, in_chunks, limit
from keras_txf.text.tokenizer import Tokenizer
from keras_txf.text.truncation import joining, longer_first, pair_row, row, types_of_pair


def classification(
    dataset: Any, tokenizer: Tokenizer, num_classes: int | None = None, max_length: int | None = None
) -> Any:
    """Makes examples of (text, label) for a classifier such as `encoder_classifier`.

    Args:
        dataset: `tf.data.Dataset` of (text, label), not batched; or the two columns in memory. Or of texts alone, to
            predict.
        tokenizer: a tokenizer, which adds its `start` and `end`.
        num_classes: labels are integers from 0 to `num_classes` - 1; None for numbers of any kind, to regress on.
        max_length: truncates longer texts; default the tokenizer's `length`, if that is a number.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), label int32 or float32 ()), in the same order; of texts alone ids alone.

    Raises:
        ValueError: no elements, or elements other than (text, label); a label out of range in memory. A
            `tf.data.Dataset` with such a label raises `tf.errors.InvalidArgumentError` when it reads the label.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> examples = txf.text.classification((["a", "bad"], [1, 0]), tokenizer, num_classes=2)
    >>> [(ids.tolist(), int(label)) for ids, label in examples.as_numpy_iterator()]
    [([100, 1], 1), ([101, 100, 103, 1], 0)]
    """
    num_classes = checks.optional(checks.size, "num_classes", num_classes)
    checked_tokenizer("tokenizer", tokenizer)
    max_length = limit(tokenizer, max_length, len(tokenizer.start) + len(tokenizer.end))
    columns = ["text", "label"] if has_labels(dataset, texts=1) else ["text"]
    dataset = as_dataset(dataset, columns, num_classes)

    def example(texts, labels=None):
        ids = row(tokenizer, texts, max_length)
        return ids if labels is None else (ids, checked_labels(labels, num_classes))

    return in_chunks(dataset, example)


def sentence_pairs(
    dataset: Any,
    tokenizer: Tokenizer,
    num_classes: int | None = None,
    max_length: int | None = None,
    separator: str | Sequence[str] | None = None,
    token_types: bool = False,
) -> Any:
    """Makes examples of (first, second, label), two texts in one row: entailment, paraphrase, similarity.

    A row is `start`, the first text, the separator, the second text, `end`. `max_length` truncates the longer text
    first, down to the length of the other, then both.

    Args:
        dataset: `tf.data.Dataset` of (first, second, label), not batched; or the three columns in memory. Or of (first,
            second) alone, to predict.
        tokenizer, num_classes, max_length: as of `classification`.
        separator: special token between the texts, or a list of them; default the tokenizer's `end`. Checkpoints of
            RoBERTa expect two: ["</s>", "</s>"].
        token_types: whether to return token type ids too, 0 up to the separator and 1 from the second text on, for a
            model with `token_type_ids=True`. Checkpoints of BERT and ELECTRA expect them.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), label int32 or float32 ()), in the same order. With `token_types` the
        dict {"token_ids", "token_type_ids"} replaces the ids. Of two texts alone it has no label.

    Raises:
        ValueError: as of `classification`; a separator that is no special token, or none at all.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> examples = txf.text.sentence_pairs((["abc"], ["d"], [0.5]), tokenizer, num_classes=None, max_length=5)
    >>> [(ids.tolist(), float(label)) for ids, label in examples.as_numpy_iterator()]
    [([100, 101, 1, 103, 1], 0.5)]
    """
    num_classes = checks.optional(checks.size, "num_classes", num_classes)
    separator = joining(checked_tokenizer("tokenizer", tokenizer), separator)
    checks.boolean("token_types", token_types)
    max_length = limit(tokenizer, max_length, len(tokenizer.start) + len(separator) + len(tokenizer.end), texts=2)
    columns = ["first", "second", "label"] if has_labels(dataset, texts=2) else ["first", "second"]
    dataset = as_dataset(dataset, columns, num_classes)

    def example(first, second, labels=None):
        ids, before = pair_row(tokenizer, first, second, separator, max_length, longer_first)
        inputs = {"token_ids": ids, "token_type_ids": types_of_pair(ids, before)} if token_types else ids
        return inputs if labels is None else (inputs, checked_labels(labels, num_classes))

    return in_chunks(dataset, example)
