"""PairClassifier: one label or score for a pair of texts, read together."""

import os
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checks, models, text
from keras_txf.checkpoints.option_tables import ClassifierCheckpointOptions
from keras_txf.checkpoints.saved_config import config_with_labels, labels_of, problem_type_of
from keras_txf.checks import short_repr
from keras_txf.layers.shown_options import shows_options, shows_overrides
from keras_txf.layers.token_input import inputs_by_name, logits_of
from keras_txf.tasks.columns import numbers, one_or_many
from keras_txf.tasks.columns import texts as strings
from keras_txf.tasks.fit_options import FitOptions
from keras_txf.tasks.labels import MacroF1, label_list, load_classifier, numbers_of
from keras_txf.tasks.option_tables import SequenceTaskOptions
from keras_txf.tasks.pair_format import pair_format
from keras_txf.tasks.pair_task import PairTask
from keras_txf.tasks.problems import correlations
from keras_txf.tasks.tokens import builder_options, rows_of, take_tokenizer, tokenizer_of
from keras_txf.text.datasets import limit, longest_first, pair_row, separator_tokens, types_of_pair


class PairClassifier(PairTask):
    """Reads two texts together, a cross-encoder: entailment, paraphrase, and how well a text answers a query.

    Args:
        model: a model of `encoder_classifier`, or one like it: ids (B, T) -> logits (B, C), with the input
            `token_type_ids` where it has one.
        tokenizer: tokenizer of the texts.
        labels: list of the C labels; None for a score, a number, of a model with one logit. A score of labels that are
            0 or 1, or between, goes through a sigmoid.
        separator: special token between the texts, or a list of them; default the tokenizer's `end`.
        max_length: truncates the longer text of longer pairs; default the number of positions of the model, or 512.
        learning_rate: default of `fit`.

    Raises:
        ValueError: labels that are not as many as the model's classes.

    Example:

    >>> first, second = ["who sings", "who runs"] * 8, ["a singer", "a runner"] * 8
    >>> ranker = txf.tasks.PairClassifier.from_scratch(first, second, vocab_size=80, num_layers=1, dim=16)
    >>> history = ranker.fit(first + first, second + second[::-1], [1.0] * 16 + [0.0] * 16, epochs=2, verbose=0)
    >>> [text for text, score in ranker.rank("who sings", ["a runner", "a singer"])] != []
    True
    """

    columns = {"first": "first", "second": "second", "labels": "label"}

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        labels: Any = None,
        separator: Any = None,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self.labels = None if labels is None else label_list(labels)
        between = separator_tokens(self.tokenizer, separator)  # which refuses what is no special token
        limit(tokenizer, self.max_length, len(tokenizer.start) + len(between) + len(tokenizer.end), texts=2)
        self.separator = separator
        classes, needed = logits_of(self.model).shape[-1], 1 if labels is None else len(self.labels)
        if classes != needed:
            raise ValueError(
                f"`labels` must be one for each class of the model, {classes}; received {short_repr(labels)}."
            )
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
        tokenizer, vocab_size, max_length = take_tokenizer(options)
        tokenizer = cls._tokenizer_or(tokenizer, first, second, columns, vocab_size)
        labels = None if labels is None else label_list(labels)
        classes = 1 if labels is None else len(labels)
        model = models.encoder_classifier(
            tokenizer.vocab_size,
            classes,
            token_type_ids=True,
            token_types=2,
            **builder_options(options, tokenizer, max_length),
        )
        return cls(model, tokenizer, labels, max_length=max_length)

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
            labels: list of the labels; default those of the checkpoint, or a score where it has one class or none. See
                `TextClassifier.from_checkpoint`.
            max_length: truncates longer pairs.
            {options}
        """
        folder, tokenizer = tokenizer_of(path, options)
        known = labels_of(folder, "SequenceClassification")
        if labels is None and problem_type_of(folder, "SequenceClassification") == "multi_label_classification":
            raise ValueError("`labels` must be given: the checkpoint gives a text several labels; received None.")
        labels = known if labels is None else label_list(labels)
        labels = None if labels is not None and len(labels) == 1 else labels
        options, separator = pair_format(folder, options)
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
        """Trains on labelled pairs. The logs have accuracy and macro F1; of a score the correlations.

        Args:
            first, second: lists or columns of strings; or `first` alone a table of all three columns, "first",
                "second" and "label" unless `columns` says otherwise: see `TextClassifier.fit`.
            labels: list or column of labels; numbers for a score.
            class_weight: dict of labels -> weight in the loss, or "balanced".
            {options}

        Returns:
            Keras' history, with `val_f1` of held-out examples, or `val_spearman` and `val_pearson`.

        Raises:
            ValueError: columns of different lengths, another label than those of the task, weights for a score.
        """
        if class_weight is not None and self.labels is None:
            raise ValueError(f"`class_weight` must be None for a score; received {short_repr(class_weight)}.")
        return self._fit(first, [second, labels], options, class_weight)

    def evaluate(
        self, first: Any, second: Any = None, labels: Any = None, columns: Any = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Returns loss, accuracy and macro F1 on labelled pairs; of a score loss and correlations, see `fit`."""
        return self._evaluate(first, [second, labels], columns, batch_size)

    def predict(
        self, first: Any, second: Any, batch_size: int = 32, return_probabilities: bool = False, verbose: int | str = 1
    ) -> Any:
        """Labels or scores pairs.

        Args:
            first, second: a text each, or a list of texts each.
            batch_size: pairs in a batch.
            return_probabilities: whether to return the probabilities float32 (N, C) in place of the labels.
            verbose: 0 shows no progress bar; it comes from ten batches on.

        Returns:
            The label of a pair, or a list of labels; a score, or float32 (N,).
        """
        checks.boolean("return_probabilities", return_probabilities)
        first, second, back = _pairs_of(first, second)
        activation = keras.ops.sigmoid if self.labels is None else keras.ops.softmax
        rows = self._probabilities(self._pairs(first, second), batch_size, verbose, activation)
        if self.labels is None:
            return back(np.reshape(rows, -1).astype("float32"))
        if return_probabilities:
            return back(np.reshape(rows, (-1, len(self.labels))).astype("float32"))
        return back([self.labels[int(row.argmax())] for row in rows])

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
            List of (text, score): the score, or the probability of the last label.
        """
        checks.string("query", query)
        texts = strings("texts", texts)
        if not texts:
            return []
        scores = self.predict([query] * len(texts), texts, batch_size, True, verbose)
        scores = scores if self.labels is None else scores[:, -1]
        return [(texts[i], float(scores[i])) for i in np.argsort(-scores, kind="stable")]

    def export(self, folder: str | os.PathLike, overwrite: bool = False) -> None:
        """Writes a SavedModel from two texts to labels and probabilities, or to scores, see `txf.text.export`."""
        tokenizer = self.tokenizer.from_config({**self.tokenizer.get_config(), "length": self.max_length})
        names = None if self.labels is None else list(map(str, self.labels))
        text.export(
            self.model, tokenizer, folder, labels=names, overwrite=overwrite, pairs=True, separator=self.separator
        )

    def inputs(self, first: Any, second: Any) -> Any:
        """Returns what the model reads of pairs, for `model.predict` or `txf.visualize.attention_scores`.

        Args:
            first, second: a text each, or a list of texts each.

        Returns:
            Ids int32 (N, T), padded to the longest; for a model with token types a dict of `token_ids` and
            `token_type_ids`, each (N, T).
        """
        first, second, _ = _pairs_of(first, second)
        if not first:
            raise ValueError("`first` must hold a text at least; received none.")
        rows, padding = self._pairs(first, second), self._input_padding()
        if not self._token_types:
            return keras.utils.pad_sequences(rows, value=padding, padding="post")
        return {
            name: keras.utils.pad_sequences([row[name] for row in rows], value=value, padding="post")
            for name, value in padding.items()
        }

    def get_config(self) -> dict[str, Any]:
        return {"labels": self.labels, "separator": self.separator, **super().get_config()}

    def _pairs(self, first, second):
        """The inputs of the model for each pair, as `sentence_pairs` makes them."""
        separator = separator_tokens(self.tokenizer, self.separator)
        rows, before = pair_row(self.tokenizer, first, second, separator, self.max_length, longest_first)
        ids = rows_of(rows)
        if not self._token_types:
            return ids
        types = rows_of(types_of_pair(rows, before))
        return [{"token_ids": row, "token_type_ids": kind} for row, kind in zip(ids, types)]

    def _checked(self, values):
        first, second, labels = strings("first", values[0]), strings("second", values[1]), values[2]
        if self.labels is not None:
            return [first, second, numbers_of("labels", labels, self.labels)]
        try:
            scores = numbers("labels", labels)
        except ValueError as error:
            raise ValueError(f"{error} The task has no labels of its own, and learns a score.") from None
        if not 0 <= min(scores) <= max(scores) <= 1:
            raise ValueError(f"`labels` must be scores from 0 to 1; received {min(scores)} to {max(scores)}.")
        return [first, second, scores]

    def _examples(self, values):
        classes = None if self.labels is None else len(self.labels)
        return text.sentence_pairs(
            tuple(values), self.tokenizer, classes, self.max_length, self.separator, token_types=self._token_types
        )

    def _padding(self):
        return self._input_padding(), 0

    def _compilation(self):
        if self.labels is None:
            return keras.losses.BinaryCrossentropy(from_logits=True), []
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy", MacroF1()]

    def _scores(self, values, batch_size):
        if self.labels is not None:
            return {}
        first, second, scores = values
        return correlations(self.predict(first, second, batch_size, verbose=0), scores)

    def _checkpoint_config(self):
        return None if self.labels is None else config_with_labels(self.model, self.labels)


def _pairs_of(first, second):
    """Two lists of texts, and a function that gives the answer to one pair alone where there was one."""
    (first, back), (second, _) = one_or_many("first", first), one_or_many("second", second)
    if len(first) != len(second):
        raise ValueError(f"`second` must hold as many texts as `first`, {len(first)}; received {len(second)}.")
    return first, second, back
