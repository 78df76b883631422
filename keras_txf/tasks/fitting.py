"""Training of a task: the options of `fit`, the examples that it holds out, their scores, the learning rate."""

import pathlib
import sys
from typing import Annotated, Any, TypedDict

import keras
import numpy as np

from keras_txf import checks, training
from keras_txf.tasks.errors import bad_argument


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
    seed: Annotated[int, 0, "of the random choice of held-out examples, and of the order of the rest."]
    verbose: Annotated[Any, "auto", "as in `keras.Model.fit`."]


class CompileOptions(TypedDict, total=False):
    """Options of Keras' `compile`."""

    loss_weights: Annotated[Any, None, "factors on the losses of a model with several."]
    weighted_metrics: Annotated[Any, None, "metrics that the weights of the examples count for."]
    run_eagerly: Annotated[bool, False, "whether steps run in Python, to debug them."]
    steps_per_execution: Annotated[int, 1, "steps of a compiled call."]
    jit_compile: Annotated[bool | str, "auto", "whether XLA compiles the step."]
    auto_scale_loss: Annotated[bool, True, "whether the loss is scaled under float16."]


class EpochScores(keras.callbacks.Callback):
    """Adds `val_` scores to the logs of each epoch, for the callbacks after it.

    Args:
        function: a function that returns a dict of scores.
    """

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.update({f"val_{name}": score for name, score in self.function().items()})


def check_fit_options(options):
    """Raises ValueError for a value that an option of `FitOptions` cannot have."""
    checks.known_names("an option of fit", options, FitOptions.__annotations__)
    for name in ("epochs", "batch_size"):
        checks.size(name, options[name])
    checks.integer_between("seed", options["seed"], 0, 2**32 - 1)
    checks.verbosity("verbose", options["verbose"], most=2)
    callbacks = options["callbacks"]
    if not isinstance(callbacks, (list, tuple)) or not all(isinstance(c, keras.callbacks.Callback) for c in callbacks):
        raise bad_argument("callbacks", "be a list of Keras callbacks", callbacks)
    if checks.rate("validation_split", options["validation_split"]) and options["validation_data"] is not None:
        raise ValueError("`validation_split` must be left out where `validation_data` is given; received both.")
    checks.integer_between("initial_epoch", options["initial_epoch"], 0, options["epochs"])


def check_compile_options(loss, metrics, options):
    """Raises ValueError for a loss, metrics or an option that Keras' `compile` cannot have."""
    if loss is not None and not isinstance(loss, (str, list, tuple, dict)) and not callable(loss):
        raise bad_argument("loss", "be a loss of Keras or a function", loss)
    if metrics is not None and not isinstance(metrics, (list, tuple, dict)):
        raise bad_argument("metrics", "be a list of metrics of Keras", metrics)
    checks.size("steps_per_execution", options["steps_per_execution"])
    for name in ("run_eagerly", "auto_scale_loss"):
        checks.boolean(name, options[name])
    checks.one_of("jit_compile", options["jit_compile"], ("auto", True, False))
    for name in ("loss_weights", "weighted_metrics"):
        if options[name] is not None and not isinstance(options[name], (list, tuple, dict)):
            raise bad_argument(name, "be a list or a dict of Keras' `compile`", options[name])


def optimizer_of(value):
    """Returns an optimizer of Keras, from its name or as it is."""
    try:
        found = keras.optimizers.get(value)
    except Exception as error:  # Keras raises errors of several kinds
        raise bad_argument("optimizer", "be one of Keras", value) from error
    if found is None:
        raise bad_argument("optimizer", "be one of Keras", None)
    return found


def default_optimizer(peak, steps):
    """Returns AdamW, whose learning rate grows for a tenth of the steps and falls by a cosine."""
    if steps < 10:  # the first rate of a warm-up is 0, which would waste one of few steps
        schedule = keras.optimizers.schedules.CosineDecay(peak, steps)
    else:
        schedule = training.warmup_cosine(peak, steps // 10, steps)
    return keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)


def divide(values, share, seed):
    """Draws the examples to hold out: two lists of columns."""
    count = len(values[0])
    held = round(count * share)
    if not 0 < held < count:
        raise ValueError(f"`validation_split` must leave examples on both sides; received {share} of {count} examples.")
    order = np.random.default_rng(seed).permutation(count)
    return ([[column[i] for i in part] for column in values] for part in (np.sort(order[held:]), np.sort(order[:held])))


def record_of(history, examples, initial_epoch):
    """What the model card says of a training."""
    return {
        "examples": examples,
        "epochs": len(history.epoch) + initial_epoch,
        "scores": {name: float(found[-1]) for name, found in history.history.items()},
        "script": pathlib.Path(sys.argv[0]).name,  # without its arguments, which may hold secrets
    }


def columns_of(data, names):
    """Returns the first of the held-out columns and a list of the others, each None where a table holds it."""
    is_columns = isinstance(data, tuple) and not all(isinstance(value, str) for value in data)
    if not isinstance(data, (list, tuple)) or len(names) == 1 and not is_columns:
        data = (data,)
    if len(data) > len(names):
        must = f"be a tuple of {list(names)} at most, without weights"
        raise ValueError(f"`validation_data` must {must}; received {len(data)} parts.")
    first, *others = [*(data or [[]]), *[None] * (len(names) - len(data))]
    return first, others
