"""Text as examples for generative models: the next token, translations, answers.

Legend: C texts, L, S, T lengths in tokens.
"""

from collections.abc import Sequence
from typing import Any

from keras_txf import checks
from keras_txf.text.datasets import (
    as_dataset,
    checked_tokenizer,
    in_chunks,
    limit,
    only_second,
    pair_function,
    row,
    row_function,
)  # fmt: skip
from keras_txf.text.lazy_imports import tf
from keras_txf.text.tokenizer import Tokenizer


def next_token(dataset: Any, tokenizer: Tokenizer, max_length: int | None = None) -> Any:
    """Makes examples of texts for a language model such as `decoder_generator`.

    A long text becomes several examples, so that each of its tokens but the first is a target once. A text of less than
    two tokens has nothing to predict and becomes no example.

    Args:
        dataset: `tf.data.Dataset` of texts, not batched; or a list of texts.
        tokenizer: a tokenizer, which adds its `start` and `end` to each text.
        max_length: the largest number of tokens of an example; default the tokenizer's `length`, if that is a number.

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
        target_tokenizer: a tokenizer with `start` and `end`; default the source's.
        max_length: truncates each source and each target; default each tokenizer's `length`, if that is a number.
        start_id: the token that target ids begin with, in front of the tokenizer's whole row: `start_id` of the model,
            as checkpoints such as T5's and BART's have it. The target tokenizer then needs no `start`.

    Returns:
        `tf.data.Dataset` of ({"source_ids": int32 (S,), "target_ids": int32 (T,)}, targets int32 (T,)), in the same
        order. The target ids begin with `start`, or `start_id`, the targets end with `end`.

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

    The source is `start`, the question, the separator, the context, `end`. `max_length` truncates the
    context, perhaps before the answer in it: choose it accordingly.

    Args:
        dataset: `tf.data.Dataset` of (context, question, answer), not batched; or the three columns in memory.
        tokenizer: a tokenizer of question and context.
        target_tokenizer: a tokenizer of the answer, with `start` and `end`; default the same.
        max_length: the largest number of tokens of a source, and of a target; default each tokenizer's `length`, if
            that is a number.
        separator: special token between question and context, or a list of them; default the tokenizer's `end`.
        start_id: as of `translation`.

    Returns:
        `tf.data.Dataset` of ({"source_ids": int32 (S,), "target_ids": int32 (T,)}, targets int32 (T,)), in the same
        order.

    Raises:
        ValueError: no elements, or elements other than (context, question, answer); a target tokenizer without `start`
            or `end`; a separator that is no special token, or none at all.

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
    """Returns a function of source rows and target texts that makes an encoder-decoder's inputs and targets."""
    name = "source_tokenizer" if target_tokenizer is None else "target_tokenizer"
    tokenizer = source_tokenizer if target_tokenizer is None else target_tokenizer
    checked_tokenizer(name, tokenizer, needs=("start", "end") if start_id is None else ("end",))
    checks.optional(checks.id_below, "start_id", start_id, tokenizer.vocab_size)
    added = len(tokenizer.start) + len(tokenizer.end) + (start_id is not None)
    length = limit(tokenizer, max_length, added - 1)
    length = None if length is None else length + (start_id is None)  # the last token is a target only

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
    """Cuts ragged rows (C, L) into pieces of `length`; the last of a row may be shorter, an empty row has none."""
    starts = tf.ragged.range(rows.row_starts(), rows.row_limits(), length or tf.maximum(tf.size(rows, tf.int64), 1))
    splits = tf.concat([starts.flat_values, [tf.size(rows.flat_values, tf.int64)]], 0)
    return tf.RaggedTensor.from_row_splits(rows.flat_values, splits, validate=False)
