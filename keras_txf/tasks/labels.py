"""The labels of a classifier: names and numbers, weights, the head of a checkpoint, and the macro F1."""

import re
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checkpoints, checks
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register
from keras_txf.tasks.errors import bad_argument


def label_list(labels: Any) -> list:
    """The different labels: of a list without repetition in its order, of a column sorted."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__iter__"):
        raise bad_argument("labels", "be a list of the labels, or a column of them", labels)
    labels = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    for label in labels:
        if not isinstance(label, (str, int)):
            raise bad_argument("labels", "be strings, integers or booleans", label)
        if label == "":
            raise ValueError("`labels` must not be empty; received '', such as of an empty cell of a file.")
    different = list(dict.fromkeys(labels))
    if len({type(label) for label in labels}) != 1 or len(different) < 2:
        raise bad_argument("labels", "be two different ones at least, of one type", different)
    return different if len(different) == len(labels) else sorted(different)


def numbers_of(name, values, labels, row=None):
    """The place of each value among the labels; `row` is the place of the text that the values belong to.

    Files may hold integers and booleans as text, and integers where the labels are their text.
    """
    places = {label: i for i, label in enumerate(labels)}
    kind = type(labels[0])
    numbers = []
    for place, value in enumerate(values):
        own = _converted(value, kind)
        is_label = isinstance(own, kind) and isinstance(own, bool) == (kind is bool)
        if not is_label or own not in places:
            where = place if row is None else f"{place} of the text at place {row}"
            raise bad_argument(name, f"be of the labels {short_repr(labels)}", value, where)
        numbers.append(places[own])
    return numbers


def _converted(value, kind):
    if kind is int and isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if kind is bool and isinstance(value, str):
        return {"True": True, "False": False}.get(value, value)
    return str(value) if kind is str and type(value) is int else value


def class_weights(class_weight, labels, targets):
    """The weight of each label: of a dict of labels, or "balanced", so that all labels weigh the same.

    `targets` are the number of the label of each text, or lists of the numbers of its words' labels.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        numbers = [number for target in targets for number in np.ravel(target)]
        counts = np.bincount(numbers, minlength=len(labels))
        return (len(numbers) / (len(labels) * np.maximum(counts, 1))).astype("float32")
    if not isinstance(class_weight, dict) or not set(class_weight) <= set(labels):
        must = f"be 'balanced' or a dict of weights by labels of {short_repr(labels)}"
        raise bad_argument("class_weight", must, class_weight)
    weights = {label: checks.positive_number("class_weight", weight) for label, weight in class_weight.items()}
    return np.array([weights.get(label, 1.0) for label in labels], "float32")


def load_classifier(folder, task, known, labels, options):
    """Loads a classifier whose logits are in the order of `labels`.

    Args:
        folder: the folder of the checkpoint.
        task: "sequence_classification" or "token_classification".
        known: the labels of the checkpoint, or None.
        labels: list of the C labels, or None for a score.
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
    """Whether a checkpoint names a class: transformers writes "LABEL_0" for a class without a name."""
    return re.fullmatch("LABEL_[0-9]+", label) is None


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

    As in scikit-learn the score is 0 for a label that no example has or gets.
    """

    def __init__(self, average="macro", threshold=0.5, name="f1", **kwargs):
        super().__init__(average=average, threshold=threshold, name=name, **kwargs)

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true, ops.sigmoid(ops.cast(y_pred, "float32")))
