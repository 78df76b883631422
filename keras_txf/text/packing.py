"""Packing: several sequences in one row, with almost no padding.

Legend: W examples in a window, R rows, L length of an example, T length of a row.
"""

from typing import Any

from keras_txf import checks
from keras_txf.checks import bad_argument
from keras_txf.text.batching import has_rows
from keras_txf.text.datasets import asserted, checked, not_empty
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import as_ragged


def pack(dataset: Any, length: int | dict[str, int], window: int = 1024, pad_id: int = 0) -> Any:
    """Packs several examples into each row, for models with `packed=True`.

    Each example, with all its inputs, goes into the first row of its window with room for it. Source and target of a
    pair are in the same row and have the same segment id. Segments count from 1, and 0 is padding; positions begin at 0
    in each segment. The loss and its gradients equal those of a batch of the single examples: padding has no weight in
    `TokenCrossEntropy`, and no sequence attends to another.

    Args:
        dataset: `tf.data.Dataset` of examples: ids int (L,), or a dict of them; or (inputs, targets), or (inputs,
            targets, weights). Targets and weights (L,) belong to the input of the same length: `target_ids`, if there
            are several inputs. A weight () of an example applies to all its targets. A label () of an example, and its
            weight, go to the first token.
        length: T, the length of a row; or a dict of the length for each input. Longer rows have less padding, but
            attention costs more.
        window: the number of examples that are packed together. A larger window leaves less padding. Packing changes
            the order of examples within the window.
        pad_id: the id of padding.

    Returns:
        `tf.data.Dataset` of rows, not batched: `token_ids`, `segment_ids` and `positions`, int32 (T,), in a dict; for
        `source_ids`, also `source_segment_ids` and `source_positions`, and so on. Then the targets (T,), and the
        weights (T,) if the examples have weights. Labels of examples add weights: 1 at the label, 0 elsewhere.
        `counted` tells `fit` the number of rows.

    Raises:
        ValueError: elements that are not examples, ids that are not integers, lengths of other inputs. The data set
            raises `tf.errors.InvalidArgumentError` when it reads an id that is negative or not below 2**31; an example
            longer than a row; targets of another length than their input; a label without a token.

    Reference:
        [Efficient Sequence Packing without Cross-contamination](https://arxiv.org/abs/2107.02027).

    Example:

    >>> examples = txf.text.next_token(["ab", "abcde", "cd"], txf.text.ByteTokenizer(end="</s>"))
    >>> rows = txf.text.pack(examples, length=6)
    >>> inputs, targets = next(iter(rows.batch(2)))
    >>> inputs["segment_ids"].numpy()
    array([[1, 1, 2, 2, 0, 0],
           [1, 1, 1, 1, 1, 0]], dtype=int32)
    >>> targets.numpy()
    array([[101,   1, 103,   1,   0,   0],
           [101, 102, 103, 104,   1,   0]], dtype=int32)
    """
    checks.size("window", window)
    checks.integer_between("pad_id", pad_id, 0, 2**31 - 1)
    inputs, answers = known_parts(dataset)
    lengths = row_lengths(length, inputs)
    owner = "target_ids" if "target_ids" in inputs else list(inputs)[0]
    ranks = [answer.shape.rank for answer in answers]
    with_weights, one_weight = ranks == [0], ranks == [1, 0]
    fills = [pad_id if answers and answers[0].shape.rank and answers[0].dtype.is_integer else 0, 0]

    def packed(*examples):
        inputs, *answers = in_parts(examples if len(examples) > 1 else examples[0])
        inputs = {name: as_ragged(rows) for name, rows in inputs.items()}
        order, counts = first_fit(tf.stack([rows.row_lengths() for rows in inputs.values()], 1), lengths)
        inputs = {name: tf.gather(rows, order) for name, rows in inputs.items()}
        answers = [tf.gather(answer, order) for answer in answers]

        def joined(rows, name, fill=0):
            rows = tf.RaggedTensor.from_row_lengths(rows, counts, validate=False).merge_dims(1, 2)
            return rows.to_tensor(tf.cast(fill, rows.dtype), shape=[None, lengths[name]])

        segments = tf.cast(tf.ragged.range(1, counts + 1).flat_values, tf.int32)
        rows_of = {}
        for name, rows in inputs.items():
            rows_of[name] = joined(as_int32(rows, name), name, pad_id)
            prefix = "" if name == "token_ids" else name.removesuffix("ids")
            rows_of[f"{prefix}segment_ids"] = joined(for_each_token(segments, rows), name)
            rows_of[f"{prefix}positions"] = joined(positions(rows), name)
        if with_weights:
            answers.append(tf.ones(tf.shape(answers[0])))
        if one_weight:
            answers[1] = for_each_token(answers[1], inputs[owner])
        answers = [joined(for_tokens(answer, inputs[owner]), owner, fill) for answer, fill in zip(answers, fills)]
        return (rows_of, *answers) if answers else rows_of

    return dataset.ragged_batch(window).map(packed, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def first_fit(sizes, lengths):
    """Assigns each example to the first row with room for it.

    Args:
        sizes: int64 (W, number of inputs), the tokens of each example.
        lengths: dict of the length of a row of each input.

    Returns:
        order: int64 (W,), the examples row by row.
        counts: int64 (R,), the number of examples in each row.
    """
    room = tf.constant(list(lengths.values()), "int64")
    message = f"`length` must be at least the length of each example, not {lengths}; received examples of the lengths"
    sizes = checked(sizes, tf.reduce_all(sizes <= room, axis=1), message)
    count = tf.shape(sizes)[0]

    def put(index, room, rows):
        row = tf.argmax(tf.reduce_all(room >= sizes[index], axis=1))
        return index + 1, tf.tensor_scatter_nd_sub(room, row[None, None], sizes[index][None]), rows.write(index, row)

    start = (0, tf.repeat(room[None], count, axis=0), tf.TensorArray(tf.int64, count))
    *_, rows = tf.while_loop(lambda index, *_: index < count, put, start)
    rows = rows.stack()
    return tf.argsort(rows, stable=True), tf.math.bincount(rows, dtype=tf.int64)


def known_parts(dataset):
    """Returns the specs of a data set's inputs, by name, and of its targets and weights."""
    not_empty(dataset)
    has_rows(dataset)
    inputs, *answers = in_parts(dataset.element_spec)
    if len(answers) > 2 or any(isinstance(spec, (dict, tuple)) for spec in (*inputs.values(), *answers)):
        raise bad_argument("dataset", "hold inputs, targets and weights, one tensor each", dataset.element_spec)
    for name, spec in inputs.items():
        if not name.endswith("_ids") or spec.shape.rank != 1:
            raise bad_argument("dataset", "have inputs of rows, whose names end in '_ids'", {name: spec})
        if not spec.dtype.is_integer:
            raise bad_argument("dataset", f"have ids that are integers, not {spec.dtype.name}", name)
    if answers and len(inputs) > 1 and "target_ids" not in inputs:
        raise bad_argument("dataset", "have `target_ids` among its inputs, for its targets", sorted(inputs))
    return inputs, answers


def in_parts(element):
    """Returns [inputs by name, targets, weights], perhaps without targets or weights."""
    inputs, *answers = element if isinstance(element, tuple) else (element,)
    inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
    return [inputs, *answers]


def row_lengths(length, inputs):
    """Returns the length of the rows of each input, by name."""
    lengths = length if isinstance(length, dict) else dict.fromkeys(inputs, length)
    if lengths.keys() != inputs.keys():
        raise bad_argument("length", f"have a length for each of the inputs {sorted(inputs)}", sorted(lengths))
    for name, spec in inputs.items():
        if (spec.shape[0] or 0) > checks.size("length", lengths[name]):
            raise bad_argument(
                "length", f"be at least the length of an example, {spec.shape[0]} of {name}", lengths[name]
            )
    return {name: lengths[name] for name in inputs}


def as_int32(rows, name):
    """Casts ids to int32. Ids of more than 31 bits stop the data set."""
    ids = rows.values
    fits = (ids >= 0) & (ids <= tf.cast(min(ids.dtype.max, 2**31 - 1), ids.dtype))
    message = f"`dataset` must have ids from 0 to 2**31 - 1; received in {name}"
    return rows.with_values(tf.cast(checked(ids, fits, message), tf.int32))


def for_each_token(values, rows):
    """Repeats a value of each example (W,) for each of its tokens: RaggedTensor (W, L)."""
    return rows.with_values(tf.gather(values, rows.value_rowids()))


def positions(rows):
    """Counts 0, 1, 2, ... in each row: int32 RaggedTensor (W, L)."""
    return rows.with_values(tf.cast(tf.ragged.range(rows.row_lengths()).flat_values, tf.int32))


def for_tokens(answer, rows):
    """Returns targets or weights as rows (W, L). The value of an example goes to its first token, 0 to the others."""
    if isinstance(answer, tf.RaggedTensor) or answer.shape.rank == 2:
        answer = as_ragged(answer)
        matching = tf.reduce_all(answer.row_lengths() == rows.row_lengths())
        message = "Targets must be as long as the ids that they belong to; received the lengths"
        return answer.with_values(asserted(answer.values, matching, message, answer.row_lengths(), rows.row_lengths()))
    message = "An example with a label must have a token; received none."
    answer = asserted(answer, tf.reduce_all(rows.row_lengths() > 0), message)
    values = for_each_token(answer, rows).values
    return rows.with_values(tf.where(positions(rows).values == 0, values, tf.zeros_like(values)))
