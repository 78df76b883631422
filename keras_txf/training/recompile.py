"""Updates a compiled model after a change of its active adapter, or of its trainable variables."""

import keras

from keras_txf.backend.keras_private import trained_by


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
