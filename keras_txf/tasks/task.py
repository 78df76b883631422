"""Task: the base of all tasks: a model and a tokenizer, training on columns of text, files."""

import functools
import os
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checkpoints, checks, text
from keras_txf.checkpoints.checkpoint_info import has_checkpoint_info
from keras_txf.checkpoints.saved_config import config_with_labels
from keras_txf.checks import bad_argument
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import embedded_input, inputs_by_name
from keras_txf.tasks import fitting
from keras_txf.tasks import folder as task_folder
from keras_txf.tasks.columns import named_columns, read_columns, strings
from keras_txf.tasks.fitting import Batches, class_weights, in_batches, probabilities, rows_of
from keras_txf.tasks.option_tables import CompileOptions, builder_options
from keras_txf.text.datasets import checked_tokenizer, limit, row

Path = str | os.PathLike
LONGEST = 512  # tokens of a text, for a model without a limit


def word_pieces(lines, vocab_size, **options):
    """Trains a WordPiece tokenizer with the special tokens of BERT."""
    return text.WordPieceTokenizer.train(lines, vocab_size, start="[CLS]", end="[SEP]", **options)


class Task:
    """A model and a tokenizer, joined. A subclass says how columns become examples, and logits become answers.

    Both stay usable alone: `model` is a functional Keras model, `tokenizer` a tokenizer of `txf.text`.

    Args:
        model: the model of the task's builder.
        tokenizer: the tokenizer of its ids.
        max_length: truncates longer texts; default the number of positions of the model, or 512.
        learning_rate: the default of `fit`.
    """

    columns = {"texts": "text"}  # of `fit`: the names of its arguments, and of the columns of a table
    renews = False  # whether each epoch has other examples
    labels = None  # of a task that has labels
    _metrics = "metrics"  # of Keras' `compile`
    _token_types = False  # whether the model has the input `token_type_ids`

    def __init__(self, model, tokenizer, max_length=None, learning_rate=1e-3):
        self.model = checks.built_model("model", model)
        self.tokenizer = checked_tokenizer("tokenizer", tokenizer)
        positions = self._limit()
        longest = min(positions or LONGEST, LONGEST) if max_length is None else max_length
        self.max_length = checks.size("max_length", longest)
        if positions is not None and self.max_length > positions:
            raise bad_argument("max_length", f"be at most the model's {positions} positions", max_length)
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
            ValueError: a value that Keras' `compile` cannot have.
        """
        found = fitting.optimizer_of(optimizer)
        fitting.check_compile_options(loss, metrics, options)
        self._compile(found, loss, metrics, **options)
        self._is_compiled = True

    def save(self, folder: Path, format: str = "keras") -> None:
        """Writes the task to a folder: the model, the tokenizer, the labels and a model card, without pickle.

        Args:
            folder: the folder, for "keras" another than the current one. What `save` wrote there before, in either
                format, is replaced when all is written; other files stay, a README.md too.
            format: "keras", for `load`; or "huggingface", a folder that transformers loads, for a task of a checkpoint.

        Raises:
            ValueError: "huggingface" for a model that was not loaded from a checkpoint; a disk that is full or
                read-only.
        """
        checks.one_of("format", format, ("keras", "huggingface"))
        path = checks.path("folder", folder)
        if format == "huggingface":
            if not has_checkpoint_info(self.checkpoint_model()):
                raise bad_argument("format", 'be "keras" for a task that did not begin from a checkpoint', format)
            self._check_format()
            task_folder.save_checkpoint(path, self)
        else:
            task_folder.save(path, self)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Loads a task that `save` wrote, or a checkpoint in the format of Hugging Face.

        Raises:
            ValueError: no such folder, one without a file that is needed, one of another task, or a damaged file.
        """
        return task_folder.load(checks.path("folder", folder), cls)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor without model and tokenizer, of JSON's types."""
        return {"max_length": self.max_length, "learning_rate": self.learning_rate}

    @classmethod
    def from_checkpoint(cls, path: Path) -> Self:
        raise NotImplementedError

    @classmethod
    def _from_scratch(cls, build, options, texts, *sizes, train=word_pieces, position=None, **own):
        """Makes a task of an untrained model, and of the caller's tokenizer or a new one.

        Args:
            build: the builder of the model.
            options: the options of `from_scratch`, for the builder.
            texts: a function that returns the texts of a new vocabulary.
            sizes: arguments of the builder after the number of tokens, such as the number of classes.
            train: the function that makes a new tokenizer.
            position: the task's default of the option `position`.
            own: arguments of the constructor.
        """
        tokenizer, vocab_size, max_length = map(options.pop, ("tokenizer", "vocab_size", "max_length"))
        if tokenizer is None:
            tokenizer = train(texts(), vocab_size)
        options = builder_options(options, checked_tokenizer("tokenizer", tokenizer), max_length, position)
        return cls(build(tokenizer.vocab_size, *sizes, **options), tokenizer, max_length=max_length, **own)

    @staticmethod
    def _find(path, options):
        """The folder of a checkpoint, and its tokenizer; takes the `revision` out of the options."""
        found = checkpoints.find(path, options.pop("revision", None))
        try:
            return found, text.from_checkpoint(found)
        except ValueError as error:
            raise ValueError(f"`path` must be a checkpoint with a tokenizer: {error}") from error

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
        """Reads the columns of `fit`: the columns of the task, or of `known`."""
        known = known or cls.columns
        return read_columns(data, others[: len(known) - 1], named_columns(columns, known))

    def _fit(self, data, others, options, class_weight=None, names=None):
        """Trains on the columns of the task, or on columns of other `names`. `class_weight` is for the last column."""
        fitting.check_fit_options(options)
        values, held = self._examples_of_fit(data, others, options, names or self.columns)
        batch_size, seed, callbacks = options["batch_size"], options["seed"], options["callbacks"]
        weights = None if class_weight is None else class_weights(class_weight, self.labels, values[-1])
        batches, validation = self._batches(values, batch_size, weights, shuffle=True, seed=seed), None
        if held is not None:
            validation = self._batches(held, batch_size)
            callbacks = [fitting.EpochScores(lambda: self._scores(held, batch_size)), *callbacks]
        self._prepare(options["learning_rate"], options["epochs"] * len(batches))
        for _ in range(options["initial_epoch"]):
            batches.on_epoch_end()
        passed = {name: options[name] for name in ("epochs", "initial_epoch", "verbose")}
        # Keras' shuffling would not depend on `seed`.
        history = self._trained().fit(
            batches, shuffle=False, validation_data=validation, callbacks=[*callbacks], **passed
        )
        self.record.append(fitting.record_of(history, len(values[0]), options["initial_epoch"]))
        return history

    def _examples_of_fit(self, data, others, options, names):
        """The columns to train on, and the columns to hold out or None."""
        columns, held = options["columns"], options["validation_data"]
        values = self._checked(self._read(data, others, columns, names))
        if held is None:
            share = options["validation_split"]
            return fitting.divide(values, share, options["seed"]) if share else (values, None)
        first, rest = fitting.columns_of(held, names)
        try:
            return values, self._checked(self._read(first, rest, columns, names))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`validation_data` must be as the data of `fit`: {error}") from error

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
                raise bad_argument("max_length", "leave a token to learn in at least one example", self.max_length)
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
        self._compile(fitting.default_optimizer(peak, steps))

    # A subclass overrides the methods below.

    def _checked(self, values):
        """The columns of `fit`, checked."""
        return [strings(name, column) for name, column in zip(self.columns, values)]

    def _examples(self, values):
        """A `tf.data.Dataset` of (inputs, targets)."""
        raise NotImplementedError

    def _padding(self):
        """The value that fills up each part of an example."""
        return self._input_padding(), 0

    def _input_padding(self):
        """The value that fills up each input of the model."""
        ids = self._pad_id()
        return {"token_ids": ids, "token_type_ids": 0} if self._token_types else ids

    _finish = None  # a function of a batch

    def _compilation(self):
        """Loss and metrics."""
        raise NotImplementedError

    def _scores(self, values, batch_size):
        """Scores of columns next to the metrics of `_compilation`, by their names."""
        return {}

    def _trained(self):
        """The model that `fit` trains."""
        return self.model

    def _probabilities(self, examples, batch_size, verbose, activation=keras.ops.softmax):
        """The activation of the logits of each example, float32."""
        function = functools.partial(probabilities, self.model, activation=activation)
        return in_batches(function, examples, self._input_padding(), batch_size, self.max_length, verbose)

    def _pad_id(self):
        return 0 if self.tokenizer.pad_id is None else self.tokenizer.pad_id

    def _ids(self, texts):
        """Ids of each text, with `start` and `end`, truncated."""
        return rows_of(row(self.tokenizer, texts, self.max_length))

    def _export(self, folder, overwrite, **options):
        """Writes a SavedModel that truncates its texts as the task does."""
        tokenizer = self.tokenizer.from_config({**self.tokenizer.get_config(), "length": self.max_length})
        names = None if self.labels is None else list(map(str, self.labels))
        text.export(self.model, tokenizer, folder, labels=names, overwrite=overwrite, **options)

    def _checkpoint_config(self):
        """The values of config.json of a Hugging Face folder; None: the values of the checkpoint."""
        return None if self.labels is None else config_with_labels(self.model, self.labels)

    def checkpoint_model(self) -> keras.Model:
        """Returns the model that a Hugging Face folder holds: the task's model, or its encoder."""
        return self.model

    def _check_format(self):
        """Raises ValueError for a model that a Hugging Face folder cannot hold."""

    def _save_beside(self, folder):
        """Writes further files of a Hugging Face folder."""
