"""Texts as examples: for encoders, with labels or without, and for models that generate text.

Legend: C texts, L, S, T lengths in tokens.
"""

from collections.abc import Sequence
from typing import Any

import keras

from keras_txf import checks
from keras_txf.checks import bad_argument
from keras_txf.text.datasets import (
    as_dataset,
    asserted,
    checked_labels,
    checked_tokenizer,
    has_labels,
    in_chunks,
    limit,
    longest_first,
    only_second,
    pair_function,
    row,
    row_function,
    types_of_pair,
)
from keras_txf.text.lazy_imports import tf
from keras_txf.text.tokenizer import Tokenizer


def token_ids(dataset: Any, tokenizer: Tokenizer, max_length: int | None = None) -> Any:
    """Makes the ids of each text, without padding.

    Args:
        dataset: `tf.data.Dataset` of texts, not batched; or a list of texts.
        tokenizer: a tokenizer, which adds its `start` and `end`.
        max_length: truncates longer texts; default the tokenizer's `length`, if that is a number.

    Returns:
        `tf.data.Dataset` of int32 (L,), in the same order.

    Raises:
        ValueError: no elements, or elements other than texts.

    Example:

    >>> ids = txf.text.token_ids(["ab", "c"], txf.text.ByteTokenizer(end="</s>"))
    >>> [row.tolist() for row in ids.as_numpy_iterator()]
    [[100, 101, 1], [102, 1]]
    """
    make = row_function(tokenizer, max_length)
    return in_chunks(as_dataset(dataset, ["text"]), make)


def classification(
    dataset: Any, tokenizer: Tokenizer, num_classes: int | None = None, max_length: int | None = None
) -> Any:
    """Makes examples of (text, label) for a classifier such as `encoder_classifier`.

    Args:
        dataset: `tf.data.Dataset` of (text, label), not batched; or the two columns in memory. For prediction, texts
            alone.
        tokenizer: a tokenizer, which adds its `start` and `end`.
        num_classes: labels are integers from 0 to `num_classes` - 1; None for any numbers, for regression.
        max_length: truncates longer texts; default the tokenizer's `length`, if that is a number.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), label int32 or float32 ()), in the same order; of ids alone for texts
        alone.

    Raises:
        ValueError: no elements, or elements other than (text, label); a label in memory out of range. A
            `tf.data.Dataset` raises `tf.errors.InvalidArgumentError` when it reads such a label.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> examples = txf.text.classification((["a", "bad"], [1, 0]), tokenizer, num_classes=2)
    >>> [(ids.tolist(), int(label)) for ids, label in examples.as_numpy_iterator()]
    [([100, 1], 1), ([101, 100, 103, 1], 0)]
    """
    return labelled(dataset, ["text"], num_classes, row_function(tokenizer, max_length))


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
    first, down to the length of the other text, then both texts.

    Args:
        dataset: `tf.data.Dataset` of (first, second, label), not batched; or the three columns in memory. For
            prediction, (first, second).
        tokenizer, num_classes, max_length: see `classification`.
        separator: special token between the texts, or a list of special tokens; default the tokenizer's `end`.
            Checkpoints of RoBERTa expect two: ["</s>", "</s>"].
        token_types: whether to return token type ids too, 0 up to the separator and 1 from the second text on, for a
            model with `token_type_ids=True`. Checkpoints of BERT and ELECTRA expect token types.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), label int32 or float32 ()), in the same order. With `token_types` the
        dict {"token_ids", "token_type_ids"} replaces the ids. Examples of (first, second) have no label.

    Raises:
        ValueError: see `classification`; a separator that is not a special token, or no separator.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> examples = txf.text.sentence_pairs((["abc"], ["d"], [0.5]), tokenizer, num_classes=None, max_length=5)
    >>> [(ids.tolist(), float(label)) for ids, label in examples.as_numpy_iterator()]
    [([100, 101, 1, 103, 1], 0.5)]
    """
    make_pair = pair_function(tokenizer, separator, max_length, longest_first)
    checks.boolean("token_types", token_types)

    def make(first, second):
        ids, before = make_pair(first, second)
        return {"token_ids": ids, "token_type_ids": types_of_pair(ids, before)} if token_types else ids

    return labelled(dataset, ["first", "second"], num_classes, make)


def labelled(dataset, columns, num_classes, make):
    """Makes examples with the inputs `make(*texts)`, and with labels if the data set has labels."""
    num_classes = checks.optional(checks.size, "num_classes", num_classes)
    if not has_labels(dataset, len(columns)):
        return in_chunks(as_dataset(dataset, columns), make)

    def example(*parts):
        return make(*parts[:-1]), checked_labels(parts[-1], num_classes)

    return in_chunks(as_dataset(dataset, [*columns, "label"], num_classes), example)


def contrastive_pairs(dataset: Any, tokenizer: Tokenizer, max_length: int | None = None) -> Any:
    """Makes examples of (anchor, positive): two texts with the same meaning, or a question and its answer.

    The positives of the other pairs in a batch are the negatives of a pair, see `contrastive_targets`.

    Args:
        dataset: `tf.data.Dataset` of (anchor, positive), not batched; or the two columns in memory.
        tokenizer: a tokenizer, which adds its `start` and `end`.
        max_length: truncates each text; default the tokenizer's `length`, if that is a number.

    Returns:
        `tf.data.Dataset` of {"anchor_ids": int32 (L,), "positive_ids": int32 (L',)}, in the same order.

    Raises:
        ValueError: no elements, or elements other than (anchor, positive).

    Example:

    >>> examples = txf.text.contrastive_pairs((["ab"], ["c"]), txf.text.ByteTokenizer())
    >>> [{name: ids.tolist() for name, ids in pair.items()} for pair in examples.as_numpy_iterator()]
    [{'anchor_ids': [100, 101], 'positive_ids': [102]}]
    """
    make = row_function(tokenizer, max_length)

    def example(anchor, positive):
        return {"anchor_ids": make(anchor), "positive_ids": make(positive)}

    return in_chunks(as_dataset(dataset, ["anchor", "positive"]), example)


def contrastive_targets(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns a batch of B pairs with its targets: the class of anchor i among the positives is i.

    Map it over the batches. The loss is `SparseCategoricalCrossentropy(from_logits=True)` of the similarities (B, B),
    divided by a temperature.

    Args:
        batch: dict of "anchor_ids" (B, L) and "positive_ids" (B, L').

    Returns:
        (batch, targets int32 (B,)), the targets 0, 1, 2, ...

    Raises:
        ValueError: a batch of other inputs, ids that are not integers, different numbers of anchors and positives.

    Reference:
        [Representation Learning with Contrastive Predictive Coding](https://arxiv.org/abs/1807.03748).

    Example:

    >>> examples = txf.text.contrastive_pairs((["ab", "c"], ["d", "e"]), txf.text.ByteTokenizer())
    >>> ((inputs, targets),) = examples.padded_batch(2).map(txf.text.contrastive_targets)
    >>> targets.numpy().tolist()
    [0, 1]
    """
    names = ("anchor_ids", "positive_ids")
    if not isinstance(batch, dict) or any(len(getattr(batch.get(name), "shape", ())) < 2 for name in names):
        raise bad_argument("batch", f"be a dict of {' and '.join(names)}, each (batch, length)", batch)
    for name in names:
        if "int" not in (dtype := keras.backend.standardize_dtype(batch[name].dtype)):
            raise ValueError(f"`batch` must hold ids that are integers; received {dtype} of {name}.")
    known = [batch[name].shape[0] for name in names]
    if None not in known and known[0] != known[1]:
        raise ValueError(f"`batch` must hold as many anchors as positives; received {known[0]} and {known[1]}.")
    anchors, positives = (tf.shape(batch[name])[0] for name in names)
    if None in known:
        message = "`batch` must hold as many anchors as positives; received"
        anchors = asserted(anchors, anchors == positives, message, anchors, positives)
    return batch, tf.range(anchors)


def next_token(dataset: Any, tokenizer: Tokenizer, max_length: int | None = None) -> Any:
    """Makes examples of texts for a language model such as `decoder_generator`.

    A long text becomes several examples, so that each of its tokens except the first is a target once. A text of less
    than two tokens becomes no example.

    Args:
        dataset: `tf.data.Dataset` of texts, not batched; or a list of texts.
        tokenizer: a tokenizer, which adds its `start` and `end` to each text.
        max_length: the largest number of tokens in an example; default the tokenizer's `length`, if it is a number.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), targets int32 (L,)): the targets are the ids one position later.
        `counted` tells `fit` the number of examples.

    Raises:
        ValueError: no elements, or elements other than texts.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> examples = txf.text.next_token(["abcd"], tokenizer, max_length=3)
    >>> [(ids.tolist(), targets.tolist()) for ids, targets in examples.as_numpy_iterator()]
    [([100, 101, 102], [101, 102, 103]), ([103], [1])]
    """
    max_length = limit(checked_tokenizer("tokenizer", tokenizer), max_length, added=0)

    def example(texts):
        return tuple(in_pieces(rows, max_length) for rows in shifted(row(tokenizer, texts, None)))

    return in_chunks(as_dataset(dataset, ["text"]), example, same_count=False)


def translation(
    dataset: Any,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    max_length: int | None = None,
    start_id: int | None = None,
) -> Any:
    """Makes examples of (source, target) for an `encoder_decoder`: translations, summaries, and other pairs of texts.

    Args:
        dataset: `tf.data.Dataset` of (source, target), not batched; or the two columns in memory.
        source_tokenizer: a tokenizer, which adds its `start` and `end` to the source.
        target_tokenizer: a tokenizer with `start` and `end`; default `source_tokenizer`.
        max_length: truncates each source and each target; default each tokenizer's `length`, if it is a number.
        start_id: the first token of target ids, before the tokenizer's whole row: `start_id` of the model, for
            checkpoints such as T5's and BART's. The target tokenizer then needs no `start`.

    Returns:
        `tf.data.Dataset` of ({"source_ids": int32 (S,), "target_ids": int32 (T,)}, targets int32 (T,)), in the same
        order. The target ids begin with `start` or `start_id`; the targets end with `end`.

    Raises:
        ValueError: no elements, or elements other than (source, target); a target tokenizer without `start` or `end`.

    Example:

    >>> source = txf.text.ByteTokenizer()
    >>> target = txf.text.ByteTokenizer(start="<pad>", end="</s>")
    >>> ((inputs, targets),) = txf.text.translation((["ab"], ["c"]), source, target)
    >>> inputs["source_ids"].numpy().tolist(), inputs["target_ids"].numpy().tolist(), targets.numpy().tolist()
    ([100, 101], [0, 102], [102, 1])
    """
    checked_tokenizer("source_tokenizer", source_tokenizer)
    make_example = seq2seq_function(source_tokenizer, target_tokenizer, max_length, start_id)
    make = row_function(source_tokenizer, max_length)

    def example(source, target):
        return make_example(make(source), target)

    return in_chunks(as_dataset(dataset, ["source", "target"]), example)


def question_answering(
    dataset: Any,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    max_length: int | None = None,
    separator: str | Sequence[str] | None = None,
    start_id: int | None = None,
) -> Any:
    """Makes examples of (context, question, answer) for an `encoder_decoder` that writes the answer.

    The source is `start`, the question, the separator, the context, `end`. A `max_length` that is too small cuts the
    answer off the context.

    Args:
        dataset: `tf.data.Dataset` of (context, question, answer), not batched; or the three columns in memory.
        tokenizer: a tokenizer of question and context.
        target_tokenizer: a tokenizer of the answer, with `start` and `end`; default `tokenizer`.
        max_length: the largest number of tokens of a source, and of a target; default each tokenizer's `length`, if it
            is a number.
        separator: special token between question and context, or a list of special tokens; default the tokenizer's
            `end`.
        start_id: see `translation`.

    Returns:
        `tf.data.Dataset` of ({"source_ids": int32 (S,), "target_ids": int32 (T,)}, targets int32 (T,)), in the same
        order.

    Raises:
        ValueError: no elements, or elements other than (context, question, answer); a target tokenizer without `start`
            or `end`; a separator that is not a special token, or no separator.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(start="<pad>", end="</s>")
    >>> ((inputs, targets),) = txf.text.question_answering((["bc"], ["a"], ["c"]), tokenizer)
    >>> inputs["source_ids"].numpy().tolist(), targets.numpy().tolist()
    ([0, 100, 1, 101, 102, 1], [102, 1])
    """
    make_pair = pair_function(tokenizer, separator, max_length, only_second)
    make_example = seq2seq_function(tokenizer, target_tokenizer, max_length, start_id)

    def example(context, question, answer):
        return make_example(make_pair(question, context)[0], answer)

    return in_chunks(as_dataset(dataset, ["context", "question", "answer"]), example)


def seq2seq_function(source_tokenizer, target_tokenizer, max_length, start_id):
    """Returns a function from source rows and target texts to the inputs and targets of an encoder-decoder."""
    name = "source_tokenizer" if target_tokenizer is None else "target_tokenizer"
    tokenizer = source_tokenizer if target_tokenizer is None else target_tokenizer
    checked_tokenizer(name, tokenizer, needs=("start", "end") if start_id is None else ("end",))
    checks.optional(checks.id_below, "start_id", start_id, tokenizer.vocab_size)
    added = len(tokenizer.start) + len(tokenizer.end) + (start_id is not None)
    length = limit(tokenizer, max_length, added - 1)
    length = None if length is None else length + (start_id is None)  # the last token is only a target

    def make_example(source, target):
        rows = row(tokenizer, target, length)
        if start_id is not None:
            rows = tf.concat([tf.fill([rows.nrows(), 1], tf.constant(start_id, rows.dtype)), rows], axis=1)
        ids, targets = shifted(rows)
        return {"source_ids": source, "target_ids": ids}, targets

    return make_example


def shifted(rows):
    """Returns the inputs and the targets, the next token at each position."""
    return rows[:, :-1], rows[:, 1:]


def in_pieces(rows, length):
    """Cuts ragged rows (C, L) into pieces of `length`. The last piece of a row may be shorter."""
    starts = tf.ragged.range(rows.row_starts(), rows.row_limits(), length or tf.maximum(tf.size(rows, tf.int64), 1))
    splits = tf.concat([starts.flat_values, [tf.size(rows.flat_values, tf.int64)]], 0)
    return tf.RaggedTensor.from_row_splits(rows.flat_values, splits, validate=False)
