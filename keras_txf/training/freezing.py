"""Sets which variables a training changes, and updates what a compiled model keeps of them."""

from collections.abc import Sequence

import keras

from keras_txf.backend.keras_private import (
    accept_trainable_state,
    flatten_layers,
    kept_kernel,
    trainable_by_nature,
    trained_by,
)
from keras_txf.layers.adapters import adapters_of
from keras_txf.layers.saved_state import KeepsState
from keras_txf.training.selection import check_model, select


def freeze(model: keras.Model, patterns: str | Sequence[str] = "*") -> None:
    """Freezes variables: training does not change them. Patterns match the paths of variables or of their layers.

    For fine-tuning with little data, or of one part after another. `model.summary()` shows how much is left to train.
    A `.keras` file keeps the frozen state; of Keras' own layers only if all their variables are frozen.

    Args:
        model: a built Keras model, compiled or not. A compiled model continues with its other variables and with an
            optimizer that restarts at its current learning rate; a schedule restarts too. Compile the model again for
            another optimizer.
        patterns: one or several, such as "embedding", "encoder_[0-3]", "*/attention/*" or "*/bias". A `*`
            matches any text, slashes included.

    Raises:
        ValueError: a pattern that matches no variable that training could change.

    Example:

    >>> model = txf.models.encoder_classifier(100, num_classes=3, num_layers=4, dim=32, num_heads=4)
    >>> txf.training.freeze(model, ["embedding", "encoder_[0-2]"])
    >>> sorted({variable.path.split("/")[0] for variable in model.trainable_variables})
    ['encoder_3', 'logits']
    """
    check_model(model)
    set_trainable(model, dict.fromkeys(map(id, _matching(model, patterns)), False))


def unfreeze(model: keras.Model, patterns: str | Sequence[str] = "*") -> None:
    """Unfreezes variables: the reverse of `freeze`. Patterns match the paths of variables or of their layers.

    For gradual unfreezing call this function between two calls of `fit`. The variables of inactive adapters stay
    frozen.

    Args:
        model, patterns: see `freeze`.

    Raises:
        ValueError: a pattern that matches no variable that training could change.

    Reference:
        [Universal Language Model Fine-tuning](https://arxiv.org/abs/1801.06146) for gradual unfreezing.

    Example:

    >>> model = txf.models.encoder(100, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.freeze(model)
    >>> txf.training.unfreeze(model, "encoder_1/feed_forward")
    >>> len(model.trainable_variables)
    4
    """
    check_model(model)
    set_trainable(model, dict.fromkeys(map(id, _matching(model, patterns)), True))


def set_trainable(model, flags):
    """Sets which variables are trainable, by their ids; the others stay as they are."""
    variables = trainable_by_nature(model)
    flags = {**{id(variable): variable.trainable for variable in variables}, **flags}
    for layer in flatten_layers(model):
        of_layer = trainable_by_nature(layer)
        trainable = any(flags[id(variable)] for variable in of_layer)
        # Files keep `trainable` by variable for layers of this package, by layer for Keras' own layers. A layer with
        # trainable=False would hide its trainable variables.
        keeps = isinstance(layer, (KeepsState, keras.Model))
        if of_layer and layer.trainable != trainable and (trainable or not keeps):
            layer.trainable = trainable
    for variable in variables:
        variable.trainable = flags[id(variable)]
    accept_trainable_state(model)  # `follow_changes` updates the compiled functions
    follow_changes(model)


def _matching(model, patterns):
    """The variables that training could change and whose path, or the path of a surrounding layer, matches."""
    inactive = set()
    for layer in flatten_layers(model):
        for name, adapter in adapters_of(layer).items():
            if name != layer.adapters.active:
                inactive |= {id(variable) for variable in adapter.variables.values()}
            elif adapter.kind == "whole":  # the adapter replaces the weights of the layer
                inactive |= {id(kept_kernel(layer)), id(layer.bias)}
    variables = [variable for variable in trainable_by_nature(model) if id(variable) not in inactive]
    by_path = {}
    for variable in variables:
        parts = variable.path.split("/")
        for end in range(1, len(parts) + 1):
            by_path.setdefault("/".join(parts[:end]), []).append(variable)
    return [v for path in select("patterns", patterns, by_path, "layers or variables to train") for v in by_path[path]]


def follow_changes(model):
    """Recompiles the steps of a model and renews its optimizer, after a change of the trainable variables.

    The compiled steps of TensorFlow and JAX keep the variables of their trace. An optimizer keeps the variables of its
    build: other variables raise an error on TensorFlow and PyTorch. On JAX, which goes by their order, a variable would
    get the moments of another. The new optimizer has the current rate or the start of the schedule: moments and step
    count are lost together.
    """
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
    optimizer, trainable = getattr(model, "optimizer", None), model.trainable_variables
    if optimizer is None or not optimizer.built or not trainable:  # a base without an adapter may be all frozen
        return
    if {id(variable) for variable in trainable} != {id(variable) for variable in trained_by(optimizer)}:
        model.optimizer = renew(optimizer)
        model.optimizer.build(trainable)


def renew(optimizer, cls=None):
    """Makes a new optimizer with the options of another, including the options outside its configuration.

    Args:
        optimizer: any Keras optimizer.
        cls: class of the result, a subclass of the optimizer's; default the same.
    """
    config = optimizer.get_config()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return type(optimizer)(**{**config, "inner_optimizer": renew(optimizer.inner_optimizer)})
    options = config["optimizer"]["config"] if "optimizer" in config else config  # of a `LayerwiseDecay`
    if "learning_rate" in options and not isinstance(optimizer._learning_rate, keras.Variable):
        options["learning_rate"] = optimizer._learning_rate  # a schedule or a function
    make = type(optimizer).from_config
    result = make(config) if cls is None else make.__func__(cls, config)
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(result, name, getattr(optimizer, name))
    return result
