"""The shared parts of all pipelines from texts to examples.

A pipeline reads a data set of texts (`as_dataset`), makes rows of ids from many texts at a time (`row_function`,
`pair_function`), and returns single examples (`in_chunks`):

```python
make = row_function(tokenizer, max_length)
return in_chunks(as_dataset(dataset, ["text"]), make)
```

Legend: C texts in a chunk, L length in tokens.
"""

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import as_text
from keras_txf.text.tokenizer import Tokenizer, add_start_and_end, repeat_tokens

CHUNK = 256


def as_dataset(data, columns, num_classes=None):
    """Returns the input of a pipeline, a `tf.data.Dataset` of texts or of tuples.

    Args:
        data: a `tf.data.Dataset`, not batched; or columns in memory, lists or arrays.
        columns: list of str, the names of the parts of an element. Every part except "label" is text.
        num_classes: the number of classes, for integer labels below it; None for labels that are any numbers.

    Raises:
        ValueError: another structure, no elements, columns of different lengths, a label in memory out of range.
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
        dtype = getattr(spec, "dtype", tf.variant)
        expected_type, fits = "a string", dtype == tf.string
        if name == "label":
            expected_type = label_kind(num_classes)
            fits = dtype.is_integer or (num_classes is None and dtype.is_floating)
        if not fits or spec.shape.rank != 0:
            raise ValueError(f"{expected}, where {name} is {expected_type}; received {spec}.")
    not_empty(data, look=True)
    return data


def has_labels(data, texts):
    """Whether the elements of a data set, or of columns in memory, have labels next to `texts` texts."""
    if isinstance(data, tf.data.Dataset):
        return (len(data.element_spec) if isinstance(data.element_spec, tuple) else 1) != texts
    if texts > 1:
        return not isinstance(data, (tuple, list)) or len(data) != texts
    data = data.numpy() if isinstance(data, tf.Tensor) else data
    return not (is_column(data) and len(data) and all(isinstance(text, (str, bytes)) for text in data))


def is_column(values):
    return isinstance(values, (list, tuple)) or (hasattr(values, "shape") and len(values.shape) == 1)


def column(name, values, num_classes):
    """Returns the tensor of a column in memory."""
    if name != "label":
        return as_text(values, f"`{name}` of `dataset`") if len(values) else tf.zeros([0], tf.string)
    must = f"The labels of `dataset` must each be {label_kind(num_classes)}"
    labels = np.asarray(values)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in ("iu" if num_classes else "iuf")):
        raise ValueError(f"{must}; received {short_repr(values)}.")
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes)) if num_classes else []
    wrong = np.flatnonzero(~np.isfinite(labels)) if labels.dtype.kind == "f" else wrong
    if len(wrong):
        raise ValueError(f"{must}; received {labels[wrong[0]]} at index {wrong[0]}.")
    return tf.constant(labels, tf.int32 if num_classes else tf.float32)


def same_length(tensors, names):
    lengths = [int(tensor.shape[0]) for tensor in tensors]
    if len(set(lengths)) > 1:
        received = ", ".join(f"{length} of {name}" for length, name in zip(lengths, names))
        raise ValueError(f"`dataset` must have columns of one length; received {received}.")


def label_kind(num_classes):
    return f"an integer from 0 to {num_classes - 1}" if num_classes else "a finite number"


def checked_labels(labels, num_classes):
    """Casts labels (C,) to int32, or to float32 without classes. A label out of range stops the data set."""
    if num_classes is None:
        return tf.cast(labels, tf.float32)
    message = f"The labels of `dataset` must each be {label_kind(num_classes)}; received"
    return tf.cast(checked(labels, (labels >= 0) & (labels < num_classes), message), tf.int32)


def asserted(tensor, condition, *message):
    """Returns the tensor. A false condition stops the data set with the message."""
    with tf.control_dependencies([tf.debugging.Assert(condition, [*message])]):
        return tf.identity(tensor)


def checked(values, fits, message):
    """Returns values (C,). Values that do not fit stop the data set with the message and these values."""
    return asserted(values, tf.reduce_all(fits), message, tf.boolean_mask(values, ~fits))


def not_empty(dataset, look=False):
    """Raises ValueError for no data set, or an empty one. `look` reads an element if their number is unknown."""
    if not isinstance(dataset, tf.data.Dataset):
        raise bad_argument("dataset", "be a tf.data.Dataset", dataset)
    count = int(dataset.cardinality())
    if look and count == tf.data.UNKNOWN_CARDINALITY and tf.executing_eagerly():
        count = sum(1 for _ in dataset.take(1))
    if count == 0:
        raise ValueError("`dataset` must hold at least one element; received an empty one.")


def in_chunks(dataset, function, same_count=True):
    """Applies a function to C elements at a time. Its ragged rows (C, L) and values (C,) become the new elements.

    Tokenizing texts one by one would take many times as long. The order of elements stays.
    """
    has_rows = any(spec.shape.rank for spec in tf.nest.flatten(dataset.element_spec))
    chunks = dataset.ragged_batch(CHUNK) if has_rows else dataset.batch(CHUNK)
    chunks = chunks.map(function, num_parallel_calls=tf.data.AUTOTUNE)
    return one_by_one(chunks, dataset.cardinality() if same_count else tf.data.UNKNOWN_CARDINALITY)


def one_by_one(chunks, count):
    """Returns the elements of chunks, with their number if it is known."""
    examples = chunks.unbatch().map(dense)
    unknown = int(count) == tf.data.UNKNOWN_CARDINALITY
    return examples if unknown else examples.apply(tf.data.experimental.assert_cardinality(count))


def dense(*element):
    """Converts the rows of ragged tensors to dense tensors. TensorFlow's data sets leave them ragged."""
    return tf.nest.map_structure(tf.convert_to_tensor, element if len(element) > 1 else element[0])


def checked_tokenizer(name, tokenizer, needs=()):
    if not isinstance(tokenizer, Tokenizer):
        raise bad_argument(name, "be a tokenizer of keras_txf.text", tokenizer)
    for option in needs:
        if not getattr(tokenizer, option):
            raise bad_argument(name, f"have the option `{option}`, a special token", getattr(tokenizer, option))
    return tokenizer


def limit(tokenizer, max_length, added=None, texts=1):
    """Returns the largest number of tokens in a row, or None; default the tokenizer's `length`.

    Raises ValueError if a row has no room for `added` tokens, by default `start` and `end`, and a token of each text.
    """
    added = len(tokenizer.start) + len(tokenizer.end) if added is None else added
    max_length = tokenizer._max_length if max_length is None else checks.size("max_length", max_length)
    if max_length is not None and max_length < added + texts:
        must = f"leave room for a token of each text next to {added} special tokens"
        raise bad_argument("max_length", must, max_length)
    return max_length


def row_function(tokenizer, max_length):
    """Returns the function `row` of texts. Checks the tokenizer and `max_length`."""
    max_length = limit(checked_tokenizer("tokenizer", tokenizer), max_length)
    return lambda texts: row(tokenizer, texts, max_length)


def pair_function(tokenizer, separator, max_length, strategy):
    """Returns the function `pair_row` of two texts. Checks the tokenizer, the separator and `max_length`."""
    separator = separator_tokens(checked_tokenizer("tokenizer", tokenizer), separator)
    max_length = limit(tokenizer, max_length, len(tokenizer.start) + len(separator) + len(tokenizer.end), texts=2)
    return lambda first, second: pair_row(tokenizer, first, second, separator, max_length, strategy)


def row(tokenizer, texts, max_length):
    """Makes rows of `start`, the truncated text, `end`: int32 RaggedTensor (C, L)."""
    return add_start_and_end(tokenizer, tokenizer.tokenize(texts), max_length)


def pair_row(tokenizer, first, second, separator, max_length, strategy):
    """Makes rows of `start`, the first text, the separator, the second text, `end`.

    Args:
        separator: list of special tokens.
        strategy: function of both lengths (C,) and of the room for both texts, which returns the lengths to keep.

    Returns:
        The ids, int32 RaggedTensor (C, L), and the number of tokens before the second text, int64 (C,).
    """
    first, second = tokenizer.tokenize(first), tokenizer.tokenize(second)
    if max_length is not None:
        room = tf.constant(max_length - len(tokenizer.start) - len(separator) - len(tokenizer.end), tf.int64)
        kept = strategy(first.row_lengths(), second.row_lengths(), room)
        first, second = (truncate_each(*pair, tokenizer.truncation_side) for pair in zip((first, second), kept))
    between = repeat_tokens(tokenizer, separator, first)
    ids = add_start_and_end(tokenizer, tf.concat([first, between, second], axis=1))
    return ids, first.row_lengths() + len(tokenizer.start) + len(separator)


def types_of_pair(ids, before):
    """Returns the token type ids of rows of `pair_row`: 0 up to the separator, 1 from the second text on."""
    index = tf.ragged.range(ids.row_lengths()).flat_values
    return ids.with_values(tf.cast(index >= tf.gather(before, ids.value_rowids()), tf.int32))


def truncate_each(rows, lengths, side):
    """Truncates each row to its own length."""
    index = tf.ragged.range(rows.row_lengths()).flat_values
    first = rows.row_lengths() - lengths if side == "left" else tf.zeros_like(lengths)
    first, last = (tf.gather(limits, rows.value_rowids()) for limits in (first, first + lengths))
    return tf.ragged.boolean_mask(rows, rows.with_values((index >= first) & (index < last)))


def longest_first(first, second, room):
    """Truncates the longer text to the length of the shorter text, then both texts.

    The longer text keeps an odd token; of two texts of equal length the second.
    """
    shorter = tf.minimum(tf.minimum(first, second), room // 2)
    longer = tf.minimum(tf.maximum(first, second), room - shorter)
    return tf.where(first > second, longer, shorter), tf.where(first > second, shorter, longer)


def only_second(first, second, room):
    """Truncates the second text, and the first text only if it alone has no room."""
    kept = tf.minimum(first, room)
    return kept, tf.minimum(second, room - kept)


def separator_tokens(tokenizer, separator):
    """Returns the tokens between two texts: the caller's tokens, or the tokenizer's `end`, as in BERT."""
    tokens = tokenizer.end if separator is None else tokenizer._special("separator", separator)
    if not tokens:
        must = (
            f"be a special token, of {sorted(tokenizer.special_tokens)}, or a list of them, to join pairs of "
            "texts, for the tokenizer has no `end`"
        )
        raise bad_argument("separator", must, separator)
    return tokens
