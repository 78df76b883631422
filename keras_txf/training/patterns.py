"""Names of layers and variables by pattern, and what a compiled model must be told when they change."""

import difflib
import fnmatch

import keras


def as_patterns(name, patterns):
    """The patterns of an argument, which may be one text."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"`{name}` must be a pattern such as '*/query', or a list of them; received {patterns!r}.")
    return patterns


def select(name, patterns, paths, kind):
    """Those of the paths that a pattern matches, where a pattern that matches none is an error.

    A `*` stands for anything, slashes included, `?` for one letter, `[0-3]` for one of these.
    """
    chosen = {}
    for pattern in as_patterns(name, patterns):
        matches = fnmatch.filter(paths, pattern)
        if not matches:
            near = difflib.get_close_matches(pattern, paths, 3, 0) or sorted(paths)[:3]
            raise ValueError(
                f"`{name}` must match the paths of {kind}; received {pattern!r}, which matches none. There "
                f"are {', '.join(map(repr, near)) or 'none'}{' ...' * (len(paths) > 3)}."
            )
        chosen.update(dict.fromkeys(matches))
    return list(chosen)


def check_model(model):
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"`model` must be a built Keras model; received {model!r}.")


def follow_changes(model):
    """After the active adapter or what is trainable has changed: nothing traced or counted before may count on.

    TensorFlow's and JAX' compiled steps hold what they were traced with, so they are made anew. An optimizer knows the
    variables that it was built for: others are an error on TensorFlow and PyTorch, and on JAX, where it goes by
    their number, it would give one variable the moments of another. So it begins anew too, with its current rate.
    """
    for kind in ("train", "test", "predict"):
        if getattr(model, f"{kind}_function", None) is not None:
            getattr(model, f"make_{kind}_function")(force=True)
    optimizer, trainable = getattr(model, "optimizer", None), model.trainable_variables
    if optimizer is None or not optimizer.built or not trainable:  # the bare base has nothing to train meanwhile
        return
    if {id(variable) for variable in trainable} != {id(variable) for variable in optimizer._trainable_variables}:
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
        model.optimizer.build(trainable)
