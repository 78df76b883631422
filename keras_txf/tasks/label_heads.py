"""The head of a checkpoint's classifier, for the labels of the caller."""

import re

import numpy as np

from keras_txf import checkpoints


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
    """Whether a checkpoint says what a class is: "LABEL_0" is what transformers writes of a class without a name."""
    return re.fullmatch("LABEL_[0-9]+", label) is None
