"""TextClassifier: one label for a text."""

import os
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checks, models, text
from keras_txf.checkpoints.labels import config_with_labels, labels_of
from keras_txf.checkpoints.option_tables import ClassifierCheckpointOptions
from keras_txf.layers.shown_options import shows_options, shows_overrides
from keras_txf.layers.token_input import logits_of
from keras_txf.tasks.columns import one_or_many, texts
from keras_txf.tasks.fit_options import FitOptions
from keras_txf.tasks.label_heads import load_classifier
from keras_txf.tasks.labels import MacroF1, label_list, numbers_of
from keras_txf.tasks.option_tables import SequenceTaskOptions
from keras_txf.tasks.task import Task
from keras_txf.tasks.tokens import builder_options, take_tokenizer, tokenizer_of, word_pieces_or


class TextClassifier(Task):
    """Gives each text one of the labels: sentiment, topic, spam.

    Args:
        model: a model of `encoder_classifier`, or one like it: ids (B, T) -> logits (B, C).
        tokenizer: tokenizer of the texts.
        labels: list of the C labels, strings, integers or booleans, in the order of the logits.
        max_length: truncates longer texts; default the number of positions of the model, or 512.
        learning_rate: default of `fit`.

    Raises:
        ValueError: labels that are not as many as the model's classes.

    Example:

    >>> texts, labels = ["good", "bad", "very good", "very bad"] * 4, ["+", "-", "+", "-"] * 4
    >>> classifier = txf.tasks.TextClassifier.from_scratch(texts, labels, vocab_size=60, num_layers=1, dim=16)
    >>> history = classifier.fit(texts, labels, epochs=20, verbose=0)
    >>> classifier.predict(["very good", "bad"])
    ['+', '-']
    """

    columns = {"texts": "text", "labels": "label"}

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        labels: Any,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self.labels = label_list(labels)
        classes = logits_of(self.model).shape[-1]
        if len(self.labels) != classes:
            raise ValueError(
                f"`labels` must be {classes}, one for each class of the model; received {len(self.labels)}."
            )

    @classmethod
    @shows_options
    def from_scratch(
        cls, texts: Any, labels: Any = None, columns: Any = None, **options: Unpack[SequenceTaskOptions]
    ) -> Self:
        """Makes an untrained classifier, with a WordPiece vocabulary of the texts.

        Args:
            texts, labels, columns: the texts to train on and their labels, see `fit`.
            {options}
        """
        tokenizer, vocab_size, max_length = take_tokenizer(options)
        texts, labels = cls._read(texts, [labels], columns)
        tokenizer = word_pieces_or(tokenizer, lambda: _checked(texts), vocab_size)
        labels = label_list(labels)
        model = models.encoder_classifier(
            tokenizer.vocab_size, len(labels), **builder_options(options, tokenizer, max_length)
        )
        return cls(model, tokenizer, labels, max_length)

    @classmethod
    @shows_overrides
    def from_checkpoint(
        cls,
        path: str | os.PathLike,
        labels: Any = None,
        max_length: int | None = None,
        **options: Unpack[ClassifierCheckpointOptions],
    ) -> Self:
        """Makes a classifier of a Hugging Face checkpoint; a new head where the checkpoint has none for these labels.

        Args:
            path: folder, or the name of a repository on the Hub.
            labels: list of the labels; default those of the checkpoint. Its head is kept where it has these labels, in
                their order or another, or as many without names ("LABEL_0").
            max_length: truncates longer texts.
            {options}
        """
        folder, tokenizer = tokenizer_of(path, options)
        known = labels_of(folder, "SequenceClassification")
        labels = known if labels is None else label_list(labels)
        if labels is None:
            raise ValueError("`labels` must be given: the checkpoint has no names of classes; received None.")
        model = load_classifier(folder, "sequence_classification", known, labels, options)
        return cls(model, tokenizer, labels, max_length, learning_rate=5e-5)

    @shows_options
    def fit(
        self, texts: Any, labels: Any = None, class_weight: Any = None, **options: Unpack[FitOptions]
    ) -> keras.callbacks.History:
        """Trains on labelled texts. The logs have loss, accuracy and macro F1, `val_f1` with held-out examples.

        Args:
            texts: list or column of strings; or a table of both columns: the path of a .csv, .tsv, .jsonl or .parquet
                file, a pandas data frame, a Hugging Face data set or a `tf.data.Dataset`, with the columns "text" and
                "label" unless `columns` says otherwise. The texts are read into memory.
            labels: list or column of labels. Those of a .csv or .tsv file are integers where all of them are, else
                strings.
            class_weight: dict of labels -> weight in the loss of an example with the label, 1 for those without; or
                "balanced": rare labels weigh as much as frequent ones.
            {options}

        Returns:
            Keras' history.

        Raises:
            ValueError: columns of different lengths, another label than those of the task.
        """
        return self._fit(texts, [labels], options, class_weight)

    def predict(
        self, texts: Any, batch_size: int = 32, return_probabilities: bool = False, verbose: int | str = 1
    ) -> Any:
        """Labels texts.

        Args:
            texts: a text, or a list of texts.
            batch_size: texts in a batch.
            return_probabilities: whether to return the probabilities float32 (N, C) in place of the labels.
            verbose: 0 shows no progress bar; it comes from ten batches on.

        Returns:
            The label of a text, or a list of labels.
        """
        checks.boolean("return_probabilities", return_probabilities)
        texts, back = one_or_many("texts", texts)
        return self._answers(self._ids(texts), batch_size, return_probabilities, verbose, back)

    def evaluate(self, texts: Any, labels: Any = None, columns: Any = None, batch_size: int = 32) -> dict[str, float]:
        """Returns loss, accuracy and macro F1 on labelled texts, see `fit`."""
        return self._evaluate(texts, [labels], columns, batch_size)

    def export(self, folder: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes a SavedModel from strings to labels and probabilities, see `txf.text.export`."""
        config = {**self.tokenizer.get_config(), "length": self.max_length}
        names = list(map(str, self.labels))
        text.export(self.model, self.tokenizer.from_config(config), folder, labels=names, overwrite=overwrite)

    def get_config(self) -> dict[str, Any]:
        return {"labels": self.labels, **super().get_config()}

    def _answers(self, examples, batch_size, return_probabilities, verbose, back):
        rows = self._probabilities(examples, batch_size, verbose)
        if return_probabilities:
            return back(np.stack(rows) if rows else np.zeros((0, len(self.labels)), "float32"))
        return back([self.labels[int(row.argmax())] for row in rows])

    def _checked(self, values):
        return [_checked(values[0]), numbers_of("labels", values[1], self.labels)]

    def _examples(self, values):
        return text.classification(tuple(values), self.tokenizer, len(self.labels), self.max_length)

    def _compilation(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy", MacroF1()]

    def _checkpoint_config(self):
        return config_with_labels(self.model, self.labels)


def _checked(values):
    return texts("texts", values)
