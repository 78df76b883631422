"""What a compiled model must be told when its active adapter changes, or what is trainable."""

import keras


def follow_changes(model):
    """Nothing traced or counted before may count on.

    TensorFlow's and JAX' compiled steps hold what they were traced with, so they are made anew. An optimizer knows the
    variables that it was built for: others are an error on TensorFlow and PyTorch, and on JAX, where it goes by
    their number, it would give one variable the moments of another. So it begins anew too, with its current rate or the
    start of its schedule: its steps correct its moments, and those are gone.
    """
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
    optimizer, trainable = getattr(model, "optimizer", None), model.trainable_variables
    if optimizer is None or not optimizer.built or not trainable:  # the bare base has nothing to train meanwhile
        return
    if {id(variable) for variable in trainable} != {id(variable) for variable in optimizer._trainable_variables}:
        model.optimizer = renew(optimizer)
        model.optimizer.build(trainable)


def renew(optimizer, cls=None):
    """A new optimizer with the options of another, also those that are in no configuration.

    Args:
        optimizer: any of Keras.
        cls: its class, or one derived from that.
    """
    config = optimizer.get_config()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return type(optimizer)(**{**config, "inner_optimizer": renew(optimizer.inner_optimizer)})
    own = config["optimizer"]["config"] if "optimizer" in config else config  # of a `LayerwiseDecay`
    if "learning_rate" in own and not isinstance(optimizer._learning_rate, keras.Variable):
        own["learning_rate"] = optimizer._learning_rate  # a schedule or a function
    make = type(optimizer).from_config
    result = make(config) if cls is None else make.__func__(cls, config)
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(result, name, getattr(optimizer, name))
    return result
