"""Training and predicting: batches of examples of similar length, and what `fit` does around Keras' `fit`.

Legend: B batch, L length in tokens.
"""

import itertools
import pathlib
import sys

import keras
import numpy as np

from keras_txf import checks, training
from keras_txf.checks import bad_argument, short_repr
from keras_txf.progress import bar
from keras_txf.tasks.option_tables import FitOptions
from keras_txf.text.batching import bucket_list

WINDOW = 64  # batches within which examples are sorted by length
FIXED = "fixed"  # instead of a padding value, for rows of one length


class Batches(keras.utils.PyDataset):
    """Pads examples of similar length to the length of their bucket: few shapes, little padding.

    Shuffled batches are drawn anew for each epoch. Rows are sorted by length within windows of `WINDOW` batches; then
    the batches are shuffled. The shortest batch comes first.

    Args:
        make: a function that returns the examples, a list of one structure: (inputs, targets) or (inputs, targets,
            weight), of NumPy arrays of ranks 0 and 1. With `renew` it is called again for each epoch.
        padding: padding values in the structure of an example; "fixed" for rows of one length.
        batch_size: number B of rows.
        limit: the largest length, or None.
        shuffle: whether to shuffle; else the examples are sorted by length.
        renew: whether each epoch has other examples.
        seed: seed of the order.
        finish: a function of a batch, or None.
    """

    def __init__(self, make, padding, batch_size, limit, shuffle=False, renew=False, seed=0, finish=None):
        super().__init__()
        self.make, self.padding, self.batch_size, self.limit = make, padding, batch_size, limit
        self.finish = finish
        self.shuffle, self.renew, self.random = shuffle, renew, np.random.default_rng(seed)
        self.examples = make()
        self._arrange()
        self._widths = keras.tree.map_structure(_width, self._padded(0)) if self.batches else None

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        # Keras infers the shapes of all batches from the first two, and fixes an axis in which the two agree. The
        # second batch is longer than the first. If the first has the largest length, all batches have it.
        batch = self._padded(index, lambda width: width + 1 if index == 1 else width if width == self.limit else 0)
        return batch if self.finish is None else self.finish(batch)

    def on_epoch_end(self):
        if self.renew:
            self.examples = self.make()
        if self.shuffle:
            self._arrange()

    def _padded(self, index, least=None):
        least = None if least is None else keras.tree.map_structure(least, self._widths)
        return pad([self.examples[i] for i in self.batches[index]], self.padding, self.limit, least)

    def _arrange(self):
        padded = [value != FIXED for value in keras.tree.flatten(self.padding)]
        leaves = (itertools.compress(keras.tree.flatten(example), padded) for example in self.examples)
        lengths = np.array([max(map(np.size, leaf_arrays)) for leaf_arrays in leaves])
        order = self.random.permutation(len(lengths)) if self.shuffle else np.arange(len(lengths))
        window = WINDOW * self.batch_size if self.shuffle else len(order)
        parts = [order[start : start + window] for start in range(0, len(order), window)]
        parts = [part[np.argsort(lengths[part], kind="stable")] for part in parts]
        batches = [part[i : i + self.batch_size] for part in parts for i in range(0, len(part), self.batch_size)]
        if self.shuffle and batches:
            batches = [batches[i] for i in self.random.permutation(len(batches))]
            shortest = min(range(len(batches)), key=lambda i: lengths[batches[i][-1]])
            batches[0], batches[shortest] = batches[shortest], batches[0]
        self.batches = batches


def pad(examples, padding, limit, least=None):
    """Stacks the leaves of B examples. Rows (L,) become (B, length of the bucket), at least of the lengths `least`."""

    def stack(value, least, *leaves):
        if np.ndim(leaves[0]) == 0 or value == FIXED:
            return np.stack(leaves)
        longest = max(*map(len, leaves), min(least, limit or least))
        length = next(length for length in bucket_list(limit or 2 * longest + 8) if length >= longest)
        rows = np.full((len(leaves), length), value, leaves[0].dtype)
        for row, leaf in zip(rows, leaves):
            row[: len(leaf)] = leaf
        return rows

    least = keras.tree.map_structure(lambda _: 0, padding) if least is None else least
    return keras.tree.map_structure(stack, padding, least, *examples)


def _width(batch):
    return batch.shape[1] if batch.ndim == 2 else 0


def in_batches(function, examples, padding, batch_size, limit, verbose=1):
    """Applies a function to batches of examples of similar length; returns its rows in the order of the examples.

    A progress bar shows from ten batches on, see `batch_bar`.
    """
    checks.size("batch_size", batch_size)
    checks.verbosity("verbose", verbose)
    if not examples:
        return []
    batches = Batches(lambda: examples, padding, batch_size, limit)
    answers = [None] * len(examples)
    for index, rows in enumerate(batch_bar(batches.batches, verbose)):
        for row, answer in zip(rows, function(batches[index])):
            answers[row] = answer
    return answers


def probabilities(model, inputs, activation=keras.ops.softmax):
    """Returns the activation of the logits of a batch, float32."""
    logits = model.predict_on_batch(inputs)
    logits = keras.ops.cast(logits["logits"] if isinstance(logits, dict) else logits, "float32")
    return keras.ops.convert_to_numpy(activation(logits))


def batch_bar(batches, verbose):
    """Returns an iterator of batches, with a progress bar from ten batches on."""
    checks.verbosity("verbose", verbose)
    return bar(batches, unit="batch", verbose=verbose if len(batches) >= 10 else 0)


def rows_of(ragged):
    """Returns the rows of a ragged tensor as NumPy arrays. Making a data set would take a second."""
    splits = ragged.row_splits.numpy()
    return np.split(ragged.flat_values.numpy(), splits[1:-1]) if len(splits) > 1 else []


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
    """Raises ValueError if an option of `FitOptions` has a wrong value."""
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
    """Raises ValueError if Keras' `compile` cannot take the loss, the metrics or an option."""
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
    """Converts a name or a configuration to a Keras optimizer; returns an optimizer unchanged."""
    try:
        optimizer = keras.optimizers.get(value)
    except Exception as error:  # Keras raises errors of several types
        raise bad_argument("optimizer", "be one of Keras", value) from error
    if optimizer is None:
        raise bad_argument("optimizer", "be one of Keras", None)
    return optimizer


def default_optimizer(peak, steps):
    """Returns AdamW, whose learning rate grows for a tenth of the steps and falls by a cosine."""
    if steps < 10:  # the first rate of a warm-up is 0, which would waste one of few steps
        schedule = keras.optimizers.schedules.CosineDecay(peak, steps)
    else:
        schedule = training.warmup_cosine(peak, steps // 10, steps)
    return keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)


def divide(values, share, seed):
    """Draws the held-out examples. Returns the columns of the other examples and of the held-out examples."""
    count = len(values[0])
    held = round(count * share)
    if not 0 < held < count:
        raise ValueError(f"`validation_split` must leave examples on both sides; received {share} of {count} examples.")
    order = np.random.default_rng(seed).permutation(count)
    return ([[column[i] for i in part] for column in values] for part in (np.sort(order[held:]), np.sort(order[:held])))


def record_of(history, examples, initial_epoch):
    """Returns the entry of the model card about a training."""
    return {
        "examples": examples,
        "epochs": len(history.epoch) + initial_epoch,
        "scores": {name: float(found[-1]) for name, found in history.history.items()},
        "script": pathlib.Path(sys.argv[0]).name,  # without its arguments, which may hold secrets
    }


def columns_of(data, names):
    """Splits held-out data into the first column or table, and a list of the others, None if a table holds them."""
    is_columns = isinstance(data, tuple) and not all(isinstance(value, str) for value in data)
    if not isinstance(data, (list, tuple)) or len(names) == 1 and not is_columns:
        data = (data,)
    if len(data) > len(names):
        must = f"be a tuple of {list(names)} at most, without weights"
        raise ValueError(f"`validation_data` must {must}; received {len(data)} parts.")
    missing = len(names) - len(data)
    return (data[0] if data else []), [*data[1:], *[None] * missing]


def class_weights(class_weight, labels, targets):
    """Returns the weight of each label, from a dict by label or from "balanced", which gives labels equal total weight.

    `targets` holds the number of each text's label, or a list of the numbers of its words' labels.
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
