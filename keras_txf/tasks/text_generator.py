"""TextGenerator: continues texts, follows instructions,"""

import functools
from typing import Any, Self, Unpack

import keras

from keras_txf import checkpoints, checks, models, text, training
from keras_txf.checkpoints.option_tables import CheckpointOptions
from keras_txf.checks import bad_argument
from keras_txf.generation.option_tables import ExportOptions, TextOptions
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import target_name, token_input
from keras_txf.tasks.answers import (
    END_OF_MESSAGE,
    PLAIN_TEMPLATE,
    ROLE_TOKENS,
    Answers,
    conversations_of,
    end_ids,
    is_conversations,
    message_texts,
    render_each,
    required_template,
    template_of,
    with_end,
)
from keras_txf.tasks.columns import strings
from keras_txf.tasks.option_tables import FitOptions, GeneratorTaskOptions
from keras_txf.tasks.task import Path, Task
from keras_txf.text.chat_templates import find_chat_template, plain
from keras_txf.text.instruction import ChatReader
from keras_txf.text.lazy_imports import tf
from keras_txf.text.serving import stop_option


class TextGenerator(Task):
    """Continues texts, and answers prompts and conversations: a language model.

    Args:
        model: a model of `decoder_generator`, or of `generative`.
        tokenizer: tokenizer of the texts, whose `end` ends a text.
        max_length: the largest number of tokens of an example; default the number of positions of the model, or 512.
        learning_rate: default learning rate of `fit`.
        chat_template: the form of a conversation, a `txf.text.ChatTemplate` or a Jinja template, or None.

    Example:

    >>> lines = ["the cat sat on the mat", "the dog sat on the rug"] * 8
    >>> generator = txf.tasks.TextGenerator.from_scratch(lines, vocab_size=40, num_layers=1, dim=16)
    >>> history = generator.fit(lines, epochs=2, verbose=0)
    >>> isinstance(generator.generate("the cat", max_new_tokens=3), str)
    True
    """

    _metrics = "weighted_metrics"  # tokens of a prompt have no weight

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
        chat_template: Any = None,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self.chat_template = template_of(chat_template, tokenizer)
        # A prompt has no `end`.
        self._prompt_tokenizer = tokenizer.from_config({**tokenizer.get_config(), "end": [], "length": None})

    @classmethod
    @shows_options
    def from_scratch(
        cls,
        texts: Any,
        responses: Any = None,
        columns: Any = None,
        chat_template: Any = None,
        **options: Unpack[GeneratorTaskOptions],
    ) -> Self:
        """Makes an untrained generator, with a SentencePiece vocabulary of the texts.

        Args:
            texts, responses, columns: the texts, prompts and responses, or conversations to train on, see `fit`.
            chat_template: see `TextGenerator`. Conversations and a new vocabulary have a default template, with a
                special token for each role.
            {options}
        """
        read = cls._read(texts, [responses], columns, columns_of(responses, columns))
        for column in read[1:]:
            strings("responses", column)
        special = ("<pad>", "<unk>", "<s>", "</s>")
        if options["tokenizer"] is None and chat_template is None and is_conversations(read[0]):
            chat_template, special = PLAIN_TEMPLATE, (*special, *ROLE_TOKENS, END_OF_MESSAGE)
        ends = {"start": "<s>", "end": "</s>", "pad_token": "<pad>"}
        train = functools.partial(text.SentencePieceTokenizer.train, special_tokens=special, **ends)
        more = {"train": train, "position": "rotary", "chat_template": chat_template}
        return cls._from_scratch(models.decoder_generator, options, lambda: lines_of(read), **more)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(
        cls, path: Path, max_length: int | None = None, chat_template: Any = None, **options: Unpack[CheckpointOptions]
    ) -> Self:
        """Makes a generator of a Hugging Face checkpoint, with the chat template and the end token of its folder.

        Args:
            path: folder, or the name of a repository on the Hub.
            max_length: the largest number of tokens of an example.
            chat_template: a template instead of the folder's, see `TextGenerator`.
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        tokenizer = with_end(tokenizer, folder)
        model = checkpoints.load(folder, "causal_lm", **options)
        template = find_chat_template(folder) if chat_template is None else chat_template
        return cls(model, tokenizer, max_length, learning_rate=5e-5, chat_template=template)

    @shows_options
    def fit(self, texts: Any, responses: Any = None, **options: Unpack[FitOptions]) -> keras.callbacks.History:
        """Trains on texts, on prompts and responses, or on conversations. The logs have the perplexity of a token.

        A long text becomes several examples. For prompts with responses, and for conversations, the loss counts the
        answers alone, and `max_length` truncates: see `txf.text.instruction` and `txf.text.conversations`. With a chat
        template, prompts are messages of a user, for `chat`; without a template, prompts are for `generate`.

        Args:
            texts: list or column of strings, the path of a .txt file with a text in each line, or a table with the
                column "text": see `TextClassifier.fit`. With `responses` these are prompts. Or conversations: each is a
                list of messages {"role": "user", "content": "Hello!"}, or a dict of "messages" and "tools". In a .jsonl
                file conversations are the column that `columns` names.
            responses: list or column of strings. For a table, `columns=("prompt", "response")` or two other names.
            {options}

        Returns:
            Keras' history.

        Raises:
            ValueError: conversations that the chat template rejects, or no chat template for them; see
                `TextClassifier.fit`.
        """
        return self._fit(texts, [responses], options, names=columns_of(responses, options["columns"]))

    def evaluate(
        self, texts: Any, responses: Any = None, columns: Any = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Returns loss and perplexity per token of texts or answers, see `fit`."""
        return self._evaluate(texts, [responses], columns, batch_size, columns_of(responses, columns))

    @shows_options(defaults="elsewhere")
    def generate(
        self,
        texts: Any,
        max_new_tokens: int | None = None,
        sampler: Any = None,
        batch_size: int = 16,
        return_prompt: bool = False,
        stream: bool = False,
        verbose: int | str = "auto",
        **options: Unpack[TextOptions],
    ) -> Any:
        """Continues texts.

        Args:
            texts: a text, or a list of texts.
            max_new_tokens: the largest number of new tokens; default the checkpoint's, else the model's own.
            sampler: "greedy", "sampling", "beam", `txf.generation.Sampling(...)`, ...; default as for `max_new_tokens`.
            batch_size: number of texts, of similar length, in a call of the model's `generate`.
            return_prompt: whether the answer begins with the text.
            stream: whether to return an iterator of pieces of the answer, as they are generated: strings for one text,
                lists of strings for a list of texts. A piece ends with a whole character. Only pieces in a list may be
                empty.
            verbose: 0 shows no progress bar, 1 a bar from ten batches on, "auto" a bar in a terminal after a second.
            {options}

        The options are further options of the model's `generate`, with its defaults.

        Returns:
            The answer to a text, or a list of answers, without special tokens.

        Raises:
            ValueError: a text without a token, options that do not go together.
        """
        options = {**stop_option(self.tokenizer), "max_new_tokens": max_new_tokens, "sampler": sampler, **options}
        checks.boolean("return_prompt", return_prompt)
        answers = Answers(self.model, self._prompt_tokenizer, self.tokenizer, options, return_prompt)
        return answers(texts, batch_size, stream, verbose)

    @shows_options(defaults="elsewhere")
    def chat(
        self,
        messages: Any,
        max_new_tokens: int | None = None,
        sampler: Any = None,
        batch_size: int = 16,
        stream: bool = False,
        tools: Any = None,
        variables: dict[str, Any] | None = None,
        verbose: int | str = "auto",
        **options: Unpack[TextOptions],
    ) -> Any:
        """Answers a conversation, in the form of the chat template.

        Args:
            messages: a conversation, or a list of conversations. A conversation is a list of messages, such as {"role":
                "user", "content": "Hello!"}, or the text of a user's message. A special token in a message is ordinary
                text, unless the tokenizer has `special_tokens_in_text="keep"`.
            max_new_tokens, sampler, batch_size, stream: see `generate`.
            tools: list of dicts, the JSON schemas of functions that the model may call.
            variables: dict of further variables of the template, such as {"enable_thinking": False}.
            verbose: see `generate`.
            {options}

        The options are further options of the model's `generate`, with its defaults. By default `stop_ids` are the
        special token that ends an answer in the template, the template's `eos_token` and the tokenizer's `end`.

        Returns:
            The answer, which is the content of the assistant's next message; or a list of answers. With `stream` an
            iterator.

        Raises:
            ValueError: no chat template, or messages that the template rejects.

        Example:

        >>> messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat on the mat"}]
        >>> generator = txf.tasks.TextGenerator.from_scratch([messages] * 8, vocab_size=35, num_layers=1, dim=16)
        >>> history = generator.fit([messages] * 8, epochs=2, verbose=0)
        >>> isinstance(generator.chat("the cat", max_new_tokens=3), str)
        True
        """
        template = required_template(self.chat_template)
        reader = ChatReader(self.tokenizer, token_input(self.model, target_name(self.model)).pad_id)
        conversations, unpack = conversations_of(messages)
        are_dicts = isinstance(tools, (list, tuple)) and all(isinstance(tool, dict) for tool in tools)
        if tools is not None and not are_dicts:
            raise bad_argument("tools", "be a list of dicts", tools)
        if variables is not None and not isinstance(variables, dict):
            raise bad_argument("variables", "be a dict or None", variables)
        variables = reader.guard(plain("variables", {**(variables or {}), "tools": tools}))
        render = functools.partial(template.render, add_generation_prompt=True, **variables)
        prompts = unpack(render_each(lambda turns: render(reader.guard(plain("messages", turns))), conversations))
        ends = end_ids(template, self.tokenizer)
        options = {
            **({"stop_ids": ends} if ends else {}),
            "max_new_tokens": max_new_tokens,
            "sampler": sampler,
            **options,
        }
        answers = Answers(self.model, reader, self.tokenizer, options, False, joins=False)
        return answers(prompts, batch_size, stream, verbose)

    @shows_options(defaults="elsewhere")
    def export(self, folder: Path, overwrite: bool = False, **options: Unpack[ExportOptions]) -> None:
        """Writes a SavedModel from texts to the texts with their continuations.

        Args:
            folder, overwrite: see `txf.text.export`.
            {options}
        """
        text.export(self.model, self.tokenizer, folder, overwrite=overwrite, **options)

    def get_config(self) -> dict[str, Any]:
        template = None if self.chat_template is None else self.chat_template.get_config()
        return {**super().get_config(), "chat_template": template}

    def _checked(self, values):
        if len(values) == 1 and is_conversations(values[0]):
            required_template(self.chat_template)
            return values
        return [strings(name, column) for name, column in zip(("texts", "responses"), values)]

    def _examples(self, values):
        if len(values) == 2:
            return text.instruction(tuple(values), self.tokenizer, self.chat_template, self.max_length)
        if is_conversations(values[0]):
            return text.conversations(values[0], self.tokenizer, self.chat_template, self.max_length)
        examples = text.next_token(values[0], self.tokenizer, self.max_length)
        return examples.map(lambda ids, targets: (ids, targets, tf.ones(tf.shape(ids))))

    def _padding(self):
        return self._pad_id(), self._pad_id(), 0.0

    def _compilation(self):
        # Weights exclude padding, whose token may also end a text.
        return training.TokenCrossEntropy(pad_id=None), [training.Perplexity(pad_id=None)]

    def _save_beside(self, folder):
        if self.chat_template is not None:
            self.chat_template.save(folder)


def lines_of(columns):
    """Returns the texts of columns, for a vocabulary."""
    return strings("texts", [line for column in columns for line in message_texts(column)])


def columns_of(responses, columns):
    """Returns the names of the columns of `fit`: of texts or conversations, or of prompts and responses."""
    pairs = responses is not None or (isinstance(columns, (list, tuple)) and len(columns) == 2)
    return {"texts": "prompt", "responses": "response"} if pairs else {"texts": "text"}
