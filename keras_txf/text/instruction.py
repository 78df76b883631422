"""Prompts with responses, and conversations, as examples with the loss on the answers alone.

Legend: C texts, M answers of all texts, L length in tokens.
"""

import re
from typing import Any

from keras_txf.checks import bad_argument, short_repr
from keras_txf.text.chat_templates import ChatTemplate, plain
from keras_txf.text.datasets import as_dataset, checked_tokenizer, in_chunks, limit
from keras_txf.text.examples import shifted
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import as_text, truncate
from keras_txf.text.tokenizer import Tokenizer, add_start_and_end

GUARD = "\ufdd2"  # breaks a special token of a message; Unicode reserves it for internal use


def instruction(
    dataset: Any, tokenizer: Tokenizer, template: ChatTemplate | None = None, max_length: int | None = None
) -> Any:
    """Makes examples of (prompt, response) for a language model, with the loss on the responses alone.

    Without a template a row is `start`, the prompt, the response, `end`, with nothing between prompt and response. A
    prompt such as "Translate: a dog\\nGerman:" asks for the answer itself.

    Args:
        dataset: `tf.data.Dataset` of (prompt, response), not batched; or the two columns in memory.
        tokenizer: a tokenizer, which adds its `start` and `end`. `end` has weight too, so that the model learns to
            stop.
        template: a chat template: prompts become messages of a user, responses become messages of the assistant, see
            `conversations`. A template needs the data set in memory.
        max_length: truncates longer rows at the tokenizer's `truncation_side`; default the tokenizer's `length`, if it
            is a number. An example that loses its whole response is left out.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), targets int32 (L,), weights float32 (L,)): the targets are the ids one
        position later; weights are 1 at targets of the response, else 0. `TokenCrossEntropy(pad_id=None)` takes them,
        `batch_by_length` makes batches, `pack` packs several examples into a row.

    Raises:
        ValueError: no elements, or elements other than (prompt, response); see also `conversations`.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> ((ids, targets, weights),) = txf.text.instruction((["ab"], ["c"]), tokenizer)
    >>> ids.numpy().tolist(), targets.numpy().tolist(), weights.numpy().tolist()
    ([100, 101, 102], [101, 102, 1], [0.0, 1.0, 1.0])
    """
    checked_tokenizer("tokenizer", tokenizer)
    limit(tokenizer, max_length)
    dataset = as_dataset(dataset, ["prompt", "response"])
    if template is not None:
        pairs = [[text.decode() for text in pair] for pair in dataset.as_numpy_iterator()]
        return conversations([to_messages(*pair) for pair in pairs], tokenizer, template, max_length)

    def example(prompts, responses):
        return answers_alone(tokenizer, *rows_of_responses(tokenizer, prompts, responses), max_length)

    return in_chunks(dataset, example, same_count=False)


def rows_of_responses(tokenizer, prompts, responses):
    """Returns the ids of prompts with their responses, and weights, 1 at the tokens of the responses: ragged (C, L)."""
    prompts, responses = tokenizer.tokenize(prompts), tokenizer.tokenize(responses)
    ids = add_start_and_end(tokenizer, tf.concat([prompts, responses], axis=1))
    before = prompts.row_lengths() + len(tokenizer.start)
    index = tf.ragged.range(ids.row_lengths()).flat_values
    return ids, ids.with_values(tf.cast(index >= tf.gather(before, ids.value_rowids()), tf.float32))


def conversations(
    dataset: Any, tokenizer: Tokenizer, template: ChatTemplate, max_length: int | None = None, **variables: Any
) -> Any:
    """Makes examples of conversations for a language model, with the loss on the answers of the assistant alone.

    The template's text is tokenized as a whole, with its special tokens and without the tokenizer's `start` and `end`;
    a special token in a message is text, unless the tokenizer has `special_tokens_in_text="keep"`, as in transformers.
    `ChatTemplate.render_answers` finds the answers. A token that is partly in an answer belongs to the answer.

    Args:
        dataset: list of conversations. A conversation is a list of messages, dicts of "role" and "content"; or a dict
            of "messages" and further variables of the template, such as "tools".
        tokenizer: a tokenizer.
        template: a chat template, such as `chat_template(folder)`.
        max_length: see `instruction`.
        **variables: `tools`, `documents` and variables of the template for all conversations.

    Returns:
        `tf.data.Dataset` of (ids, targets, weights), see `instruction`.

    Raises:
        ValueError: no conversations; a conversation that the template rejects, or without an answer; a template that
            does not mark answers, see `ChatTemplate.render_answers`.

    Example:

    >>> lines = "{% for message in messages %}{{ message.role[0] }}{{ message.content }}{% endfor %}"
    >>> template = txf.text.ChatTemplate(lines + "{% if add_generation_prompt %}a{% endif %}")
    >>> conversation = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    >>> ((ids, targets, weights),) = txf.text.conversations([conversation], txf.text.ByteTokenizer(), template)
    >>> bytes(targets.numpy().astype("uint8") - 3), weights.numpy().tolist()
    (b'bac', [0.0, 0.0, 1.0])
    """
    reader = ChatReader(checked_tokenizer("tokenizer", tokenizer))
    limit(tokenizer, max_length, 0)
    if not isinstance(template, ChatTemplate):
        raise bad_argument("template", "be a ChatTemplate", template)
    texts, starts, ends = rendered(dataset, template, reader, variables)
    dataset = tf.data.Dataset.from_tensor_slices((texts, tf.ragged.constant(starts), tf.ragged.constant(ends)))

    def example(texts, starts, ends):
        ids = reader(texts)
        return answers_alone(tokenizer, ids, inside(reader, texts, ids, starts, ends), max_length)

    return in_chunks(dataset, example, same_count=False)


def to_messages(prompt, response=None):
    """Returns the messages of a prompt, and of its response."""
    messages = [{"role": "user", "content": prompt}]
    return messages if response is None else [*messages, {"role": "assistant", "content": response}]


def rendered(dataset, template, reader, variables):
    """Renders conversations: a string tensor (C,), and lists of the first and last bytes of each text's answers."""
    if isinstance(dataset, (str, bytes, dict)) or not hasattr(dataset, "__len__") or not len(dataset):
        raise bad_argument("dataset", "be a list of conversations, at least one", dataset)
    texts, starts, ends = [], [], []
    for index, conversation in enumerate(dataset):
        own = conversation if isinstance(conversation, dict) else {"messages": conversation}
        try:
            own = reader.guard(plain("messages", {"messages": None, **variables, **own}))
            text, parts = template.render_answers(own.pop("messages"), **own)
        except ValueError as error:
            raise ValueError(
                f"`dataset` has a conversation at index {index} that cannot be rendered: {error}"
            ) from error
        parts = [part for part in parts if part[0] < part[1]]
        if not parts:
            raise bad_argument("dataset", "hold conversations with an answer of the assistant", text, index)
        texts.append(text)
        for bounds, side in ((starts, 0), (ends, 1)):
            bounds.append([len(text[: part[side]].encode("utf-8", "replace")) for part in parts])
    return as_text(texts, "`dataset`"), starts, ends


def inside(reader, texts, ids, starts, ends):
    """Marks the tokens of answers.

    A tokenizer does not tell where its tokens are in the text. The tokens that a beginning of the text has in common
    with the whole text are the tokens of this beginning.

    Args:
        texts: string (C,).
        ids: RaggedTensor (C, L), the tokens of the texts.
        starts, ends: RaggedTensor (C, number of answers), in bytes.

    Returns:
        float32 RaggedTensor (C, L).
    """
    row = starts.value_rowids()

    def tokens_before(limits):
        before = reader(tf.strings.substr(tf.gather(texts, row), tf.zeros_like(limits), limits))
        lengths, before, whole = before.row_lengths(), before.to_tensor(-1), tf.gather(ids, row).to_tensor(-2)
        width = tf.minimum(tf.shape(before)[1], tf.shape(whole)[1])
        common = tf.math.cumprod(tf.cast(before[:, :width] == whole[:, :width], tf.int64), axis=1)
        common = tf.reduce_sum(common, axis=1)
        return common, common < lengths

    first, _ = tokens_before(starts.values)
    last, is_within_token = tokens_before(ends.values)
    last = tf.maximum(first, last + tf.cast(is_within_token, tf.int64))
    begin = tf.gather(ids.row_starts(), row)
    indices = tf.concat([begin + first, tf.minimum(begin + last, tf.gather(ids.row_limits(), row))], 0)
    steps = tf.repeat([1, -1], tf.size(first))
    total = tf.cumsum(tf.scatter_nd(indices[:, None], steps, [tf.size(ids.values, tf.int64) + 1]))[:-1]
    return ids.with_values(tf.cast(total > 0, tf.float32))


def answers_alone(tokenizer, ids, weights, max_length):
    """Returns inputs, targets and weights of rows (C, L), without rows that have no weight."""
    length = limit(tokenizer, max_length, 0)
    if length is not None:  # the last token is only a target
        ids, weights = (truncate(rows, length + 1, tokenizer.truncation_side) for rows in (ids, weights))
    (ids, targets), (_, weights) = shifted(ids), shifted(weights)
    has_answer = tf.reduce_any(weights > 0, axis=1)
    return tuple(tf.ragged.boolean_mask(rows, has_answer) for rows in (ids, targets, weights))


class ChatReader:
    """Tokenizes the text of a chat template, without the tokenizer's `start` and `end`, which the template writes.

    Special tokens of the template stay whole. With `special_tokens_in_text="escape"`, special tokens in messages are
    ordinary text: `guard` breaks them up before the template sees them. A `BytePairTokenizer` then removes the breaks.
    Other tokenizers tokenize the text on both sides of a break separately; a message with a special token of one letter
    raises ValueError.

    Args:
        tokenizer: a tokenizer.
        pad_id: the id of padding in the model, or None.
    """

    def __init__(self, tokenizer, pad_id=None):
        whole = {"length": None, "start": [], "end": [], "special_tokens_in_text": "keep"}
        self.tokenizer = tokenizer.from_config({**tokenizer.get_config(), **whole})
        self.pad_id = pad_id
        escapes = tokenizer.special_tokens_in_text == "escape"
        self._splits = not (escapes and tokenizer._finds_special_tokens)
        if not self._splits:
            self.tokenizer.keep_special_tokens_without(GUARD)
        tokens = sorted(tokenizer.special_tokens if escapes else [], key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None

    def __call__(self, texts):
        """Returns the ids of texts (C,): int32 RaggedTensor (C, L)."""
        texts = as_text(texts)
        if not self._splits:
            return self.tokenizer.tokenize(texts)
        return self.tokenizer.tokenize(tf.strings.split(texts, GUARD)).merge_dims(1, 2)

    def guard(self, value):
        """Breaks up the special tokens in the strings of messages, or of other variables of a template."""
        if isinstance(value, str):
            whole = value.replace(GUARD, "")
            return whole if self._pattern is None else self._pattern.sub(self._broken, whole)
        if isinstance(value, dict):
            return {key: self.guard(inner) for key, inner in value.items()}
        return [self.guard(inner) for inner in value] if isinstance(value, list) else value

    def _broken(self, found):
        token = found[0]
        if self._splits and len(token) == 1:
            must = (
                f"not hold {short_repr(token)}, a special token of one letter, which no tokenizer but "
                "BytePairTokenizer breaks up"
            )
            raise bad_argument("messages", must, found.string)
        return token[:1] + GUARD + token[1:]
