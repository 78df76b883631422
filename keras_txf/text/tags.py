"""Words: text split into words, words split into tokens, and tagged words as examples.

Legend: N texts, W words of a text, L length in tokens.
"""

from collections.abc import Sequence
from typing import Any

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.text.datasets import asserted, checked, checked_tokenizer, in_chunks, limit, not_empty, same_length
from keras_txf.text.lazy_imports import tf, tf_text
from keras_txf.text.ragged import as_ragged
from keras_txf.text.tokenizer import Tokenizer, add_start_and_end

# A word consists of letters, marks and digits; any other character that is not a blank is its own word.
ALONE = r"[^\s\p{Z}\p{L}\p{M}\p{N}_]"
EXPECTED = "`dataset` must be two columns, lists of words and lists of tags, or a tf.data.Dataset of (words, tags)"


def token_classification(
    dataset: Any,
    tokenizer: Tokenizer,
    labels: Sequence[str],
    max_length: int | None = None,
    label_all_tokens: bool = False,
    ignore_label: int = -100,
) -> Any:
    """Makes examples of (words, tags) for a classifier of tokens such as `token_classifier`: names, parts of speech.

    The tokenizer splits each word separately, as Hugging Face does with `is_split_into_words`. The first token of a
    word has the word's tag. The other tokens, `start` and `end` have `ignore_label`, which the loss ignores:
    `txf.training.TokenCrossEntropy(pad_id=-100)`. Pad the targets with this label too: `examples.padded_batch(size,
    padding_values=(0, -100))`.

    Args:
        dataset: two columns in memory, lists of N lists of W words and of W tags; or a `tf.data.Dataset` of (words
            string (W,), tags string or int (W,)), not batched. A tag is one of `labels`, or its number.
        tokenizer: a tokenizer, which adds its `start` and `end`.
        labels: list of the names of the tags, in the order of the model's classes.
        max_length: truncates longer texts; default the tokenizer's `length`, if it is a number.
        label_all_tokens: whether all tokens of a word have its tag. After a first token of "B-X" they have "I-X", if
            that is a label.
        ignore_label: the target of tokens that do not count.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), targets int32 (L,)), in the same order.

    Raises:
        ValueError: no elements; other elements; a text with more words than tags, or fewer; a tag that is not a label.
            A `tf.data.Dataset` raises `tf.errors.InvalidArgumentError` when it reads such an element.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> data = [["Ada", "and", "W"]], [["B-PER", "O", "B-LOC"]]
    >>> examples = txf.text.token_classification(data, tokenizer, ["O", "B-PER", "B-LOC"])
    >>> [targets.tolist() for ids, targets in examples.as_numpy_iterator()]
    [[1, -100, -100, 0, -100, -100, -100, 2, -100, -100]]
    """
    checked_tokenizer("tokenizer", tokenizer)
    labels = checked_names(labels)
    checks.boolean("label_all_tokens", label_all_tokens)
    if checks.int32("ignore_label", ignore_label) in range(len(labels)):
        raise bad_argument("ignore_label", "not be the number of a label", ignore_label)
    max_length = limit(tokenizer, max_length)
    dataset = _as_dataset(dataset, labels)
    blanks = has_blanks_in_tokens(tokenizer)
    following = [labels.index(f"I-{name[2:]}") if f"I-{name[2:]}" in labels else i for i, name in enumerate(labels)]
    following = [next_ if name.startswith("B-") else i for i, (name, next_) in enumerate(zip(labels, following))]

    def example(words, tags):
        words, tags = as_ragged(words), as_ragged(tags)
        numbers = _numbers(tags.flat_values, labels)
        same = tf.reduce_all(words.row_lengths() == tags.row_lengths())
        words = words.with_flat_values(
            asserted(words.flat_values, same, "`dataset` must have as many tags as words in each text")
        )
        ids, word_of, first = tokens_of_words(tokenizer, words, blanks)
        own = tf.gather(numbers, word_of.flat_values)
        other = tf.gather(tf.constant(following), own) if label_all_tokens else tf.fill(tf.shape(own), ignore_label)
        targets = ids.with_flat_values(tf.where(first.flat_values, own, other))
        targets = add_start_and_end(tokenizer, targets, max_length, fill=ignore_label)
        return add_start_and_end(tokenizer, ids, max_length), targets

    return in_chunks(dataset, example)


def checked_names(labels):
    is_list = isinstance(labels, (list, tuple)) and all(isinstance(label, str) for label in labels)
    if not is_list or len(set(labels)) != len(labels) or len(labels) < 2:
        raise bad_argument("labels", "be a list of different strings, at least two", labels)
    return list(labels)


def _as_dataset(data, labels):
    if not isinstance(data, tf.data.Dataset):
        if not isinstance(data, (tuple, list)) or len(data) != 2:
            raise ValueError(f"{EXPECTED}; received {short_repr(data)}.")
        words, tags = map(_rows, data)
        same_length([tf.zeros(len(rows)) for rows in (words, tags)], ["words", "tags"])
        numbers_of = {label: i for i, label in enumerate(labels)} | {i: i for i in range(len(labels))}
        for i, (row, row_of_tags) in enumerate(zip(words, tags)):
            if len(row) != len(row_of_tags):
                raise bad_argument(
                    "dataset", f"have as many tags as words in each text, {len(row)}", len(row_of_tags), i
                )
            wrong = [word for word in row if not isinstance(word, str)]
            wrong_tags = [tag for tag in row_of_tags if isinstance(tag, bool) or tag not in numbers_of]
            if wrong:
                raise bad_argument("dataset", "have strings as words", wrong[0], i)
            if wrong_tags:
                raise ValueError(
                    f"The tags of `dataset` must be of the labels {short_repr(labels)}, or their numbers; received "
                    f"{short_repr(wrong_tags[0])} at index {i}."
                )
        numbers = [[numbers_of[tag] for tag in row] for row in tags]
        ragged = [tf.ragged.constant(rows, dtype, 1) for rows, dtype in ((words, tf.string), (numbers, tf.int32))]
        data = tf.data.Dataset.from_tensor_slices(tuple(ragged))
    specs = data.element_spec
    if not isinstance(specs, tuple) or len(specs) != 2:
        raise ValueError(f"{EXPECTED}; received elements of {short_repr(specs)}.")
    fits = specs[0].dtype == tf.string and (specs[1].dtype == tf.string or specs[1].dtype.is_integer)
    if not fits or any(spec.shape.rank != 1 for spec in specs):
        raise ValueError(f"{EXPECTED}, string (W,) and string or int (W,), not batched; received {short_repr(specs)}.")
    not_empty(data, look=True)
    return data


def _rows(column):
    """Returns a column of lists or arrays as a list of lists."""
    plain = column.tolist() if hasattr(column, "tolist") else column
    is_column = isinstance(plain, (list, tuple)) and not any(isinstance(row, (str, bytes)) for row in plain)
    if not is_column or not all(hasattr(row, "__iter__") for row in plain):
        raise ValueError(f"{EXPECTED}; received {short_repr(column)}.")
    return [row.tolist() if hasattr(row, "tolist") else list(row) for row in plain]


def _numbers(tags, labels):
    """Converts tags (W,), strings or numbers, to int32 numbers. Another tag stops the data set."""
    message = f"The tags of `dataset` must be of the labels {short_repr(labels)}; received"
    if tags.dtype == tf.string:
        tags = checked(tags, tf.reduce_any(tags[:, None] == tf.constant(labels), axis=1), message)
        return tf.argmax(tags[:, None] == tf.constant(labels), axis=1, output_type=tf.int32)
    return tf.cast(checked(tags, (tags >= 0) & (tags < len(labels)), message), tf.int32)


def split_into_words(texts):
    """Splits texts at blanks and around punctuation.

    Args:
        texts: string (N,).

    Returns:
        words, begins, ends: RaggedTensors (N, W), string and int64: the words, and their spans in the text in bytes.
    """
    return tf_text.regex_split_with_offsets(texts, rf"[\s\p{{Z}}]+|{ALONE}", ALONE)


def has_blanks_in_tokens(tokenizer):
    """Whether the blank before a word belongs to the word's first token, and the tokenizer does not add it itself."""
    alone, after_blank, both = tokenizer.tokenize(["a", " a", "a a"]).to_list()
    return alone != after_blank and both != alone + alone


def tokens_of_words(tokenizer, words, blanks):
    """Tokenizes each word alone, as Hugging Face does with `is_split_into_words`.

    Args:
        tokenizer: the tokenizer.
        words: string RaggedTensor (N, W).
        blanks: the result of `has_blanks_in_tokens`. With blanks, each word of a text except the first is tokenized
            with a blank before it.

    Returns:
        ids: int32 RaggedTensor (N, L), without `start` and `end`.
        word_of: int64 RaggedTensor (N, L), the index of each token's word among the words of all texts.
        first: bool RaggedTensor (N, L), whether a token is the first of its word.
    """
    flat = words.flat_values
    if blanks:
        index = tf.ragged.range(words.row_lengths()).flat_values
        flat = tf.strings.join([tf.where(index == 0, "", " "), flat])
    pieces = tokenizer.tokenize(flat)
    ids = tf.RaggedTensor.from_row_splits(pieces, words.row_splits).merge_dims(1, 2)
    first = tf.ragged.range(pieces.row_lengths()).flat_values == 0
    return ids, ids.with_flat_values(pieces.value_rowids()), ids.with_flat_values(first)
