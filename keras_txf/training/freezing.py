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
    """Keeps variables as they are in training, by patterns of their paths or of their layers'.

    For fine-tuning with little data, or a part after the other. `model.summary()` says how much is left to train.
    A `.keras` file keeps it, of Keras' own layers where all of their variables are frozen.

    Args:
        model: a built Keras model, compiled or not. A compiled one goes on with other variables to train, and with
            an optimizer that begins anew, at its current learning rate; a schedule begins anew too. Compile it again
            for another optimizer.
        patterns: one or several, such as "embedding", "encoder_[0-3]", "*/attention/*" or "*/bias". A `*`
            stands for anything, slashes included.

    Raises:
        ValueError: a pattern that matches nothing that training could change.

    Example:

    >>> model = txf.models.encoder_classifier(100, num_classes=3, num_layers=4, dim=32, num_heads=4)
    >>> txf.training.freeze(model, ["embedding", "encoder_[0-2]"])
    >>> sorted({variable.path.split("/")[0] for variable in model.trainable_variables})
    ['encoder_3', 'logits']
    """
    check_model(model)
    set_trainable(model, dict.fromkeys(map(id, _matching(model, patterns)), False))


def unfreeze(model: keras.Model, patterns: str | Sequence[str] = "*") -> None:
    """Trains variables again, by patterns of their paths or of their layers': the reverse of `freeze`.

    For gradual unfreezing call it between two `fit`. The variables of adapters that are not active stay as they are.

    Args:
        model, patterns: see `freeze`.

    Raises:
        ValueError: a pattern that matches nothing that training could change.

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
        own = trainable_by_nature(layer)
        trainable = any(flags[id(variable)] for variable in own)
        # Layers of ours keep it by variable in their files, Keras' own by layer. None may hide what is trainable.
        keeps = isinstance(layer, (KeepsState, keras.Model))
        if own and layer.trainable != trainable and (trainable or not keeps):
            layer.trainable = trainable
    for variable in variables:
        variable.trainable = flags[id(variable)]
    accept_trainable_state(model)  # what was compiled is seen to below
    follow_changes(model)


def _matching(model, patterns):
    """The variables that training could change and whose path, or that of a layer around them, a pattern matches."""
    idle = set()
    for layer in flatten_layers(model):
        for name, adapter in adapters_of(layer).items():
            if name != layer.active:
                idle |= {id(variable) for variable in adapter.variables.values()}
            elif not adapter.adds:  # it stands in the place of the layer's own
                idle |= {id(kept_kernel(layer)), id(vars(layer)["bias"])}
    variables = [variable for variable in trainable_by_nature(model) if id(variable) not in idle]
    around = {}
    for variable in variables:
        parts = variable.path.split("/")
        for end in range(1, len(parts) + 1):
            around.setdefault("/".join(parts[:end]), []).append(variable)
    return [v for path in select("patterns", patterns, around, "layers or variables to train") for v in around[path]]


def follow_changes(model):
    """Makes the compiled steps and the optimizer anew.

    The compiled steps of TensorFlow and JAX keep the variables of their trace. An optimizer keeps the variables of its
    build: others are an error on TensorFlow and PyTorch, and on JAX, which goes by their order, one variable would get
    the moments of another. The new optimizer has the current rate or the start of the schedule: its step count goes
    with its moments, which are lost.
    """
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
    optimizer, trainable = getattr(model, "optimizer", None), model.trainable_variables
    if (
        optimizer is None or not optimizer.built or not trainable
    ):  # the base without an adapter may have nothing to train
        return
    if {id(variable) for variable in trainable} != {id(variable) for variable in trained_by(optimizer)}:
        model.optimizer = renew(optimizer)
        model.optimizer.build(trainable)


def renew(optimizer, cls=None):
    """Makes a new optimizer with the options of another, those outside of its configuration included.

    Args:
        optimizer: any Keras optimizer.
        cls: class of the result, a subclass of the optimizer's; default the same.
    """
    config = optimizer.get_config()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return type(optimizer)(**{**config, "inner_optimizer": renew(optimizer.inner_optimizer)})
    own = config["optimizer"]["config"] if "optimizer" in config else config  # of a `LayerwiseDecay`
    if "learning_rate" in own and not isinstance(optimizer._learning_rate, keras.Variable):
        own["learning_rate"] = optimizer._learning_rate  # which may be a schedule or a function
    make = type(optimizer).from_config
    result = make(config) if cls is None else make.__func__(cls, config)
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(result, name, getattr(optimizer, name))
    return result
