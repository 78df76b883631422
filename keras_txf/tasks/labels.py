"""The labels of a classifier: names and numbers, weights, and the macro F1 of each epoch."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register


def label_list(labels: Any) -> list:
    """The different labels: of a list without repetition in its order, of a column sorted."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__iter__"):
        raise ValueError(f"`labels` must be a list of the labels, or a column of them; received {short_repr(labels)}.")
    labels = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    for label in labels:
        if not isinstance(label, (str, int)):
            raise ValueError(f"`labels` must be strings, integers or booleans; received {short_repr(label)}.")
        if label == "":
            raise ValueError("`labels` must not be empty; received '', such as of an empty cell of a file.")
    different = list(dict.fromkeys(labels))
    if len({type(label) for label in labels}) != 1 or len(different) < 2:
        raise ValueError(
            f"`labels` must be two different ones at least, of one type; received {short_repr(different)}."
        )
    return different if len(different) == len(labels) else sorted(different)


def numbers_of(name, values, labels, row=None):
    """The place of each value among the labels; `row` is the place of the text whose words the values are of.

    Files may hold integers and booleans as text, and integers where the labels are their text.
    """
    places = {label: i for i, label in enumerate(labels)}
    kind = type(labels[0])
    numbers = []
    for place, value in enumerate(values):
        own = _converted(value, kind)
        is_label = isinstance(own, kind) and isinstance(own, bool) == (kind is bool)
        if not is_label or own not in places:
            where = "" if row is None else f" of the text at place {row}"
            raise ValueError(
                f"`{name}` must be of the labels {short_repr(labels)}; received {short_repr(value)} at place "
                f"{place}{where}."
            )
        numbers.append(places[own])
    return numbers


def _converted(value, kind):
    if kind is int and isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if kind is bool and isinstance(value, str):
        return {"True": True, "False": False}.get(value, value)
    return str(value) if kind is str and type(value) is int else value


def class_weights(class_weight, labels, numbers):
    """The weight of each label: of a dict of labels, or "balanced", so that all labels weigh the same."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(numbers, minlength=len(labels))
        return (len(numbers) / (len(labels) * np.maximum(counts, 1))).astype("float32")
    if not isinstance(class_weight, dict) or not set(class_weight) <= set(labels):
        raise ValueError(
            f"`class_weight` must be 'balanced' or a dict of weights by labels of {short_repr(labels)}; received "
            f"{short_repr(class_weight)}."
        )
    weights = {label: checks.positive_number("class_weight", weight) for label, weight in class_weight.items()}
    return np.array([weights.get(label, 1.0) for label in labels], "float32")


@register
class MacroF1(keras.metrics.F1Score):
    """The mean of the F1 scores of classes, of integer targets and logits (B, C).

    As in scikit-learn a class counts if an example has it or got it: held-out examples may lack a rare one.
    """

    def __init__(self, average="macro", name="f1", **kwargs):
        super().__init__(average=average, name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        targets = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), ops.shape(y_pred)[-1])
        return super().update_state(targets, y_pred)  # each example counts once, whatever its weight in the loss

    def result(self):
        wrong = self.false_positives + self.false_negatives
        seen = ops.cast(self.true_positives + wrong > 0, self.dtype)
        scores = 2 * self.true_positives / ops.maximum(2 * self.true_positives + wrong, 1)
        return ops.sum(scores) / ops.maximum(ops.sum(seen), 1)


@register
class MacroF1OfSets(keras.metrics.F1Score):
    """The mean of the F1 scores of all labels, of targets 0 or 1 and logits, both (B, C).

    As in scikit-learn the score of a label that no example has and none got is 0.
    """

    def __init__(self, average="macro", threshold=0.5, name="f1", **kwargs):
        super().__init__(average=average, threshold=threshold, name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true, ops.sigmoid(ops.cast(y_pred, "float32")))
