"""TextClassifier: a label, several labels or a number for a text; and Classifier, the base of PairClassifier too."""

import functools
from typing import Any, Self, Unpack

import keras

from keras_txf import checks, models
from keras_txf.checkpoints.option_tables import ClassifierCheckpointOptions
from keras_txf.checkpoints.saved_config import config_with_labels, labels_of, problem_type_of
from keras_txf.checks import bad_argument
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import logits_of
from keras_txf.tasks.columns import one_or_many, strings
from keras_txf.tasks.labels import SeveralLabels, load_classifier, problem_of
from keras_txf.tasks.option_tables import FitOptions, SequenceTaskOptions
from keras_txf.tasks.task import Path, Task


class Classifier(Task):
    """A task whose model returns logits (C,) for a text, or for a pair of texts.

    Args:
        model, tokenizer, max_length, learning_rate: see `Task`.
        labels: list of the C labels; None for a number.
        problem: the type of a prediction: `OneLabel()`, `SeveralLabels()`, `Number()` or `Score()`.
    """

    def __init__(self, model, tokenizer, labels, problem, max_length, learning_rate):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self._problem = problem
        self.labels = problem.checked_labels(labels)
        classes, needed = logits_of(self.model).shape[-1], len(self.labels or [None])
        if needed != classes:
            raise bad_argument("labels", f"be {classes}, one for each class of the model", needed)

    def _fit(self, data, others, options, class_weight=None, names=None):
        if class_weight is not None and not self._problem.has_class_weight:
            raise bad_argument("class_weight", f"be None for {self._problem.name}", class_weight)
        return super()._fit(data, others, options, class_weight, names)

    def _answers(self, examples, batch_size, return_probabilities, verbose):
        rows = self._probabilities(examples, batch_size, verbose, self._problem.activation)
        answers = self._problem.probabilities if return_probabilities else self._problem.answers
        return answers(rows, self.labels)

    def _checked(self, values):
        return [*super()._checked(values[:-1]), self._problem.targets(values[-1], self.labels)]

    def _padding(self):
        return self._input_padding(), self._problem.padding

    def _compilation(self):
        return self._problem.compilation()

    def _scores(self, values, batch_size):
        predict = functools.partial(self.predict, *values[:-1], batch_size=batch_size, verbose=0)
        return self._problem.scores(predict, values[-1], self.labels)


class TextClassifier(Classifier):
    """Predicts a label of each text (sentiment, topic, spam), several labels, or a number.

    Args:
        model: a model of `encoder_classifier`, or one like it: ids (B, T) -> logits (B, C).
        tokenizer: tokenizer of the texts.
        labels: list of the C labels, strings, integers or booleans, in the order of the logits; None for a number and a
            model with one logit.
        max_length: truncates longer texts; default the model's number of positions, or 512.
        learning_rate: default learning rate of `fit`.
        problem_type: "single_label_classification", one label for a text; "multi_label_classification", any number of
            labels, each with the sigmoid of its logit; or "regression", a number, the logit. As in transformers.
        thresholds: of several labels: a text has a label if the label's probability is above 0.5, above this number, or
            above the number for the label in this list of C numbers. Also an attribute that can be set after training:
            `predict`, `evaluate`, `save` and `export` use it.

    Raises:
        ValueError: another number of labels than the model has classes, labels for a number.

    Example:

    >>> texts, labels = ["good", "bad", "very good", "very bad"] * 4, ["+", "-", "+", "-"] * 4
    >>> classifier = txf.tasks.TextClassifier.from_scratch(texts, labels, vocab_size=60, num_layers=1, dim=16)
    >>> history = classifier.fit(texts, labels, epochs=20, verbose=0)
    >>> classifier.predict(["very good", "bad"])
    ['+', '-']
    """

    columns = {"texts": "text", "labels": "label"}
    _options = ("labels", "problem_type", "thresholds")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        labels: Any,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
        problem_type: str = "single_label_classification",
        thresholds: Any = None,
    ):
        super().__init__(model, tokenizer, labels, problem_of(problem_type), max_length, learning_rate)
        self.problem_type = problem_type
        self.thresholds = thresholds

    @property
    def thresholds(self) -> list[float] | None:
        """The probability above which a text has a label, for each label; None for 0.5."""
        return getattr(self._problem, "thresholds", None)

    @thresholds.setter
    def thresholds(self, thresholds):
        thresholds = self._problem.checked_thresholds(thresholds, self.labels)
        if self.problem_type == "multi_label_classification":
            self._problem = SeveralLabels(thresholds)

    @classmethod
    @shows_options
    def from_scratch(
        cls,
        texts: Any,
        labels: Any = None,
        columns: Any = None,
        problem_type: str = "single_label_classification",
        **options: Unpack[SequenceTaskOptions],
    ) -> Self:
        """Makes an untrained classifier, with a WordPiece vocabulary of the texts.

        Args:
            texts, labels, columns: the texts to train on and their labels, see `fit`.
            problem_type: see the class.
            {options}
        """
        problem = problem_of(problem_type)
        texts, labels = cls._read(texts, [labels], columns)
        labels, corpus = problem.labels(labels), lambda: strings("texts", texts)
        own = {"labels": labels, "problem_type": problem_type}
        return cls._from_scratch(models.encoder_classifier, options, corpus, len(labels or [None]), **own)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(
        cls,
        path: Path,
        labels: Any = None,
        max_length: int | None = None,
        problem_type: str | None = None,
        **options: Unpack[ClassifierCheckpointOptions],
    ) -> Self:
        """Makes a classifier of a Hugging Face checkpoint, with a new head if the checkpoint has other labels.

        Args:
            path: folder, or the name of a repository on the Hub.
            labels: list of the labels; default the checkpoint's labels. The task keeps the checkpoint's head if the
                head has these labels, in any order, or as many without names ("LABEL_0").
            max_length: truncates longer texts.
            problem_type: see the class; default the checkpoint's type, else "regression" for one class without labels,
                else "single_label_classification".
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        known = labels_of(folder, "SequenceClassification")
        if problem_type is None:
            is_number = labels is None and known is not None and len(known) == 1
            default = "regression" if is_number else "single_label_classification"
            problem_type = problem_type_of(folder, "SequenceClassification") or default
        problem = problem_of(problem_type)
        labels = problem.checked_labels(problem.known_labels(known) if labels is None else labels)
        model = load_classifier(folder, "sequence_classification", known, labels, options)
        return cls(model, tokenizer, labels, max_length, 5e-5, problem_type)

    @shows_options
    def fit(
        self, texts: Any, labels: Any = None, class_weight: Any = None, **options: Unpack[FitOptions]
    ) -> keras.callbacks.History:
        """Trains on labelled texts. The logs have the scores of `evaluate`, `val_f1` with held-out examples.

        Args:
            texts: list or column of strings; or a table of the columns "text" and "label", or of the names in
                `columns`. A table is the path of a .csv, .tsv, .jsonl or .parquet file, a pandas data frame, a Hugging
                Face data set or a `tf.data.Dataset`. The texts are read into memory.
            labels: list or column of labels. The labels of a .csv or .tsv file are integers if each label is an
                integer, else strings. For several labels, each text has a list of labels, which may be empty. For
                "regression", numbers.
            class_weight: dict of labels -> weight of an example in the loss, by default 1; or "balanced": rare labels
                weigh as much as frequent labels. For a single label of a text alone.
            {options}

        Returns:
            Keras' history.

        Raises:
            ValueError: columns of different lengths, a label that the task does not have, weights for several labels or
                numbers.
        """
        return self._fit(texts, [labels], options, class_weight)

    def predict(
        self, texts: Any, batch_size: int = 32, return_probabilities: bool = False, verbose: int | str = 1
    ) -> Any:
        """Predicts the labels or the numbers of texts.

        Args:
            texts: a text, or a list of texts.
            batch_size: texts in a batch.
            return_probabilities: whether to return the probabilities float32 (N, C) instead of the labels.
            verbose: 0 shows no progress bar, 1 shows a bar from ten batches on.

        Returns:
            The label of a text, or a list of labels. Several labels are a list of the labels with a probability above
            the `thresholds`, or a list of lists. A number, or float32 (N,).

        Raises:
            ValueError: probabilities of numbers.
        """
        if checks.boolean("return_probabilities", return_probabilities) and self.labels is None:
            raise ValueError('`return_probabilities` must be False for `problem_type="regression"`; received True.')
        texts, unpack = one_or_many("texts", texts)
        return unpack(self._answers(self._ids(texts), batch_size, return_probabilities, verbose))

    def evaluate(self, texts: Any, labels: Any = None, columns: Any = None, batch_size: int = 32) -> dict[str, float]:
        """Returns scores on labelled texts, see `fit`.

        Loss, accuracy and macro F1. For several labels loss and macro F1 as in scikit-learn. For numbers loss and the
        correlations of Spearman and Pearson.
        """
        return self._evaluate(texts, [labels], columns, batch_size)

    def export(self, folder: Path, overwrite: bool = False) -> None:
        """Writes a SavedModel from strings to labels and probabilities, or to numbers as logits (B, 1).

        See `txf.text.export`.
        """
        is_multi_label = self.problem_type == "multi_label_classification"
        self._export(folder, overwrite, multi_label=is_multi_label, thresholds=self.thresholds)

    def _examples(self, values):
        return self._problem.examples(*values, self.tokenizer, self.labels, self.max_length)

    def _checkpoint_config(self):
        return config_with_labels(self.model, self.labels or ["LABEL_0"], self.problem_type)
