"""Task: what all tasks share, a model and a tokenizer, training on columns of text, files."""

import functools
import os
import pathlib
import sys
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checks, training
from keras_txf.checkpoints.checkpoint_info import has_checkpoint_info
from keras_txf.checks import short_repr
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import embedded_input, inputs_by_name
from keras_txf.tasks import folder as task_folder
from keras_txf.tasks.batches import Batches, in_batches, probabilities
from keras_txf.tasks.columns import is_tuple_of_columns, read_columns
from keras_txf.tasks.epoch_scores import EpochScores
from keras_txf.tasks.fit_options import check_compile_options, check_options, divide
from keras_txf.tasks.labels import class_weights
from keras_txf.tasks.option_tables import CompileOptions
from keras_txf.tasks.tokens import rows_of
from keras_txf.text.datasets import checked_tokenizer, limit, row

LONGEST = 512  # tokens of a text, where the model has no limit of its own


class Task:
    """A model, a tokenizer, and what joins them.

    Everything beneath stays usable: `model` is a functional Keras model, `tokenizer` a tokenizer of `txf.text`.

    Args:
        model: the model of the task's builder.
        tokenizer: the tokenizer of its ids.
        max_length: truncates longer texts; default the number of positions of the model, or 512.
        learning_rate: the default of `fit`.
    """

    columns = {"texts": "text"}  # of `fit`: the names of its arguments, and of the columns of a table
    renews = False  # whether each epoch has other examples
    _metrics = "metrics"  # of Keras' `compile`

    def __init__(self, model, tokenizer, max_length=None, learning_rate=1e-3):
        self.model = checks.built_model("model", model)
        self.tokenizer = checked_tokenizer("tokenizer", tokenizer)
        positions = self._limit()
        longest = min(positions or LONGEST, LONGEST) if max_length is None else max_length
        self.max_length = checks.size("max_length", longest)
        if positions is not None and self.max_length > positions:
            raise ValueError(f"`max_length` must be at most the model's {positions} positions; received {max_length}.")
        limit(self.tokenizer, self.max_length)
        self.learning_rate = checks.positive_number("learning_rate", learning_rate)
        self.record = []  # what `fit` did, for the model card
        self._is_compiled = False

    @shows_options
    def compile(
        self, optimizer: Any = "adamw", loss: Any = None, metrics: Any = None, **options: Unpack[CompileOptions]
    ) -> None:
        """Compiles the model with an optimizer, loss or metrics of your own, which `fit` then keeps.

        Args:
            optimizer: of Keras.
            loss, metrics: of Keras; default the task's.
            {options}

        Raises:
            ValueError: an optimizer, a loss or metrics that are none.
        """
        try:
            found = keras.optimizers.get(optimizer)
        except Exception as error:
            raise ValueError(f"`optimizer` must be one of Keras; received {short_repr(optimizer)}.") from error
        if found is None:
            raise ValueError("`optimizer` must be one of Keras; received None.")
        if loss is not None and not isinstance(loss, (str, list, tuple, dict)) and not callable(loss):
            raise ValueError(f"`loss` must be a loss of Keras or a function; received {short_repr(loss)}.")
        if metrics is not None and not isinstance(metrics, (list, tuple, dict)):
            raise ValueError(f"`metrics` must be a list of metrics of Keras; received {short_repr(metrics)}.")
        check_compile_options(options)
        self._compile(found, loss, metrics, **options)
        self._is_compiled = True

    def save(self, folder: str | os.PathLike, format: str = "keras") -> None:
        """Writes the task to a folder: the model, the tokenizer, the labels and a model card, without pickle.

        Args:
            folder: the folder, for "keras" another than the current one. What `save` wrote there before, in either
                format, is replaced when all is written; other files stay, a README.md too.
            format: "keras", for `load`; or "huggingface", a folder that transformers loads, for a task of a checkpoint.

        Raises:
            ValueError: "huggingface" for a model that is of no checkpoint, a disk that is full or read-only.
        """
        checks.one_of("format", format, ("keras", "huggingface"))
        path = checks.path("folder", folder)
        if format == "huggingface":
            if not has_checkpoint_info(self.checkpoint_model()):
                raise ValueError(
                    '`format` must be "keras" for a task that did not begin from a checkpoint; received "huggingface".'
                )
            self._check_format()
            task_folder.save_checkpoint(path, self)
        else:
            task_folder.save(path, self)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> Self:
        """Loads a task that `save` wrote, or a checkpoint in the format of Hugging Face.

        Raises:
            ValueError: no such folder, one without a file that is needed, one of another task, or a damaged file.
        """
        return task_folder.load(checks.path("folder", folder), cls)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor beside model and tokenizer, of JSON's types."""
        return {"max_length": self.max_length, "learning_rate": self.learning_rate}

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike) -> Self:
        raise NotImplementedError

    def _limit(self):
        """The number of positions of the model, or None."""
        found = [embedded_input(self.model, name) for name in inputs_by_name(self.model)]
        return min((tokens.max_length for tokens in found if tokens and tokens.max_length), default=None)

    def _compile(self, optimizer, loss=None, metrics=None, **options):
        own_loss, own_metrics = self._compilation()
        loss, metrics = own_loss if loss is None else loss, own_metrics if metrics is None else metrics
        self._trained().compile(optimizer, loss=loss, **{self._metrics: metrics, **options})

    @classmethod
    def _read(cls, data, others, columns, known=None):
        """Reads the columns of `fit`, those of the task unless `known` has others."""
        known = known or cls.columns
        names = list(known.values()) if columns is None else [columns] if isinstance(columns, str) else columns
        if not isinstance(names, (list, tuple)) or len(names) != len(known):
            raise ValueError(
                f"`columns` must be the names of {len(known)} columns, for {list(known)} in this order; received "
                f"{short_repr(columns)}."
            )
        names = checks.strings("columns", list(names))
        return read_columns(data, others[: len(known) - 1], dict(zip(known, names)))

    def _fit(self, data, others, options, class_weight=None, names=None):
        """Trains on columns, of other `names` than the task's; with a `class_weight` the last column has labels."""
        check_options(options)
        epochs, batch_size, seed = options["epochs"], options["batch_size"], options["seed"]
        names = names or self.columns
        values = self._checked(self._read(data, others, options["columns"], names))
        held = options["validation_data"]
        if held is not None:
            if not isinstance(held, (list, tuple)) or len(names) == 1 and not is_tuple_of_columns(held):
                held = (held,)
            if len(held) > len(names):
                raise ValueError(
                    f"`validation_data` must be a tuple of {list(names)} at most, without weights; received "
                    f"{len(held)} parts."
                )
            others = [*held[1:], *[None] * (len(names) - len(held))]
            try:
                held = self._checked(self._read(held[0] if held else [], others, options["columns"], names))
            except (TypeError, ValueError) as error:
                raise ValueError(f"`validation_data` must be as the data of `fit`: {error}") from error
        elif options["validation_split"]:
            values, held = divide(values, options["validation_split"], seed)
        initial_epoch = options["initial_epoch"]
        weights = None
        if class_weight is not None:
            numbers = [number for target in values[-1] for number in np.ravel(target)]
            weights = class_weights(class_weight, self.labels, numbers)
        batches = self._batches(values, batch_size, weights, shuffle=True, seed=seed)
        validation = None if held is None else self._batches(held, batch_size)
        self._prepare(options["learning_rate"], epochs * len(batches))
        for _ in range(initial_epoch):
            batches.on_epoch_end()
        history = self._trained().fit(
            batches,
            epochs=epochs,
            initial_epoch=initial_epoch,
            shuffle=False,  # Keras' order would be none of `seed`
            validation_data=validation,
            callbacks=[*([] if held is None else [self._epoch_scores(held, batch_size)]), *options["callbacks"]],
            verbose=options["verbose"],
        )
        scores = {name: float(found[-1]) for name, found in history.history.items()}
        self.record.append(
            {
                "examples": len(values[0]),
                "epochs": len(history.epoch) + initial_epoch,
                "scores": scores,
                "script": pathlib.Path(sys.argv[0]).name,  # alone: its arguments may hold secrets
            }
        )
        return history

    def _evaluate(self, data, others, columns, batch_size, names=None):
        """Returns the loss, the metrics of `_compilation` and the further scores of columns."""
        checks.size("batch_size", batch_size)
        values = self._checked(self._read(data, others, columns, names))
        if not self._trained().compiled:
            self._compile("adamw")
        found = self._trained().evaluate(self._batches(values, batch_size), return_dict=True, verbose=0)
        return {**found, **self._scores(values, batch_size)}

    def _batches(self, values, batch_size, weights=None, shuffle=False, seed=0):
        """Batches of examples, with the weight of the label of each target if there are `weights` of labels."""
        examples = self._examples(values)

        def make():
            found = list(examples.as_numpy_iterator())
            if not found:
                raise ValueError(
                    f"`max_length` must leave a token to learn in an example at least; received {self.max_length}, and "
                    "no example has one."
                )
            # No loss counts the targets below 0.
            return found if weights is None else [(*one, weights[np.maximum(one[1], 0)]) for one in found]

        padding = self._padding() if weights is None else (*self._padding(), 0)
        return Batches(make, padding, batch_size, self.max_length, shuffle, shuffle and self.renews, seed, self._finish)

    def _prepare(self, learning_rate, steps):
        if self._is_compiled:
            if learning_rate is not None:
                raise ValueError("`learning_rate` must be left out where you compiled the task; received both.")
            return
        peak = self.learning_rate if learning_rate is None else checks.positive_number("learning_rate", learning_rate)
        if steps < 10:  # the first rate of a warm-up is 0: of few steps it would waste one
            schedule = keras.optimizers.schedules.CosineDecay(peak, steps)
        else:
            schedule = training.warmup_cosine(peak, steps // 10, steps)
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=1.0)
        self._compile(optimizer)

    # What a task says of itself.

    def _checked(self, values):
        """The columns of `fit`, checked."""
        return values

    def _examples(self, values):
        """A `tf.data.Dataset` of (inputs, targets)."""
        raise NotImplementedError

    def _padding(self):
        """The value that fills up each part of an example."""
        return self._pad_id(), 0

    _finish = None  # a function of a batch

    def _compilation(self):
        """Loss and metrics."""
        raise NotImplementedError

    def _scores(self, values, batch_size):
        """Scores of columns beside those of `_compilation`, by their names."""
        return {}

    def _epoch_scores(self, values, batch_size):
        """The callback that adds scores of the held-out columns to the logs."""
        return EpochScores(lambda: self._scores(values, batch_size))

    def _trained(self):
        """The model that `fit` trains."""
        return self.model

    def _probabilities(self, examples, batch_size, verbose, activation=keras.ops.softmax):
        """The activation of the logits of each example, float32."""
        function = functools.partial(probabilities, self.model, activation=activation)
        return in_batches(function, examples, self._padding()[0], batch_size, self.max_length, verbose)

    def _pad_id(self):
        return 0 if self.tokenizer.pad_id is None else self.tokenizer.pad_id

    def _ids(self, texts):
        """Ids of each text, with `start` and `end`, truncated."""
        return rows_of(row(self.tokenizer, texts, self.max_length))

    def _checkpoint_config(self):
        """The values of config.json of a Hugging Face folder; None: those of the checkpoint."""
        return None

    def checkpoint_model(self) -> keras.Model:
        """Returns the model that a Hugging Face folder holds: the task's, or the part without what stands on it."""
        return self.model

    def _check_format(self):
        """Refuses what a Hugging Face folder cannot hold."""

    def _save_beside(self, folder):
        """Writes further files of a Hugging Face folder."""
