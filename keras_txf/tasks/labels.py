"""What a classifier predicts for a text: a label, several labels, a number or a score; labels and their metrics.

Legend: N texts, C labels.
"""

import importlib
import re
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checkpoints, checks, text
from keras_txf.checks import bad_argument, short_repr
from keras_txf.layers.serialization import register
from keras_txf.tasks.columns import numbers
from keras_txf.tasks.fitting import FIXED
from keras_txf.text.lazy_imports import tf


class OneLabel:
    """One of the labels for each text."""

    name = '`problem_type="single_label_classification"`'  # in error messages
    activation = staticmethod(keras.ops.softmax)
    padding = 0  # of the targets
    has_class_weight = True

    def labels(self, values):
        """Returns the distinct labels of a column."""
        return label_list(values)

    def checked_labels(self, labels):
        """Returns the labels of a task, in the order of the logits."""
        return label_list(labels)

    def known_labels(self, known):
        """Returns the labels of a checkpoint, or None for a number."""
        if known is None:
            raise ValueError("`labels` must be given: the checkpoint has no names of classes; received None.")
        return known

    def targets(self, values, labels):
        """Returns the targets of a column of labels, checked."""
        return numbers_of("labels", values, labels)

    def examples(self, texts, targets, tokenizer, labels, max_length):
        """Returns a `tf.data.Dataset` of (ids, target)."""
        return text.classification((texts, targets), tokenizer, len(labels), max_length)

    def compilation(self):
        """Returns the loss and the metrics."""
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy", MacroF1()]

    def probabilities(self, rows, labels):
        """Returns the probabilities (N, C), float32."""
        return np.reshape(rows, (-1, len(labels))).astype("float32")

    def answers(self, rows, labels):
        """Returns the predictions for probabilities (N, C)."""
        return [labels[int(row.argmax())] for row in rows]

    def checked_thresholds(self, thresholds, labels):
        """Returns the thresholds of several labels, a list of C numbers or None. Other problems have None."""
        if thresholds is not None:
            raise bad_argument("thresholds", f"be None for {self.name}", thresholds)

    def scores(self, predict, targets, labels):
        """Returns scores of the predictions of `predict()`, besides the metrics."""
        return {}


class SeveralLabels(OneLabel):
    """Any number of the labels for each text, perhaps zero; each label has its own probability."""

    name = '`problem_type="multi_label_classification"`'
    activation = staticmethod(keras.ops.sigmoid)
    padding = FIXED
    has_class_weight = False

    def __init__(self, thresholds=None):
        self.thresholds = thresholds

    def labels(self, values):
        return label_list([label for index, value in enumerate(values) for label in _one_list(value, index)])

    def targets(self, values, labels):
        """Rows float32 (C,): 1 where the text has the label."""
        rows = np.zeros((len(values), len(labels)), "float32")
        for index, value in enumerate(values):
            rows[index, numbers_of("labels", _one_list(value, index), labels, index)] = 1
        return list(rows)

    def examples(self, texts, targets, tokenizer, labels, max_length):
        ids = text.classification(texts, tokenizer, max_length=max_length)
        return tf.data.Dataset.zip((ids, tf.data.Dataset.from_tensor_slices(np.stack(targets))))

    def compilation(self):
        return keras.losses.BinaryCrossentropy(from_logits=True), [MacroF1OfSets()]

    def checked_thresholds(self, thresholds, labels):
        if thresholds is None:
            return None
        values = [thresholds] * len(labels) if isinstance(thresholds, (int, float)) else thresholds
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, (list, tuple)) or len(values) != len(labels):
            raise bad_argument("thresholds", f"be a number, or a list of {len(labels)}, one for each label", thresholds)
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
                raise bad_argument("thresholds", "be between 0 and 1", value, index)
        return list(map(float, values))

    def answers(self, rows, labels):
        thresholds = self.thresholds or [0.5] * len(labels)
        return [[label for label, x, least in zip(labels, row, thresholds) if x > least] for row in rows]

    def scores(self, predict, targets, labels):
        if self.thresholds is None:  # the metric `MacroF1OfSets` has the score
            return {}
        metric = keras.metrics.F1Score(average="macro", threshold=0.5)
        metric.update_state(np.stack(targets), np.stack(self.targets(predict(), labels)))
        return {"f1": float(metric.result())}


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

    def scores(self, predict, targets, labels):
        return correlations(predict(), targets)


class Score(Number):
    """A number from 0 to 1 for each pair of texts: the sigmoid of the logit."""

    name = "a score"
    activation = staticmethod(keras.ops.sigmoid)

    def targets(self, values, labels):
        try:
            scores = numbers("labels", values)
        except ValueError as error:
            raise ValueError(f"{error} The task has no labels and learns a score.") from None
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
    """Returns the problem of a `problem_type`."""
    return PROBLEMS[checks.one_of("problem_type", problem_type, tuple(PROBLEMS))]


def _one_list(value, index):
    if not isinstance(value, (list, tuple)):
        raise bad_argument("labels", "be a list of labels for each text", value, index)
    return value


def correlations(first, second):
    """Returns Spearman's rank correlation and Pearson's correlation, NaN if one side is constant."""
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


def label_list(labels: Any) -> list:
    """Returns the distinct labels: in their order for a list without repetition, sorted for a column."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__iter__"):
        raise bad_argument("labels", "be a list of the labels, or a column of them", labels)
    labels = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    for label in labels:
        if not isinstance(label, (str, int)):
            raise bad_argument("labels", "be strings, integers or booleans", label)
        if label == "":
            raise ValueError("`labels` must not be empty; received '', such as from an empty cell of a file.")
    different = list(dict.fromkeys(labels))
    if len({type(label) for label in labels}) != 1 or len(different) < 2:
        raise bad_argument("labels", "be at least two distinct labels of one type", different)
    return different if len(different) == len(labels) else sorted(different)


def numbers_of(name, values, labels, row=None):
    """Returns the index of each value among the labels; `row` is the index of the text of the values.

    A file may hold integers and booleans as text. It may hold integers for labels that are text.
    """
    number_of = {label: i for i, label in enumerate(labels)}
    label_type = type(labels[0])
    numbers = []
    for index, value in enumerate(values):
        label = _converted(value, label_type)
        is_label = isinstance(label, label_type) and isinstance(label, bool) == (label_type is bool)
        if not is_label or label not in number_of:
            where = index if row is None else f"{index} of the text at index {row}"
            raise bad_argument(name, f"be of the labels {short_repr(labels)}", value, where)
        numbers.append(number_of[label])
    return numbers


def _converted(value, label_type):
    if label_type is int and isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if label_type is bool and isinstance(value, str):
        return {"True": True, "False": False}.get(value, value)
    return str(value) if label_type is str and type(value) is int else value


def load_classifier(folder, task, known, labels, options):
    """Loads a classifier whose logits are in the order of `labels`.

    Args:
        folder: the folder of the checkpoint.
        task: "sequence_classification" or "token_classification".
        known: the labels of the checkpoint, or None.
        labels: list of the C labels; None for a score.
        options: of `checkpoints.load`.
    """
    classes = 1 if labels is None else len(labels)
    model = checkpoints.load(folder, task, num_classes=classes, **options)
    names = None if labels is None else [str(label) for label in labels]
    if names is None or known is None or len(known) != classes or known == names or not any(map(has_name, known)):
        return model
    layer = model.get_layer("logits")
    if sorted(known) == sorted(names):
        order = [known.index(name) for name in names]
        layer.set_weights([np.take(values, order, axis=-1) for values in layer.get_weights()])
    else:
        layer.kernel.assign(layer.kernel_initializer(layer.kernel.shape, layer.kernel.dtype))
        if layer.bias is not None:
            layer.bias.assign(layer.bias_initializer(layer.bias.shape, layer.bias.dtype))
    return model


def has_name(label):
    """Whether a label is a real name: transformers writes "LABEL_0" for a class without a name."""
    return re.fullmatch("LABEL_[0-9]+", label) is None


@register
class MacroF1(keras.metrics.F1Score):
    """The mean F1 score of the classes, for integer targets and logits (B, C).

    As in scikit-learn, only a class with a target or a prediction counts. Held-out examples may lack a rare class.
    """

    def __init__(self, average="macro", name="f1", **kwargs):
        super().__init__(average=average, name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        targets = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), ops.shape(y_pred)[-1])
        return super().update_state(targets, y_pred)  # weights of the loss do not count here

    def result(self):
        wrong = self.false_positives + self.false_negatives
        seen = ops.cast(self.true_positives + wrong > 0, self.dtype)
        scores = 2 * self.true_positives / ops.maximum(2 * self.true_positives + wrong, 1)
        return ops.sum(scores) / ops.maximum(ops.sum(seen), 1)


@register
class MacroF1OfSets(keras.metrics.F1Score):
    """The mean F1 score of all labels, for targets 0 or 1 and logits, both (B, C).

    As in scikit-learn, the score is 0 for a label without targets and predictions.
    """

    def __init__(self, average="macro", threshold=0.5, name="f1", **kwargs):
        super().__init__(average=average, threshold=threshold, name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true, ops.sigmoid(ops.cast(y_pred, "float32")))
