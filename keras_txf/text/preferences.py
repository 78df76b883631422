"""Prompts with a chosen and a rejected answer, as examples for a loss of preferences.

Legend: C examples, L length in tokens.
"""

from typing import Any

from keras_txf.checks import bad_argument
from keras_txf.text.chat_templates import ChatTemplate
from keras_txf.text.datasets import as_dataset, checked_tokenizer, in_chunks, limit
from keras_txf.text.instruction import ChatReader, inside, rendered, rows_of_responses, to_messages
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import truncate
from keras_txf.text.tokenizer import Tokenizer


def preferences(
    dataset: Any, tokenizer: Tokenizer, template: ChatTemplate | None = None, max_length: int | None = None
) -> Any:
    """Makes examples of (prompt, chosen, rejected) for `txf.training.preference_model`.

    Each example has two rows: the prompt with the chosen answer, and the prompt with the rejected answer. Without a
    template a row is `start`, the prompt, the answer, `end`, as in `instruction`.

    Args:
        dataset: `tf.data.Dataset` of (prompt, chosen, rejected), not batched; or the three columns in memory.
        tokenizer: a tokenizer, which adds its `start` and `end`. `end` belongs to the answer.
        template: a chat template: prompts become messages of a user, answers become messages of the assistant, see
            `conversations`. A template needs the data set in memory.
        max_length: truncates longer rows at the tokenizer's `truncation_side`; default the tokenizer's `length`, if it
            is a number. An example that loses a whole answer is left out.

    Returns:
        `tf.data.Dataset` of dicts: `token_ids`, int32 (2, L), padded on the right with the tokenizer's `pad_id` or 0,
        and `answer_mask`, bool (2, L), True at the tokens of the answers. `padded_batch(8)` makes batches, because
        padding on the right does not change the log-probabilities of the answers. `counted` counts the batches.

    Raises:
        ValueError: no elements, or elements other than (prompt, chosen, rejected); see also `conversations`.

    Example:

    >>> (pair,) = txf.text.preferences((["ab"], ["c"], ["de"]), txf.text.ByteTokenizer(end="</s>"))
    >>> pair["token_ids"].numpy().tolist()
    [[100, 101, 102, 1, 0], [100, 101, 103, 104, 1]]
    >>> pair["answer_mask"].numpy().astype(int).tolist()
    [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    """
    checked_tokenizer("tokenizer", tokenizer)
    length = limit(tokenizer, max_length)
    dataset = as_dataset(dataset, ["prompt", "chosen", "rejected"])
    if template is None:

        def rows(prompts, *answers):
            return [rows_of_responses(tokenizer, prompts, column) for column in answers]

    else:
        dataset, rows = _with_template(dataset, tokenizer, template)

    def example(*columns):
        pair = [[truncate(x, length, tokenizer.truncation_side) for x in row] for row in rows(*columns)]
        # No model predicts the first token of a row.
        chosen, rejected = (tf.reduce_any(weights[:, 1:] > 0, axis=1) for _, weights in pair)
        return tuple(tf.ragged.boolean_mask(x, chosen & rejected) for row in pair for x in row)

    def as_pair(ids, weights, other_ids, other_weights):
        ids, weights = tf.ragged.stack([ids, other_ids]), tf.ragged.stack([weights, other_weights])  # (2, L)
        return {"token_ids": ids.to_tensor(tokenizer.pad_id or 0), "answer_mask": weights.to_tensor() > 0}

    return in_chunks(dataset, example, same_count=False).map(as_pair)


def _with_template(dataset, tokenizer, template):
    """Returns a data set of rendered texts with the places of answers, and the function that makes rows of them."""
    if not isinstance(template, ChatTemplate):
        raise bad_argument("template", "be a ChatTemplate or None", template)
    reader = ChatReader(tokenizer)
    prompts, *answers = zip(*([text.decode() for text in row] for row in dataset.as_numpy_iterator()))
    parts = []
    for column in answers:
        texts, starts, ends = rendered([to_messages(*pair) for pair in zip(prompts, column)], template, reader, {})
        parts += [texts, tf.ragged.constant(starts), tf.ragged.constant(ends)]

    def rows(*columns):
        found = []
        for texts, starts, ends in (columns[:3], columns[3:]):
            ids = reader(texts)
            found.append((ids, inside(reader, texts, ids, starts, ends)))
        return found

    return tf.data.Dataset.from_tensor_slices(tuple(parts)), rows
