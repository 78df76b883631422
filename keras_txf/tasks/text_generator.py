"""TextGenerator: continues texts."""

import os
from typing import Any, Self, Unpack

import keras

from keras_txf import checkpoints, models, text, training
from keras_txf.layers.option_tables import shows_options
from keras_txf.tasks.answers import Answers, stop_ids_of
from keras_txf.tasks.columns import read_columns, texts
from keras_txf.tasks.task import FitOptions, Task, tokenizer_of


class TextGenerator(Task):
    """Continues texts: a language model.

    Args:
        model: a model of `decoder_generator`, or of `generative`.
        tokenizer: tokenizer of the texts; its `end` ends a text.
        max_length: the largest number of tokens of an example; default the number of positions of the model, or 512.
        learning_rate: default of `fit`.

    Example:

    >>> lines = ["the cat sat on the mat", "the dog sat on the rug"] * 8
    >>> generator = txf.tasks.TextGenerator.from_scratch(lines, vocab_size=40, num_layers=1, dim=16)
    >>> history = generator.fit(lines, epochs=2, verbose=0)
    >>> isinstance(generator.generate("the cat", max_new_tokens=3), str)
    True
    """

    columns = ("text",)

    def __init__(self, model: keras.Model, tokenizer: Any, max_length: int | None = None, learning_rate: float = 1e-3):
        super().__init__(model, tokenizer, max_length, learning_rate)
        # A prompt has no `end`.
        self._prompt_tokenizer = tokenizer.from_config({**tokenizer.get_config(), "end": [], "length": None})

    @classmethod
    def from_scratch(
        cls,
        texts: Any,
        columns: Any = ("text",),
        vocab_size: int = 8000,
        num_layers: int = 4,
        dim: int = 256,
        num_heads: int = 4,
        tokenizer: Any = None,
        max_length: int = 256,
        position: Any = "rotary",
        norm_placement: str = "pre",
        **options: Any,
    ) -> Self:
        """Makes an untrained generator, with a SentencePiece vocabulary of the texts.

        Args:
            texts, columns: the texts to train on, see `fit`.
            vocab_size: the largest number of tokens.
            num_layers, dim, num_heads, position, norm_placement: of `txf.models.decoder_generator`.
            tokenizer: a tokenizer in place of a new one.
            max_length: the largest number of tokens of an example.
            **options: further options of `decoder_generator`.
        """
        [texts] = read_columns(texts, [], {"texts": columns if isinstance(columns, str) else columns[0]})
        if tokenizer is None:
            tokenizer = text.SentencePieceTokenizer.train(
                _checked(texts), vocab_size, start="<s>", end="</s>", pad_token="<pad>"
            )
        model = models.decoder_generator(
            tokenizer.vocab_size, num_layers, dim, num_heads, position=position, norm_placement=norm_placement,
            pad_id=tokenizer.pad_id, **options,
        )  # fmt: skip
        return cls(model, tokenizer, max_length)

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike, max_length: int | None = None, **options: Any) -> Self:
        """Makes a generator of a Hugging Face checkpoint.

        Args:
            path: folder, or the name of a repository on the Hub.
            max_length: the largest number of tokens of an example.
            **options: of `txf.checkpoints.load`.
        """
        folder, tokenizer = tokenizer_of(path)
        model = checkpoints.load(folder, "causal_lm", **options)
        return cls(model, tokenizer, max_length, learning_rate=5e-5)

    @shows_options
    def fit(self, texts: Any, **options: Unpack[FitOptions]) -> keras.callbacks.History:
        """Trains on texts; a long one becomes several examples. The logs have the perplexity of a token.

        Args:
            texts: list or column of strings, or a table with the column "text": see `TextClassifier.fit`.
            {options}

        Returns:
            Keras' history.
        """
        return self._fit(texts, [], options)

    def generate(
        self,
        texts: Any,
        max_new_tokens: int = 64,
        sampler: Any = "greedy",
        batch_size: int = 16,
        return_prompt: bool = False,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """Continues texts.

        Args:
            texts: a text, or a list of texts.
            max_new_tokens: at most so many tokens are added.
            sampler: as of the model's `generate`: "greedy", "sampling", "beam", `txf.generation.Sampling(...)`, ...
            batch_size: texts of similar length in a call of the model's `generate`.
            return_prompt: whether the answer begins with the text.
            stream: returns an iterator of the pieces of the answer as they are generated: strings of one text, lists of
                strings of a list of texts. A piece ends with a whole character.
            **options: further options of the model's `generate`, such as `seed`, `processors`, `stop_ids`.

        Returns:
            The answer to a text, or a list of answers, without special tokens.

        Raises:
            ValueError: a text without a token, options that do not go together.
        """
        options = {**stop_ids_of(self.tokenizer), "max_new_tokens": max_new_tokens, "sampler": sampler, **options}
        answers = Answers(self.model, self._prompt_tokenizer, self.tokenizer, options, return_prompt)
        return answers.stream(texts) if stream else answers.all(texts, batch_size)

    def export(self, folder: str | os.PathLike, overwrite: bool = False, **options: Any) -> None:
        """Writes a SavedModel from texts to what follows them.

        Args:
            folder, overwrite: see `txf.text.export`.
            **options: of the model's `generate`, such as `max_new_tokens`, `sampler`.
        """
        text.export(self.model, self.tokenizer, folder, overwrite=overwrite, **options)

    def _checked(self, values):
        return [_checked(values[0])]

    def _examples(self, values):
        return text.next_token(values[0], self.tokenizer, self.max_length)

    def _padding(self):
        return self._pad_id(), self._pad_id()

    def _compilation(self):
        pad_id = self.tokenizer.pad_id
        return training.TokenCrossEntropy(pad_id=pad_id), [training.Perplexity(pad_id=pad_id)]


def _checked(values):
    return texts("texts", values)
