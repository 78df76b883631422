"""What all pipelines share: text comes as a data set, is tokenized many at a time, and leaves as one example each.

Legend: C texts that are tokenized at once, L length in tokens.
"""

import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.text.lazy import tf
from keras_txf.text.shapes import as_text
from keras_txf.text.tokenizer import Tokenizer

CHUNK = 256


def as_dataset(data, columns, num_classes=None):
    """The `tf.data.Dataset` of texts, or of tuples of them, that a pipeline begins with.

    Args:
        data: a `tf.data.Dataset`, not batched; or its columns in memory, lists or arrays.
        columns: list of str, the names of what an element holds. All are text but "label".
        num_classes: the labels are integers below it; None where they are numbers of any kind.

    Raises:
        ValueError: another structure, no element, columns that differ in length, a label out of range where it can be
            seen.
    """
    alone = len(columns) == 1
    expected = f"`dataset` must be a tf.data.Dataset of ({', '.join(columns)}), not batched, or a tuple of such columns"
    if alone:
        expected = "`dataset` must be a tf.data.Dataset of texts, not batched, or a list of texts"
    if not isinstance(data, tf.data.Dataset):
        parts = (data,) if alone else data
        if not isinstance(parts, (tuple, list)) or len(parts) != len(columns) or not all(map(is_column, parts)):
            raise ValueError(f"{expected}; received {short_repr(data)}.")
        parts = tuple(column(name, values, num_classes) for name, values in zip(columns, parts))
        same_length(parts, columns)
        data = tf.data.Dataset.from_tensor_slices(parts[0] if alone else parts)
    specs = (data.element_spec,) if alone else data.element_spec
    if not isinstance(specs, tuple) or len(specs) != len(columns):
        raise ValueError(f"{expected}; received elements of {short_repr(data.element_spec)}.")
    for name, spec in zip(columns, specs):
        kind, fits = (label_kind(num_classes), fits_label) if name == "label" else ("a string", fits_text)
        if not fits(getattr(spec, "dtype", None), num_classes) or spec.shape.rank != 0:
            raise ValueError(f"{expected}, where {name} is {kind}; received {spec}.")
    not_empty(data, look=True)
    return data


def is_column(values):
    return isinstance(values, (list, tuple)) or (hasattr(values, "shape") and len(values.shape) == 1)


def column(name, values, num_classes):
    """The tensor of a column in memory."""
    if name != "label":
        return as_text(values, f"`{name}` of `dataset`") if len(values) else tf.zeros([0], tf.string)
    kind = f"The labels of `dataset` must each be {label_kind(num_classes)}"
    labels = np.asarray(values)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in ("iu" if num_classes else "iuf")):
        raise ValueError(f"{kind}; received {short_repr(values)}.")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes)) if num_classes else []
    if len(wrong):
        raise ValueError(f"{kind}; received {labels[wrong[0]]} at place {wrong[0]}.")
    return tf.constant(labels, tf.int32 if num_classes else tf.float32)


def same_length(tensors, names):
    lengths = [int(tensor.shape[0]) for tensor in tensors]
    if len(set(lengths)) > 1:
        received = ", ".join(f"{length} of {name}" for length, name in zip(lengths, names))
        raise ValueError(f"`dataset` must have columns of one length; received {received}.")


def label_kind(num_classes):
    return f"an integer from 0 to {num_classes - 1}" if num_classes else "a number"


def fits_label(dtype, num_classes):
    return dtype is not None and (dtype.is_integer or (num_classes is None and dtype.is_floating))


def fits_text(dtype, num_classes):
    return dtype == tf.string


def checked_labels(labels, num_classes):
    """Labels (C,) as int32, or float32 where there are no classes; out of range they stop the data set."""
    if num_classes is None:
        return tf.cast(labels, tf.float32)
    wrong = tf.boolean_mask(labels, (labels < 0) | (labels >= num_classes))
    message = f"The labels of `dataset` must each be {label_kind(num_classes)}; received"
    return tf.cast(asserted(labels, tf.size(wrong) == 0, message, wrong), tf.int32)


def asserted(tensor, condition, *message):
    """The tensor, if the condition holds; else the data set stops here and says so."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [*message])]):
        return tf.identity(tensor)


def not_empty(dataset, look=False):
    """Refuses what is no data set, or one without elements. With `look` it reads the first, where their number is not known."""
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(f"`dataset` must be a tf.data.Dataset; received {short_repr(dataset)}.")
    count = int(dataset.cardinality())
    if look and count == tf.data.UNKNOWN_CARDINALITY and tf.executing_eagerly():
        count = sum(1 for _ in dataset.take(1))
    if count == 0:
        raise ValueError("`dataset` must hold at least one element; received an empty one.")


def in_chunks(dataset, function, same_count=True):
    """Applies a function to C elements at a time; its rows (C, L), ragged, and values (C,) are the new elements.

    To tokenize texts one by one would take many times as long. The order stays.
    """
    chunks = dataset.batch(CHUNK).map(function, num_parallel_calls=tf.data.AUTOTUNE)
    return one_by_one(chunks, dataset.cardinality() if same_count else tf.data.UNKNOWN_CARDINALITY)


def one_by_one(chunks, count):
    """The elements of chunks. Their number is stated, where it is known."""
    examples = chunks.unbatch().map(dense)
    unknown = int(count) == tf.data.UNKNOWN_CARDINALITY
    return examples if unknown else examples.apply(tf.data.experimental.assert_cardinality(count))


def dense(*element):
    """A row of a ragged tensor is a tensor, though TensorFlow's data sets call it ragged still."""
    return tf.nest.map_structure(tf.convert_to_tensor, element if len(element) > 1 else element[0])


def checked_tokenizer(name, tokenizer, needs=()):
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"`{name}` must be a tokenizer of keras_txf.text; received {short_repr(tokenizer)}.")
    for option in needs:
        if not getattr(tokenizer, option):
            raise ValueError(f"`{name}` must have the option `{option}`, a special token; received a tokenizer without.")
    return tokenizer


def limit(tokenizer, max_length, added, texts=1):
    """The most tokens of a row of some texts, or None; the tokenizer's own `length` where nothing else is said."""
    if max_length is None and isinstance(tokenizer.length, int):
        max_length = tokenizer.length
    max_length = checks.optional(checks.size, "max_length", max_length)
    if max_length is not None and max_length < added + texts:
        raise ValueError(
            f"`max_length` must leave room for a token of each text beside {added} special tokens; received {max_length}."
        )
    return max_length
