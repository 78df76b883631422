"""Generated answers to texts and to conversations, in batches of similar length or as a stream."""

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument
from keras_txf.disk import file_of, read_json
from keras_txf.generation.option_tables import default_stop_strings
from keras_txf.generation.prompts import REPLACEMENT, StopStrings, before_open_stop, before_stop, string_list
from keras_txf.tasks.columns import one_or_many
from keras_txf.tasks.fitting import batch_bar
from keras_txf.text.chat_templates import ChatTemplate, read_templates
from keras_txf.text.instruction import ChatReader, to_messages

# A new vocabulary has a special token for each role, and a token that ends a message.
ROLE_TOKENS = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))
END_OF_MESSAGE = "<|end|>"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Answers:
    """Generates the answers of a model to texts.

    Args:
        model: a model with `generate`.
        reader: the tokenizer of the texts.
        writer: the tokenizer of the answers.
        options: options of `generate`. An option that is None has the model's default.
        return_prompt: whether an answer begins with its text; None for a model that writes answers alone.
        joins: whether an answer continues the text. A blank between the two then belongs to the answer.
    """

    def __init__(self, model, reader, writer, options, return_prompt=None, joins=True):
        self.model, self.reader, self.writer = model, reader, writer
        self.options = {name: value for name, value in options.items() if value is not None}
        self.stops = string_list(self.options.get("stop_strings", default_stop_strings(model)))
        self.joins = joins
        self.return_prompt = return_prompt
        self.continues = return_prompt is not None
        start = options.get("start_id")
        self.starts = len(start) if isinstance(start, (list, tuple)) else int(start is not None)  # `generate` checks it
        for name in ("padded", "stream", "return_scores", "top_logprobs", "num_return_sequences", "tokenizer"):
            if name in options:
                call = "pass it with token ids to `task.model.generate`"
                raise bad_argument(name, f"not be given, as a task returns texts alone: {call}", options[name])

    def __call__(self, texts, batch_size, stream, verbose):
        """The answers, or an iterator of their pieces if `stream` is True."""
        return self.stream(texts) if checks.boolean("stream", stream) else self.all(texts, batch_size, verbose)

    def all(self, texts, batch_size, verbose):
        """The answer to a text, or a list of answers. For `verbose` see `batch_bar`."""
        texts, unpack = one_or_many("texts", texts)
        checks.positive_integer("batch_size", batch_size)
        rows, answers = self._read(texts), [None] * len(texts)
        order = np.argsort([len(row) for row in rows], kind="stable")
        for first in batch_bar(range(0, len(rows), batch_size), verbose):
            indices = order[first : first + batch_size]
            prompts = [rows[i] for i in indices]
            rows_of_ids = self._generate(prompts, padded=False)
            read = [self.starts + len(prompt) if self.continues else 0 for prompt in prompts]
            new = [list(ids[start:]) for ids, start in zip(rows_of_ids, read)]
            for index, text in zip(indices, self._write(new, prompts)):
                answers[index] = text
        return unpack(answers)

    def stream(self, texts):
        """Yields pieces of the answer to a text, or lists of pieces, some of them empty: whole characters."""
        texts, unpack = one_or_many("texts", texts)
        rows = self._read(texts)
        tokens = self._generate(rows, stream=True)

        def pieces():
            ids, shown = [[] for _ in rows], [""] * len(rows)
            before = self.writer.detokenize(rows) if self.continues and self.joins else None
            if self.return_prompt:
                shown = self._write(ids, rows, before)
                yield unpack(shown[:])
            for step in tokens:
                going = [row for row, token in enumerate(step) if token >= 0]
                for row in going:
                    ids[row].append(int(step[row]))
                new = [""] * len(rows)
                asked = [rows[row] for row in going], before and [before[row] for row in going]
                for row, text in zip(going, self._write([ids[row] for row in going], *asked, more=True)):
                    new[row] = whole_characters(text)[len(shown[row]) :]
                    shown[row] += new[row]
                if any(new):  # else within a character, or a special token
                    yield unpack(new)
            rest = [text[len(known) :] for text, known in zip(self._write(ids, rows, before), shown)]
            if any(rest):  # bytes that are not a character
                yield unpack(rest)

        return pieces()

    def _generate(self, rows, **form):
        """Returns the model's answers to rows of ids. Stop strings end an answer too."""
        stops = StopStrings(self.stops, lambda indices, ids: self._texts(ids, [rows[index] for index in indices])[1])
        options = {**self.options, "stop_strings": stops} if self.stops else self.options
        return self.model.generate(rows, **form, **options)

    def _read(self, texts):
        ids = self.reader(texts)
        rows = ids.to_list() if hasattr(ids, "to_list") else np.asarray(ids).tolist()
        rows = [[token for token in row if token != self.reader.pad_id] for row in rows]  # without padding
        for index, row in enumerate(rows):
            if not row:
                raise bad_argument("texts", "each have a token", texts[index], index)
        return rows

    def _write(self, rows, prompts, before=None, more=False):
        """Returns the texts of new ids, each up to its first stop string.

        With `before`, the texts of the prompts are known. With `more`, tokens may follow. A text then lacks an end that
        may begin a stop string.
        """
        written = []
        for before_text, text, whole in zip(*self._texts(rows, prompts, before)):
            kept = before_stop(text, self.stops)
            kept = before_open_stop(text, self.stops) if more and kept == text else kept
            if self.return_prompt:
                kept = whole if kept == text else before_text + kept
            written.append(kept)
        return written

    def _texts(self, rows, prompts, before=None):
        """Returns the texts of prompts, which may be known as `before`, of new ids, and of both together.

        A continuation is cut from the whole text, because a blank belongs to the token after it.
        """
        stop = self.options.get("stop_ids")
        ends = {stop} if isinstance(stop, int) else set(stop or ())
        rows = [[token for token in ids if token not in ends and token < self.writer.vocab_size] for ids in rows]
        if not self.continues or not self.joins:
            texts = self.writer.detokenize(rows)
            return [""] * len(rows), texts, texts
        both = [[*prompt, *ids] for prompt, ids in zip(prompts, rows)]
        before = self.writer.detokenize(prompts) if before is None else before
        whole = self.writer.detokenize(both)
        new = [text[len(prompt) :] if text.startswith(prompt) else None for prompt, text in zip(before, whole)]
        if None in new:
            alone = self.writer.detokenize(rows)
            new = [text if known is None else known for known, text in zip(new, alone)]
        return before, new, whole


def whole_characters(text):
    """Returns the text without the replacement characters at its end that may begin a character, three at most."""
    for _ in range(3):
        text = text.removesuffix(REPLACEMENT)
    return text


def template_of(value, tokenizer):
    """Returns the `ChatTemplate` of an argument, which may be its `get_config`, a Jinja template or None."""
    if value is None or isinstance(value, ChatTemplate):
        return value
    if isinstance(value, dict):
        try:
            return ChatTemplate.from_config(value)
        except TypeError as error:
            raise bad_argument("chat_template", "be the result of `get_config` if it is a dict", value) from error
    if not isinstance(value, str):
        raise bad_argument("chat_template", "be a txf.text.ChatTemplate, a Jinja template or None", value)
    tokens = {"bos_token": next(iter(tokenizer.start), None), "eos_token": next(iter(tokenizer.end), None),
              "pad_token": tokenizer.pad_token, "unk_token": tokenizer.unk_token}  # fmt: skip
    return ChatTemplate(value, {name: token for name, token in tokens.items() if token is not None})


def required_template(template):
    """Returns a template. Raises ValueError for None."""
    if template is None:
        must = (
            "be given to the task, or be in the folder of its checkpoint, for conversations: pass chat_template=, a "
            "Jinja template or `txf.text.chat_template(folder)`, to from_scratch, from_checkpoint or TextGenerator"
        )
        raise bad_argument("chat_template", must, None)
    return template


def is_conversations(values):
    """Whether a column holds conversations: lists of messages, or dicts of them."""
    return bool(values) and isinstance(values[0], (list, dict))


def message_texts(values):
    """Returns the texts of a column of texts or of conversations, for a vocabulary."""
    if not is_conversations(values):
        return values
    texts = []
    for index, conversation in enumerate(values):
        messages = conversation.get("messages") if isinstance(conversation, dict) else conversation
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise bad_argument("texts", "hold strings, or lists of messages", conversation, index)
        if not all("role" in message for message in messages):
            raise bad_argument("texts", "hold messages with 'role' and 'content'", messages, index)
        texts += [message["content"] for message in messages if isinstance(message.get("content"), str)]
    return texts


def conversations_of(messages):
    """Returns a list of conversations, and a function that unpacks the answer to a single conversation.

    Args:
        messages: a conversation, which is a text of a user or a list of messages; or a list of conversations.
    """
    is_list = isinstance(messages, (list, tuple)) and bool(messages)
    one = isinstance(messages, str) or (is_list and isinstance(messages[0], dict))
    if not one and not is_list:
        raise bad_argument(
            "messages", "be a text, a list of messages, or a list of texts or of lists of messages", messages
        )
    many = [messages] if one else messages
    many = [to_messages(conversation) if isinstance(conversation, str) else conversation for conversation in many]
    return many, (lambda answers: answers[0]) if one else (lambda answers: answers)


def render_each(render, conversations):
    """Renders conversations. An error names the conversation if there are several."""
    texts = []
    for index, conversation in enumerate(conversations):
        try:
            texts.append(render(conversation))
        except ValueError as error:
            if len(conversations) == 1:
                raise
            message = f"`messages` has a conversation at index {index} that cannot be rendered: {error}"
            raise ValueError(message) from error
    return texts


def end_ids(template, tokenizer):
    """Returns the ids of tokens that end an answer: the template's token after it, `eos_token`, `end`."""
    special, answer = tokenizer.special_tokens, "answer"
    ids = {special.get(token) for token in (template.special_tokens.get("eos_token"), *tokenizer.end[:1])}
    try:
        _, _, rest = template.render(to_messages("question", answer)).rpartition(answer)
    except ValueError:  # a template that needs more messages
        rest = ""
    after = ChatReader(tokenizer)([rest]).to_list()[0]
    ids.update([id for id in after if id in special.values()][:1])
    return sorted(ids - {None})


def with_end(tokenizer, folder):
    """Returns a tokenizer with an `end`: its own, or the end token of a checkpoint's folder."""
    if tokenizer.end:
        return tokenizer
    _, tokens = read_templates(folder)
    config = file_of(folder, "config.json")
    id = read_json(config).get("eos_token_id") if config.is_file() else None
    id = id[0] if isinstance(id, list) and id else id
    known = isinstance(id, int) and 0 <= id < tokenizer.vocab_size
    token = tokens.get("eos_token", tokenizer.id_to_token(id) if known else None)
    if token not in tokenizer.special_tokens:
        return tokenizer
    return tokenizer.from_config({**tokenizer.get_config(), "end": [token]})
