"""PairClassifier: one label or score for a pair of texts, read together."""

import functools
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checks, models, text
from keras_txf.checkpoints.option_tables import ClassifierCheckpointOptions
from keras_txf.checkpoints.saved_config import labels_of, problem_type_of
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import inputs_by_name
from keras_txf.tasks import pairs
from keras_txf.tasks.columns import strings
from keras_txf.tasks.fitting import rows_of
from keras_txf.tasks.labels import OneLabel, Score, label_list, load_classifier
from keras_txf.tasks.option_tables import FitOptions, SequenceTaskOptions
from keras_txf.tasks.task import Path
from keras_txf.tasks.text_classifier import Classifier
from keras_txf.text.datasets import longest_first, pair_row, separator_tokens, types_of_pair


class PairClassifier(Classifier):
    """A cross-encoder, which reads two texts together: entailment, paraphrase, relevance of a text to a query.

    Args:
        model: a model of `encoder_classifier`, or one like it: ids (B, T) -> logits (B, C), perhaps with a second input
            `token_type_ids`.
        tokenizer: tokenizer of the texts.
        labels: list of the C labels; None for a score from 0 to 1, the sigmoid of a model's single logit.
        separator: special token between the texts, or a list of them; default the tokenizer's `end`.
        max_length: truncates the longer text of longer pairs; default the number of positions of the model, or 512.
        learning_rate: default learning rate of `fit`.

    Raises:
        ValueError: another number of labels than the model has classes.

    Example:

    >>> first, second = ["who sings", "who runs"] * 8, ["a singer", "a runner"] * 8
    >>> ranker = txf.tasks.PairClassifier.from_scratch(first, second, vocab_size=80, num_layers=1, dim=16)
    >>> history = ranker.fit(first + first, second + second[::-1], [1.0] * 16 + [0.0] * 16, epochs=2, verbose=0)
    >>> [text for text, score in ranker.rank("who sings", ["a runner", "a singer"])] != []
    True
    """

    columns = {"first": "first", "second": "second", "labels": "label"}
    _options = ("labels", "separator")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        labels: Any = None,
        separator: Any = None,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
    ):
        problem = Score() if labels is None else OneLabel()
        super().__init__(model, tokenizer, labels, problem, max_length, learning_rate)
        pairs.special_tokens(self.tokenizer, separator, self.max_length)
        self.separator = separator
        self._token_types = "token_type_ids" in inputs_by_name(model)

    @classmethod
    @shows_options
    def from_scratch(
        cls,
        first: Any,
        second: Any = None,
        labels: Any = None,
        columns: Any = None,
        **options: Unpack[SequenceTaskOptions],
    ) -> Self:
        """Makes an untrained classifier of pairs, with a WordPiece vocabulary of the texts.

        Args:
            first, second, columns: the texts to train on, see `fit`.
            labels: list of the labels; None for a score.
            {options}
        """
        texts = pairs.texts_of_pairs(cls, first, second, columns)
        labels = None if labels is None else label_list(labels)
        build = functools.partial(models.encoder_classifier, **pairs.TOKEN_TYPES)
        return cls._from_scratch(build, options, lambda: texts, len(labels or [None]), labels=labels)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(
        cls,
        path: Path,
        labels: Any = None,
        max_length: int | None = None,
        **options: Unpack[ClassifierCheckpointOptions],
    ) -> Self:
        """Makes a classifier of a Hugging Face checkpoint, with a new head if the checkpoint has other labels.

        Args:
            path: folder, or the name of a repository on the Hub.
            labels: list of the labels; default the checkpoint's labels, or a score if it has at most one class. See
                `TextClassifier.from_checkpoint`.
            max_length: truncates longer pairs.
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        known = labels_of(folder, "SequenceClassification")
        if labels is None and problem_type_of(folder, "SequenceClassification") == "multi_label_classification":
            raise ValueError("`labels` must be given: the checkpoint gives a text several labels; received None.")
        labels = known if labels is None else label_list(labels)
        labels = None if labels is not None and len(labels) == 1 else labels
        options, separator = pairs.pair_format(folder, options)
        model = load_classifier(folder, "sequence_classification", known, labels, options)
        return cls(model, tokenizer, labels, separator, max_length, learning_rate=5e-5)

    @shows_options
    def fit(
        self,
        first: Any,
        second: Any = None,
        labels: Any = None,
        class_weight: Any = None,
        **options: Unpack[FitOptions],
    ) -> keras.callbacks.History:
        """Trains on labelled pairs. The logs have accuracy and macro F1, or the correlations of scores.

        Args:
            first, second: lists or columns of strings. Or `first` is a table of the columns "first", "second" and
                "label", or of the names in `columns`: see `TextClassifier.fit`.
            labels: list or column of labels; numbers for a score.
            class_weight: dict of labels -> weight in the loss, or "balanced".
            {options}

        Returns:
            Keras' history, with `val_f1`, or `val_spearman` and `val_pearson`, on held-out examples.

        Raises:
            ValueError: columns of different lengths, a label that the task does not have, weights for a score.
        """
        return self._fit(first, [second, labels], options, class_weight)

    def evaluate(
        self, first: Any, second: Any = None, labels: Any = None, columns: Any = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Returns loss, accuracy and macro F1 on labelled pairs, or loss and correlations of scores, see `fit`."""
        return self._evaluate(first, [second, labels], columns, batch_size)

    def predict(
        self, first: Any, second: Any, batch_size: int = 32, return_probabilities: bool = False, verbose: int | str = 1
    ) -> Any:
        """Labels or scores pairs.

        Args:
            first, second: two texts, or two lists of texts.
            batch_size: pairs in a batch.
            return_probabilities: whether to return the probabilities float32 (N, C) instead of the labels.
            verbose: 0 shows no progress bar, 1 shows a bar from ten batches on.

        Returns:
            The label of a pair, or a list of labels. Without labels the score of a pair, or float32 (N,).
        """
        checks.boolean("return_probabilities", return_probabilities)
        first, second, unpack = pairs.paired_texts(first=first, second=second)
        return unpack(self._answers(self._pairs(first, second), batch_size, return_probabilities, verbose))

    def rank(
        self, query: str, texts: Any, batch_size: int = 32, verbose: int | str = "auto"
    ) -> list[tuple[str, float]]:
        """Orders texts by how well each answers a query, the best first.

        Args:
            query: a text.
            texts: list of texts.
            batch_size: pairs in a batch.
            verbose: 0 shows no progress bar, 1 a bar from ten batches on, "auto" a bar in a terminal after a second.

        Returns:
            List of (text, score). The score of a task with labels is the probability of the last label.
        """
        checks.string("query", query)
        texts = strings("texts", texts)
        if not texts:
            return []
        scores = self.predict([query] * len(texts), texts, batch_size, True, verbose)
        scores = scores if self.labels is None else scores[:, -1]
        return [(texts[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")]

    def export(self, folder: Path, overwrite: bool = False) -> None:
        """Writes a SavedModel from two texts to labels and probabilities, or to scores, see `txf.text.export`."""
        self._export(folder, overwrite, pairs=True, separator=self.separator)

    def inputs(self, first: Any, second: Any) -> Any:
        """Returns the model's inputs for pairs, for `model.predict` or `txf.visualize.attention_scores`.

        Args:
            first, second: two texts, or two lists of texts.

        Returns:
            Ids int32 (N, T), padded to the longest; for a model with token types a dict of `token_ids` and
            `token_type_ids`, each (N, T).
        """
        first, second, _ = pairs.paired_texts(first=first, second=second)
        if not first:
            raise ValueError("`first` must hold at least one text; received none.")
        rows, padding = self._pairs(first, second), self._input_padding()
        pad = functools.partial(keras.utils.pad_sequences, padding="post")
        if not self._token_types:
            return pad(rows, value=padding)
        return {name: pad([row[name] for row in rows], value=value) for name, value in padding.items()}

    def _pairs(self, first, second):
        """Returns the model's inputs for each pair, as `sentence_pairs` makes them."""
        separator = separator_tokens(self.tokenizer, self.separator)
        rows, before = pair_row(self.tokenizer, first, second, separator, self.max_length, longest_first)
        ids = rows_of(rows)
        if not self._token_types:
            return ids
        types = rows_of(types_of_pair(rows, before))
        return [{"token_ids": row, "token_type_ids": type_ids} for row, type_ids in zip(ids, types)]

    def _examples(self, values):
        classes = None if self.labels is None else len(self.labels)
        return text.sentence_pairs(
            tuple(values), self.tokenizer, classes, self.max_length, self.separator, token_types=self._token_types
        )
