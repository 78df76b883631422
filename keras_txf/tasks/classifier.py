"""Classifier: the base of tasks that label texts, and what a label may be, in the words of transformers.

Legend: N texts, C labels.
"""

import importlib

import keras
import numpy as np

from keras_txf import checks, text
from keras_txf.layers.token_input import logits_of
from keras_txf.tasks.batches import FIXED
from keras_txf.tasks.columns import numbers
from keras_txf.tasks.errors import bad_argument
from keras_txf.tasks.labels import MacroF1, MacroF1OfSets, label_list, numbers_of
from keras_txf.tasks.task import Task
from keras_txf.text.lazy_imports import tf


class Classifier(Task):
    """A task whose model gives a text, or a pair of texts, one row of logits (C,).

    Args:
        model, tokenizer, max_length, learning_rate: see `Task`.
        labels: list of the C labels; None for a number.
        problem: what a text has: `OneLabel()`, `SeveralLabels()`, `Number()` or `Score()`.
    """

    def __init__(self, model, tokenizer, labels, problem, max_length, learning_rate):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self._problem = problem
        self.labels = problem.checked_labels(labels)
        classes, needed = logits_of(self.model).shape[-1], len(self.labels or [None])
        if needed != classes:
            raise ValueError(f"`labels` must be {classes}, one for each class of the model; received {needed}.")

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
        return self._problem.scores(lambda: self.predict(*values[:-1], batch_size=batch_size, verbose=0), values[-1])


class OneLabel:
    """One of the labels for each text."""

    name = '`problem_type="single_label_classification"`'  # in messages
    activation = staticmethod(keras.ops.softmax)
    padding = 0  # of the targets
    has_class_weight = True

    def labels(self, values):
        """The different labels of a column."""
        return label_list(values)

    def checked_labels(self, labels):
        """The labels of a task, in the order of the logits."""
        return label_list(labels)

    def known_labels(self, known):
        """The labels of a checkpoint, or None."""
        if known is None:
            raise ValueError("`labels` must be given: the checkpoint has no names of classes; received None.")
        return known

    def targets(self, values, labels):
        """The targets of a column of labels, checked."""
        return numbers_of("labels", values, labels)

    def examples(self, texts, targets, tokenizer, labels, max_length):
        """A `tf.data.Dataset` of (ids, target)."""
        return text.classification((texts, targets), tokenizer, len(labels), max_length)

    def compilation(self):
        """Loss and metrics."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy", MacroF1()]

    def probabilities(self, rows, labels):
        """The probabilities (N, C), float32."""
        return np.reshape(rows, (-1, len(labels))).astype("float32")

    def answers(self, rows, labels):
        """The answers to probabilities (N, C)."""
        return [labels[int(row.argmax())] for row in rows]

    def scores(self, predict, targets):
        """Scores of the answers of `predict()` next to the metrics."""
        return {}


class SeveralLabels(OneLabel):
    """Any number of the labels for each text, perhaps zero; each label has its own probability."""

    name = '`problem_type="multi_label_classification"`'
    activation = staticmethod(keras.ops.sigmoid)
    padding = FIXED
    has_class_weight = False

    def labels(self, values):
        return label_list([label for place, value in enumerate(values) for label in _one_list(value, place)])

    def targets(self, values, labels):
        """Rows float32 (C,): 1 where the text has the label."""
        rows = np.zeros((len(values), len(labels)), "float32")
        for place, value in enumerate(values):
            rows[place, numbers_of("labels", _one_list(value, place), labels, place)] = 1
        return list(rows)

    def examples(self, texts, targets, tokenizer, labels, max_length):
        ids = text.classification(texts, tokenizer, max_length=max_length)
        return tf.data.Dataset.zip((ids, tf.data.Dataset.from_tensor_slices(np.stack(targets))))

    def compilation(self):
        return keras.losses.BinaryCrossentropy(from_logits=True), [MacroF1OfSets()]

    def answers(self, rows, labels):
        return [[label for label, probability in zip(labels, row) if probability > 0.5] for row in rows]


class Number(OneLabel):
    """A number for each text."""

    name = '`problem_type="regression"`'
    activation = staticmethod(lambda logits: logits)
    has_class_weight = False

    def labels(self, values):
        numbers("labels", values)

    def checked_labels(self, labels):
        if labels is not None:
            raise bad_argument("labels", 'be None for `problem_type="regression"`', labels)

    def known_labels(self, known):
        return None

    def targets(self, values, labels):
        return numbers("labels", values)

    def examples(self, texts, targets, tokenizer, labels, max_length):
        return text.classification((texts, targets), tokenizer, max_length=max_length)

    def compilation(self):
        return keras.losses.MeanSquaredError(), []

    def answers(self, rows, labels):
        return np.reshape(rows, -1).astype("float32")

    probabilities = answers

    def scores(self, predict, targets):
        return correlations(predict(), targets)


class Score(Number):
    """A number from 0 to 1 for each pair of texts: the sigmoid of the logit."""

    name = "a score"
    activation = staticmethod(keras.ops.sigmoid)

    def targets(self, values, labels):
        try:
            scores = numbers("labels", values)
        except ValueError as error:
            raise ValueError(f"{error} The task has no labels of its own, and learns a score.") from None
        if not 0 <= min(scores) <= max(scores) <= 1:
            raise ValueError(f"`labels` must be scores from 0 to 1; received {min(scores)} to {max(scores)}.")
        return scores

    def compilation(self):
        return keras.losses.BinaryCrossentropy(from_logits=True), []


PROBLEMS = {
    "single_label_classification": OneLabel(),
    "multi_label_classification": SeveralLabels(),
    "regression": Number(),
}


def problem_of(problem_type):
    """The problem of a name."""
    return PROBLEMS[checks.one_of("problem_type", problem_type, tuple(PROBLEMS))]


def _one_list(value, place):
    if not isinstance(value, (list, tuple)):
        raise bad_argument("labels", "be a list of labels of each text", value, place)
    return value


def correlations(first, second):
    """Spearman's rank correlation and Pearson's, NaN where one side is constant."""
    try:
        stats = importlib.import_module("scipy.stats")
    except ImportError as error:
        raise ImportError("Correlations need scipy: pip install 'keras_txf[tasks]'.") from error
    first, second = ([float(value) for value in values] for values in (first, second))
    if min(len(set(first)), len(set(second))) < 2:
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {
        "spearman": float(stats.spearmanr(first, second).statistic),
        "pearson": float(stats.pearsonr(first, second).statistic),
    }
