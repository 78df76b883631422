"""Batches of examples of similar length, with little padding.

Legend: B batch, L length in tokens.
"""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument
from keras_txf.progress import bar
from keras_txf.text.datasets import asserted, not_empty
from keras_txf.text.lazy_imports import tf


def batch_by_length(
    dataset: Any,
    tokens: int,
    lengths: int | Sequence[int],
    pad_id: int = 0,
    static: bool = True,
    drop_remainder: bool = False,
) -> Any:
    """Makes batches of examples of similar length: shorter examples make larger batches.

    Shuffle the examples first. A batch comes as soon as it is full, so that the lengths of batches are not random:
    shuffle the batches too if that matters.

    Args:
        dataset: `tf.data.Dataset` of examples, such as `classification` and `translation` make. The longest row of an
            example is its length.
        tokens: the largest number of positions, padding included, of each input of a batch.
        lengths: list of int, the lengths of the buckets, see `bucket_lengths`; or an int, the length of the longest
            example. With an int, each bucket is about a quarter longer than the previous bucket.
        pad_id: the id of padding.
        static: whether to pad rows to the length of the bucket, so that each bucket has one shape: JAX compiles each
            shape. False pads rows to the longest row of the batch.
        drop_remainder: whether to drop the last batches that are not full.

    Returns:
        `tf.data.Dataset` of batches with the examples' structure: ids (L,) become (B, L), a label () becomes (B,).
        `counted` tells `fit` the number of batches.

    Raises:
        ValueError: elements without rows, lengths that do not grow, fewer `tokens` than the last of `lengths`. An
            example longer than the last of `lengths` raises `tf.errors.InvalidArgumentError` when the data set reads
            it.

    Example:

    >>> examples = txf.text.next_token(["ab", "abcdef", "cd"], txf.text.ByteTokenizer(end="</s>"))
    >>> batches = txf.text.batch_by_length(examples, tokens=12, lengths=[2, 6])
    >>> [tuple(ids.shape) for ids, targets in batches]
    [(2, 2), (1, 6)]
    """
    not_empty(dataset)
    checks.integer_between("pad_id", pad_id, -(2**31), 2**31 - 1)
    lengths = bucket_list(lengths)
    if checks.size("tokens", tokens) < lengths[-1]:
        raise bad_argument("tokens", f"be enough for one row of {lengths[-1]}, the last of `lengths`", tokens)
    has_rows(dataset)

    def length(*example):
        longest = longest_row(example)
        message = f"`lengths` must end with the length of the longest example or more, not {lengths[-1]}; received"
        return asserted(longest, longest <= lengths[-1], message, longest)

    return dataset.bucket_by_sequence_length(
        length,
        bucket_boundaries=[longest + 1 for longest in lengths],
        bucket_batch_sizes=[tokens // longest for longest in [*lengths, lengths[-1]]],
        padding_values=tf.nest.map_structure(lambda spec: padding(spec, pad_id), dataset.element_spec),
        pad_to_bucket_boundary=checks.boolean("static", static),
        drop_remainder=checks.boolean("drop_remainder", drop_remainder),
    )


def bucket_lengths(dataset: Any, count: int = 8, verbose: int | str = "auto") -> list[int]:
    """Returns the `count` lengths for `batch_by_length` with the least padding.

    Reads the data set once.

    Args:
        dataset: `tf.data.Dataset` of examples, with an end.
        count: the largest number of lengths.
        verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.

    Returns:
        list of int; the last is the length of the longest example.

    Raises:
        ValueError: no examples, or examples without rows; a data set without an end.

    Example:

    >>> examples = txf.text.token_ids(["a", "bc", "abcdefgh", "bcdefghi", "abcdefghi"], txf.text.ByteTokenizer())
    >>> txf.text.bucket_lengths(examples, count=2)
    [2, 9]
    """
    checks.positive_integer("count", count)
    not_empty(dataset)
    has_rows(dataset)
    longest = read_all(dataset, lambda *example: longest_row(example), "example", "bucket_lengths", verbose)
    longest = np.maximum(longest, 1)
    step = -(-longest.max() // 1024)  # compares at most about 1,024 lengths
    lengths, examples = np.unique(np.minimum(-(-longest // step) * step, longest.max()), return_counts=True)
    return best(lengths, examples, min(count, len(lengths)))


def counted(dataset: Any, verbose: int | str = "auto") -> Any:
    """Counts the elements of a data set, so that `fit` knows the number of steps in an epoch.

    `next_token`, `batch_by_length` and `pack` do not know their number of elements. Keras then warns at the end of the
    first epoch that the data has run out, and uses its number of steps for later epochs. This function reads the data
    set once: cache a slow data set first.

    Args:
        dataset: `tf.data.Dataset` of batches or examples, with the same number of elements in each pass. The order of
            examples changes the number of rows of `pack`: shuffle the rows, not the examples. To pack the examples anew
            in each epoch, use `fit(rows.repeat(), steps_per_epoch=...)`.
        verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.

    Returns:
        `tf.data.Dataset` of the same elements. A pass with another number of elements raises
        `tf.errors.FailedPreconditionError`.

    Raises:
        ValueError: no elements; a data set without an end.

    Example:

    >>> examples = txf.text.next_token(["ab", "abcdef", "cd"], txf.text.ByteTokenizer(end="</s>"))
    >>> batches = txf.text.batch_by_length(examples, tokens=12, lengths=[2, 6])
    >>> len(txf.text.counted(batches))
    2
    """
    not_empty(dataset)
    count = len(read_all(dataset, lambda *_: True, "batch", "counted", verbose))
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def read_all(dataset, function, unit, name, verbose):
    """Returns an array of a function's values of all elements. Raises ValueError for an empty or endless data set."""
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError("`dataset` must have an end; received a data set that repeats without end.")
    chunks = []
    with bar(total=count if count >= 0 else None, unit=unit, name=name, verbose=verbose) as shown:
        for values in dataset.map(function).batch(64).as_numpy_iterator():
            chunks.append(values)
            shown.update(len(values))
    if not chunks:
        raise ValueError("`dataset` must hold at least one element; received an empty one.")
    return np.concatenate(chunks)


def best(lengths, examples, count):
    """Returns the lengths of the `count` buckets with the fewest positions, by dynamic programming.

    Both arrays count positions. After n rounds, cost[j] is for the examples of the first j lengths in n buckets. The
    entry bucket[j, i] is for the examples of the lengths from i to j in one bucket.
    """
    before = np.concatenate([[0], np.cumsum(examples)])
    bucket = (before[:, None] - before) * np.concatenate([[0], lengths])[:, None]
    bucket = np.where(bucket < 0, np.inf, bucket)
    cost, choices = bucket[:, 0], []
    for _ in range(count - 1):
        total = cost + bucket
        choices.append(total.argmin(1))
        cost = total.min(1)
    ends, end = [], len(lengths)
    for choice in reversed(choices):
        if choice[end] != end:
            ends.append(end)
            end = choice[end]
    ends += [end] if end else []
    return [int(lengths[end - 1]) for end in reversed(ends)]


def bucket_list(lengths):
    """Returns the list of the lengths of the buckets."""
    if isinstance(lengths, numbers.Integral):
        longest, lengths = checks.size("lengths", lengths), [8]
        while lengths[-1] < longest:
            lengths.append(lengths[-1] + max(4, lengths[-1] // 4))
        return [*lengths[:-1], longest]
    if not isinstance(lengths, (list, tuple)) or not lengths:
        raise bad_argument("lengths", "be a list of lengths, or the longest length", lengths)
    lengths = [checks.size("lengths", length) for length in lengths]
    if any(a >= b for a, b in zip(lengths, lengths[1:])):
        raise bad_argument("lengths", "grow", lengths)
    return lengths


def longest_row(example):
    return tf.reduce_max([tf.size(part) for part in tf.nest.flatten(example) if part.shape.rank == 1])


def has_rows(dataset):
    """Raises ValueError if the elements of a data set are not single examples with rows."""
    specs = tf.nest.flatten(dataset.element_spec)
    ranks = [spec.shape.rank if isinstance(spec, tf.TensorSpec) else None for spec in specs]
    if 1 not in ranks or not set(ranks) <= {0, 1}:
        must = "hold examples with rows of ids (length,), not batched"
        raise bad_argument("dataset", must, dataset.element_spec)


def padding(spec, pad_id):
    """Returns the padding of a part of an example: `pad_id` for ids, 0 for weights."""
    return tf.constant(pad_id if spec.dtype.is_integer and spec.shape.rank else 0, spec.dtype)
