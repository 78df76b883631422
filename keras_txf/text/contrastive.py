"""Pairs of texts that belong together, for embeddings."""

from typing import Any

import keras

from keras_txf.checks import short_repr
from keras_txf.text.datasets import as_dataset, asserted, checked_tokenizer, in_chunks, limit
from keras_txf.text.lazy_imports import tf
from keras_txf.text.tokenizer import Tokenizer
from keras_txf.text.truncation import row


def contrastive_pairs(dataset: Any, tokenizer: Tokenizer, max_length: int | None = None) -> Any:
    """Makes examples of (anchor, positive): two texts of one meaning, or a question and its answer.

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
    checked_tokenizer("tokenizer", tokenizer)
    max_length = limit(tokenizer, max_length, len(tokenizer.start) + len(tokenizer.end))
    dataset = as_dataset(dataset, ["anchor", "positive"])

    def example(anchor, positive):
        return {"anchor_ids": row(tokenizer, anchor, max_length), "positive_ids": row(tokenizer, positive, max_length)}

    return in_chunks(dataset, example)


def contrastive_targets(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns a batch of B pairs with its targets: the class of anchor i among the positives is i.

    Map it over the batches. The loss is `SparseCategoricalCrossentropy(from_logits=True)` of the similarities (B, B),
    divided by a temperature.

    Args:
        batch: dict of "anchor_ids" (B, L) and "positive_ids" (B, L').

    Returns:
        (batch, targets int32 (B,)), the targets 0, 1, 2, ...

    Raises:
        ValueError: no batch of such pairs, ids that are no integers, different numbers of anchors and positives.

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
        raise ValueError(
            f"`batch` must be a dict of {' and '.join(names)}, each (batch, length); received {short_repr(batch)}."
        )
    for name in names:
        if "int" not in (dtype := keras.backend.standardize_dtype(batch[name].dtype)):
            raise ValueError(f"`batch` must hold ids that are integers; received {dtype} of {name}.")
    known = [batch[name].shape[0] for name in names]
    if None not in known and known[0] != known[1]:
        raise ValueError(f"`batch` must hold as many anchors as positives; received {known[0]} and {known[1]}.")
    anchors, positives = (tf.shape(batch[name])[0] for name in names)
    if None in known:
        anchors = asserted(
            anchors,
            anchors == positives,
            "`batch` must hold as many anchors as positives; received",
            anchors,
            positives,
        )
    return batch, tf.range(anchors)
