"""Batches of examples of like length, so that little of them is padding.

Legend: B batch, L length in tokens.
"""

import numbers

import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.text.datasets import asserted, not_empty
from keras_txf.text.lazy import tf


def batch_by_length(dataset, tokens, lengths, pad_id=0, static=True, drop_remainder=False):
    """Batches of examples of like length: the shorter they are, the more of them.

    Shuffle before; examples then come in the order in which their batches fill, so shuffle batches too where that matters.

    Args:
        dataset: `tf.data.Dataset` of examples, such as `classification` and `translation` make. Of those with several
            rows, the longest counts.
        tokens: the most positions of a batch, padding included, of each of its inputs.
        lengths: list of int, the length of each kind of batch, see `bucket_lengths`; or an int, that of the longest
            example: then each kind is about a quarter longer than the one before.
        pad_id: what rows are padded with.
        static: whether rows are padded to the kind's length, so that there are but as many shapes as kinds: for JAX,
            which compiles each. False pads to the longest of the batch.
        drop_remainder: whether batches that are not full at the end are left out.

    Returns:
        `tf.data.Dataset` of the examples' structure: int (L,) becomes (B, L), a label (B,). `counted` tells `fit` how many.

    Raises:
        ValueError: elements that have no rows, lengths that do not grow, fewer tokens than the longest row. An example
            longer than that raises `tf.errors.InvalidArgumentError` where the data set comes to it.

    Example:

    >>> examples = txf.text.next_token(["ab", "abcdef", "cd"], txf.text.ByteTokenizer(end="</s>"))
    >>> batches = txf.text.batch_by_length(examples, tokens=12, lengths=[2, 6])
    >>> [tuple(ids.shape) for ids, targets in batches]
    [(2, 2), (1, 6)]
    """
    not_empty(dataset)
    checks.integer_between("pad_id", pad_id, -(2**31), 2**31 - 1)
    lengths = kinds(lengths)
    if checks.size("tokens", tokens) < lengths[-1]:
        raise ValueError(f"`tokens` must be enough for one row of {lengths[-1]}, the last of `lengths`; received {tokens}.")
    has_rows(dataset)

    def length(*example):
        longest = longest_row(example)
        message = f"`lengths` must end with that of the longest example at least, and ends with {lengths[-1]}; received an example of length"
        return asserted(longest, longest <= lengths[-1], message, longest)

    return dataset.bucket_by_sequence_length(
        length,
        bucket_boundaries=[longest + 1 for longest in lengths],
        bucket_batch_sizes=[tokens // longest for longest in [*lengths, lengths[-1]]],
        padding_values=tf.nest.map_structure(lambda spec: padding(spec, pad_id), dataset.element_spec),
        pad_to_bucket_boundary=checks.boolean("static", static),
        drop_remainder=checks.boolean("drop_remainder", drop_remainder),
    )


def bucket_lengths(dataset, count=8):
    """The lengths for `batch_by_length` that leave the fewest positions to padding, of all sets of `count`.

    Reads the data set once.

    Args:
        dataset: `tf.data.Dataset` of examples, not repeated for ever.
        count: how many lengths, at most.

    Returns:
        list of int, the longest example's the last.

    Raises:
        ValueError: no examples, or none with a row; a data set that has no end.

    Example:

    >>> examples = txf.text.token_ids(["a", "bc", "abcdefgh", "bcdefghi", "abcdefghi"], txf.text.ByteTokenizer())
    >>> txf.text.bucket_lengths(examples, count=2)
    [2, 9]
    """
    checks.positive_integer("count", count)
    not_empty(dataset)
    has_rows(dataset)
    with_end(dataset)
    found = list(dataset.map(lambda *example: longest_row(example)).batch(1024).as_numpy_iterator())
    if not found:
        raise ValueError("`dataset` must hold at least one element; received an empty one.")
    found = np.maximum(np.concatenate(found), 1)
    step = -(-found.max() // 1024)  # there may be many lengths: then only each so many is looked at
    lengths, examples = np.unique(np.minimum(-(-found // step) * step, found.max()), return_counts=True)
    return best(lengths, examples, min(count, len(lengths)))


def counted(dataset):
    """The data set with the number of its elements, which `fit` then knows: how many steps an epoch has.

    Of `next_token`, `batch_by_length` and `pack` the number is not known beforehand, and Keras warns at the end of the first
    epoch that the data has run out, and gives each later one as many steps as the first had. Reads the data set once, so
    cache before where that is slow.

    Args:
        dataset: `tf.data.Dataset` of batches, or of examples. Each pass must have as many: of `pack` that depends on the
            order, so shuffle its rows, not what it packs. Where the examples shall be packed anew in each epoch, use
            `fit(rows.repeat(), steps_per_epoch=...)`.

    Returns:
        `tf.data.Dataset` of the same elements. A pass with more or fewer raises `tf.errors.FailedPreconditionError`.

    Raises:
        ValueError: no elements; a data set that has no end.

    Example:

    >>> examples = txf.text.next_token(["ab", "abcdef", "cd"], txf.text.ByteTokenizer(end="</s>"))
    >>> batches = txf.text.batch_by_length(examples, tokens=12, lengths=[2, 6])
    >>> len(txf.text.counted(batches))
    2
    """
    not_empty(dataset)
    with_end(dataset)
    count = int(dataset.reduce(np.int64(0), lambda count, *_: count + 1))
    if not count:
        raise ValueError("`dataset` must hold at least one element; received an empty one.")
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def best(lengths, examples, count):
    """The lengths that end buckets at the least cost in positions, by dynamic programming.

    cost[j] is that of the examples of the first j lengths, in as many buckets as there have been rounds; bucket[j, i] that
    of those from i to j in one, all as long as the last.
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


def kinds(lengths):
    """The lengths of the kinds of batches."""
    if isinstance(lengths, numbers.Integral):
        longest, lengths = checks.size("lengths", lengths), [8]
        while lengths[-1] < longest:
            lengths.append(lengths[-1] + max(4, lengths[-1] // 4))
        return [*lengths[:-1], longest]
    if not isinstance(lengths, (list, tuple)) or not lengths:
        raise ValueError(f"`lengths` must be a list of lengths, or the longest of all; received {short_repr(lengths)}.")
    lengths = [checks.size("lengths", length) for length in lengths]
    if any(a >= b for a, b in zip(lengths, lengths[1:])):
        raise ValueError(f"`lengths` must grow; received {short_repr(lengths)}.")
    return lengths


def with_end(dataset):
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("`dataset` must have an end; received one that is repeated for ever.")


def longest_row(example):
    return tf.reduce_max([tf.size(part) for part in tf.nest.flatten(example) if part.shape.rank == 1])


def has_rows(dataset):
    """Refuses a data set whose elements are no examples, not batched."""
    specs = tf.nest.flatten(dataset.element_spec)
    ranks = [spec.shape.rank if isinstance(spec, tf.TensorSpec) else None for spec in specs]
    if 1 not in ranks or not set(ranks) <= {0, 1}:
        raise ValueError(
            f"`dataset` must hold examples with rows of ids (length,), not batched; received elements of {short_repr(dataset.element_spec)}."
        )


def padding(spec, pad_id):
    """What a part of an example is padded with: ids with `pad_id`, weights with 0."""
    return tf.constant(pad_id if spec.dtype.is_integer and spec.shape.rank else 0, spec.dtype)
