"""Weights of the classes of tokens.

Legend: B batch, T length, V vocabulary.
"""

import sys
import threading

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr


def checked(class_weight, pad_id):
    """Checks a dict of target ids and weights, or None."""
    if class_weight is None:
        return None
    if not isinstance(class_weight, dict) or not class_weight:
        raise ValueError(
            f"`class_weight` must be a dict of target ids and their weights; received {short_repr(class_weight)}."
        )
    weights = {}
    for target, weight in class_weight.items():
        target = checks.id_below("class_weight", target)
        if target == pad_id:
            raise ValueError(
                "`class_weight` must have no weight for `pad_id`, which never counts; received "
                f"{short_repr(class_weight)}."
            )
        weights[target] = checks.finite_number("class_weight", weight)
        if weights[target] < 0:
            raise ValueError(f"`class_weight` must hold weights of 0 or more; received {short_repr(class_weight)}.")
    return weights


def of_targets(class_weight, targets, vocab_size):
    """Returns the weights of targets, float32, of their shape: 1 for a target without a weight."""
    if max(class_weight) >= vocab_size:
        raise ValueError(
            f"`class_weight` must be of targets below the number of logits, {vocab_size}; received "
            f"{short_repr(class_weight)}."
        )
    table = np.ones(vocab_size, "float32")
    table[list(class_weight)] = list(class_weight.values())
    return ops.take(ops.convert_to_tensor(table), ops.clip(ops.cast(targets, "int32"), 0, vocab_size - 1), axis=0)


def refuse_of_fit(loss, targets, sample_weight):
    """Refuses the `class_weight` of `fit` and `train_on_batch` for targets (B, T).

    Keras turns `class_weight` into weights of rows, by the argmax over the positions of a row, and gives the loss these
    weights alone. So this function looks for the call of Keras that had `class_weight`.
    """
    if len(sample_weight.shape) < len(targets.shape) and targets.shape[-1] != 1 and _with_class_weight(loss):
        raise ValueError(
            "`class_weight` of `fit` must be left out for targets (batch, length): Keras would weigh whole rows by the "
            "position of their largest target. Give it to the loss, TokenCrossEntropy(class_weight=...), which weighs "
            "each token."
        )


def _with_class_weight(loss):
    """Whether a training with `class_weight` calls this loss, in this thread or in one that waits for this thread."""
    here = threading.get_ident()
    for thread, frame in sys._current_frames().items():
        while frame is not None:
            if "class_weight" in frame.f_code.co_varnames and frame.f_locals.get("class_weight") is not None:
                trainer = frame.f_locals.get("self")
                if isinstance(trainer, keras.Model) and (
                    thread == here or any(one is loss for one in keras.tree.flatten(trainer.loss))
                ):
                    return True
            frame = frame.f_back
    return False
