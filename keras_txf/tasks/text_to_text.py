"""TextToText: answers a text with a text."""

import functools
from typing import Any, Self, Unpack

import keras

from keras_txf import checkpoints, models, text, training
from keras_txf.checkpoints.option_tables import CheckpointOptions
from keras_txf.disk import file_of
from keras_txf.generation.option_tables import ExportOptions, TextOptions
from keras_txf.layers.sequence_ends import Start
from keras_txf.layers.shown_options import shows_options
from keras_txf.tasks.answers import Answers
from keras_txf.tasks.columns import strings
from keras_txf.tasks.option_tables import FitOptions, TextToTextOptions
from keras_txf.tasks.task import Path, Task
from keras_txf.text.datasets import checked_tokenizer, limit
from keras_txf.text.serving import start_option, stop_option


class TextToText(Task):
    """Answers a text with a text: translation, summaries, corrections.

    Args:
        model: a model of `encoder_decoder`.
        tokenizer: tokenizer of the sources.
        target_tokenizer: tokenizer of the answers, with `start` and `end`; default `tokenizer`.
        max_length: truncates longer sources and targets; default the model's number of positions, or 512.
        learning_rate: default learning rate of `fit`.

    Example:

    >>> sources, targets = ["one dog", "two cats"] * 8, ["ein Hund", "zwei Katzen"] * 8
    >>> translator = txf.tasks.TextToText.from_scratch(sources, targets, vocab_size=40, num_layers=1, dim=16)
    >>> history = translator.fit(sources, targets, epochs=2, verbose=0)
    >>> isinstance(translator.generate("two dogs", max_new_tokens=3), str)
    True
    """

    columns = {"sources": "source", "targets": "target"}

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        target_tokenizer: Any = None,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self.target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
        target = checked_tokenizer("target_tokenizer", self.target_tokenizer, needs=("end",))
        added = len(target.start) + len(target.end) + (self._start_id() is not None)
        limit(target, self.max_length, added - 1)  # the last token is a target only

    @classmethod
    @shows_options
    def from_scratch(
        cls,
        sources: Any,
        targets: Any = None,
        columns: Any = None,
        target_tokenizer: Any = None,
        **options: Unpack[TextToTextOptions],
    ) -> Self:
        """Makes an untrained model, with a SentencePiece vocabulary for each side.

        Args:
            sources, targets, columns: the texts to train on, see `fit`.
            target_tokenizer: a tokenizer of the targets instead of a new one.
            {options}
        """
        read = cls._read(sources, [targets], columns)
        sources, targets = (strings(name, column) for name, column in zip(cls.columns, read))
        train = functools.partial(text.SentencePieceTokenizer.train, end="</s>")
        if target_tokenizer is None:
            target_tokenizer = train(targets, options["vocab_size"], start="<s>")
        size = checked_tokenizer("target_tokenizer", target_tokenizer).vocab_size
        own = options["decoder_options"]
        if own is None or isinstance(own, dict):
            options["decoder_options"] = {"pad_id": target_tokenizer.pad_id, **(own or {})}
        build = functools.partial(models.encoder_decoder, share_embeddings=False)
        more = {"train": train, "target_tokenizer": target_tokenizer}
        return cls._from_scratch(build, options, lambda: sources, size, **more)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(cls, path: Path, max_length: int | None = None, **options: Unpack[CheckpointOptions]) -> Self:
        """Makes a model of a Hugging Face checkpoint, with its tokenizer for both sides, or with Marian's two.

        Args:
            path: folder, or the name of a repository on the Hub.
            max_length: truncates longer texts.
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        model = checkpoints.load(folder, "seq2seq", **options)
        target = text.from_checkpoint(folder, target=True) if file_of(folder, "target.spm").is_file() else None
        return cls(model, tokenizer, target, max_length, learning_rate=5e-5)

    @shows_options
    def fit(self, sources: Any, targets: Any = None, **options: Unpack[FitOptions]) -> keras.callbacks.History:
        """Trains on pairs of texts. The logs have perplexity and token accuracy, and BLEU of held-out pairs.

        Args:
            sources, targets: lists or columns of strings. Or `sources` is a table of the columns "source" and "target",
                or of the names in `columns`: see `TextClassifier.fit`.
            {options}

        Returns:
            Keras' history.
        """
        return self._fit(sources, [targets], options)

    def evaluate(
        self, sources: Any, targets: Any = None, columns: Any = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Returns loss, perplexity, token accuracy, BLEU and chrF of greedy answers on pairs of texts, see `fit`."""
        return self._evaluate(sources, [targets], columns, batch_size)

    @shows_options(defaults="elsewhere")
    def generate(
        self,
        texts: Any,
        max_new_tokens: int | None = None,
        sampler: Any = None,
        batch_size: int = 16,
        stream: bool = False,
        verbose: int | str = "auto",
        **options: Unpack[TextOptions],
    ) -> Any:
        """Answers texts.

        Args:
            texts, max_new_tokens, sampler, batch_size, stream, verbose: see `TextGenerator.generate`.
            {options}

        Returns:
            The answer to a text, or a list of answers, without special tokens.
        """
        options = {"max_new_tokens": max_new_tokens, "sampler": sampler, **self._ends(), **options}
        return Answers(self.model, self._reader(), self.target_tokenizer, options)(texts, batch_size, stream, verbose)

    @shows_options(defaults="elsewhere")
    def export(self, folder: Path, overwrite: bool = False, **options: Unpack[ExportOptions]) -> None:
        """Writes a SavedModel from texts to answers.

        Args:
            folder, overwrite: see `txf.text.export`.
            {options}
        """
        text.export(self.model, self._reader(), folder, self.target_tokenizer, overwrite=overwrite, **options)

    def _ends(self):
        """Returns `stop_ids`, and `start_id` for a model that does not begin answers itself."""
        return start_option(self.model, self.target_tokenizer) | stop_option(self.target_tokenizer)

    def _start_id(self):
        return next((layer.start_id for layer in self.model.layers if isinstance(layer, Start)), None)

    def _reader(self):
        length = self.max_length if self.tokenizer.pad_id is not None else None
        return self.tokenizer.from_config({**self.tokenizer.get_config(), "length": length})

    def _examples(self, values):
        start_id = self._start_id()
        return text.translation(tuple(values), self.tokenizer, self.target_tokenizer, self.max_length, start_id)

    def _padding(self):
        ids = self.target_tokenizer.pad_id
        return {"source_ids": self._pad_id(), "target_ids": 0 if ids is None else ids}, self._ignored()

    def _ignored(self):
        """Returns the target of padding."""
        return -100 if self.target_tokenizer.pad_id is None else self.target_tokenizer.pad_id

    def _compilation(self):
        pad_id = self._ignored()
        metrics = [training.TokenAccuracy(pad_id=pad_id), training.Perplexity(pad_id=pad_id)]
        return training.TokenCrossEntropy(pad_id=pad_id, label_smoothing=0.1), metrics

    def _scores(self, values, batch_size):
        sources = [row.tolist() for row in self._ids(values[0])]
        scores = training.GenerationScores(
            sources, values[1], self.target_tokenizer, batch_size=batch_size, prefix="",
            max_length=min(self.max_length, 128), **self._ends(),
        )  # fmt: skip
        return scores.score(self.model)
