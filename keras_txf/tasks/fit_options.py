"""The options of every task's `fit`, and the examples that it holds out."""

from typing import Annotated, Any, TypedDict

import keras
import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr


class FitOptions(TypedDict, total=False):
    """Options of every task's `fit`."""

    columns: Annotated[Any, None, "names of the columns, where the first argument is a table or a file of all of them."]
    validation_data: Annotated[Any, None, "a tuple of such columns, or a table, for the scores of each epoch."]
    validation_split: Annotated[float, 0.0, "share of the examples, drawn by `seed`, to hold out for these scores."]
    epochs: Annotated[int, 3, "passes over the data."]
    initial_epoch: Annotated[int, 0, "the number of complete epochs, such as `epoch` of `txf.training.Resume`."]
    batch_size: Annotated[int, 32, "examples in a batch. They are of similar length, so that little is padding."]
    learning_rate: Annotated[
        float | None,
        None,
        "peak of the learning rate of AdamW, which grows for a tenth of the steps and falls by a cosine to 0. Default "
        "5e-5 for a checkpoint, else 1e-3. Not with a task that you compiled.",
    ]
    callbacks: Annotated[Any, (), "Keras callbacks, which find the scores in the logs."]
    seed: Annotated[int, 0, "of the held-out examples and of the order of the rest."]
    verbose: Annotated[Any, "auto", "as of Keras' `fit`."]


def check_options(options):
    """Refuses values of `FitOptions` that are none."""
    checks.known_names("an option of fit", options, FitOptions.__annotations__)
    for name in ("epochs", "batch_size"):
        checks.size(name, options[name])
    checks.integer_between("seed", options["seed"], 0, 2**32 - 1)
    checks.verbosity("verbose", options["verbose"], most=2)
    callbacks = options["callbacks"]
    if not isinstance(callbacks, (list, tuple)) or not all(isinstance(c, keras.callbacks.Callback) for c in callbacks):
        raise ValueError(f"`callbacks` must be a list of Keras callbacks; received {short_repr(callbacks)}.")
    if checks.rate("validation_split", options["validation_split"]) and options["validation_data"] is not None:
        raise ValueError("`validation_split` must be left out where `validation_data` is given; received both.")
    checks.integer_between("initial_epoch", options["initial_epoch"], 0, options["epochs"])


def check_compile_options(options):
    """Refuses values of `CompileOptions` that are none."""
    checks.size("steps_per_execution", options["steps_per_execution"])
    for name in ("run_eagerly", "auto_scale_loss"):
        checks.boolean(name, options[name])
    checks.one_of("jit_compile", options["jit_compile"], ("auto", True, False))
    for name in ("loss_weights", "weighted_metrics"):
        if options[name] is not None and not isinstance(options[name], (list, tuple, dict)):
            raise ValueError(
                f"`{name}` must be a list or a dict of Keras' `compile`; received {short_repr(options[name])}."
            )


def divide(values, share, seed):
    """Draws the examples to hold out: two lists of columns."""
    count = len(values[0])
    held = round(count * share)
    if not 0 < held < count:
        raise ValueError(f"`validation_split` must leave examples on both sides; received {share} of {count} examples.")
    order = np.random.default_rng(seed).permutation(count)
    return ([[column[i] for i in part] for column in values] for part in (np.sort(order[held:]), np.sort(order[:held])))
