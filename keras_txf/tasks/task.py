"""Task: the base of all tasks. A task is a model and a tokenizer that train on columns of text."""

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
    """A model and a tokenizer, joined. A subclass turns columns into examples, and logits into answers.

    Both can be used alone: `model` is a functional Keras model, `tokenizer` is a tokenizer of `txf.text`.

    Args:
        model: the model of the task's builder.
        tokenizer: the tokenizer of its ids.
        max_length: truncates longer texts; default the model's number of positions, or 512.
        learning_rate: default learning rate of `fit`.
    """

    columns = {"texts": "text"}  # name of an argument of `fit` -> name of the column in a table
    renews = False  # whether each epoch has new examples
    _options = ()  # further arguments of the constructor, which are attributes
    labels = None  # list of the labels, for a task with labels
    _metrics = "metrics"  # argument of Keras' `compile`
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
        self.record = []  # an entry for each training, for the model card
        self._is_compiled = False

    @shows_options
    def compile(
        self, optimizer: Any = "adamw", loss: Any = None, metrics: Any = None, **options: Unpack[CompileOptions]
    ) -> None:
        """Compiles the model with your own optimizer, loss or metrics, which `fit` then keeps.

        Args:
            optimizer: a Keras optimizer.
            loss, metrics: Keras losses and metrics; default the task's own.
            {options}

        Raises:
            ValueError: a value that Keras' `compile` cannot take.
        """
        keras_optimizer = fitting.optimizer_of(optimizer)
        fitting.check_compile_options(loss, metrics, options)
        self._compile(keras_optimizer, loss, metrics, **options)
        self._is_compiled = True

    def save(self, folder: Path, format: str = "keras") -> None:
        """Writes the task to a folder: the model, the tokenizer, the labels and a model card, without pickle.

        Args:
            folder: the folder; for "keras" not the current folder. `save` replaces its own earlier files, of either
                format, once all is written. Other files stay, and so does a README.md that somebody wrote or edited.
            format: "keras", for `load`; or, for a task of a checkpoint, "huggingface", which transformers loads.

        Raises:
            ValueError: "huggingface" for a model that does not come from a checkpoint; a disk that is full or
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
        """Loads a task that `save` wrote, or a checkpoint in Hugging Face's format.

        Raises:
            ValueError: a missing folder, a missing or damaged file, or a folder of another task.
        """
        return task_folder.load(checks.path("folder", folder), cls)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor except model and tokenizer, as JSON's types."""
        return {name: getattr(self, name) for name in (*self._options, "max_length", "learning_rate")}

    @classmethod
    def from_checkpoint(cls, path: Path) -> Self:
        raise NotImplementedError

    @classmethod
    def _from_scratch(cls, build, options, texts, *sizes, train=word_pieces, position=None, **own):
        """Makes a task of an untrained model, and of the caller's tokenizer or a new one.

        Args:
            build: the builder of the model.
            options: the options of `from_scratch`.
            texts: a function that returns the texts of a new vocabulary.
            sizes: arguments of the builder after the number of tokens, such as the number of classes.
            train: the function that makes a new tokenizer.
            position: the task's default of the option `position`.
            own: arguments of the task's constructor.
        """
        tokenizer, vocab_size, max_length = map(options.pop, ("tokenizer", "vocab_size", "max_length"))
        if tokenizer is None:
            tokenizer = train(texts(), vocab_size)
        options = builder_options(options, checked_tokenizer("tokenizer", tokenizer), max_length, position)
        return cls(build(tokenizer.vocab_size, *sizes, **options), tokenizer, max_length=max_length, **own)

    @staticmethod
    def _find(path, options):
        """Returns the folder of a checkpoint and its tokenizer. Removes `revision` from the options."""
        folder = checkpoints.find(path, options.pop("revision", None))
        try:
            return folder, text.from_checkpoint(folder)
        except ValueError as error:
            raise ValueError(f"`path` must be a checkpoint with a tokenizer: {error}") from error

    def _limit(self):
        """Returns the model's number of positions, or None."""
        inputs = [embedded_input(self.model, name) for name in inputs_by_name(self.model)]
        return min((tokens.max_length for tokens in inputs if tokens and tokens.max_length), default=None)

    def _compile(self, optimizer, loss=None, metrics=None, **options):
        own_loss, own_metrics = self._compilation()
        loss, metrics = own_loss if loss is None else loss, own_metrics if metrics is None else metrics
        self._trained().compile(optimizer, loss=loss, **{self._metrics: metrics, **options})

    @classmethod
    def _read(cls, data, others, columns, known=None):
        """Reads the columns of `fit`: the columns of the task, or the columns in `known`."""
        known = known or cls.columns
        return read_columns(data, others[: len(known) - 1], named_columns(columns, known))

    def _fit(self, data, others, options, class_weight=None, names=None):
        """Trains on the columns of the task, or on the columns `names`. `class_weight` is about the last column."""
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
        """Returns the columns to train on, and the held-out columns or None."""
        columns, held = options["columns"], options["validation_data"]
        values = self._checked(self._read(data, others, columns, names))
        if held is None:
            share = options["validation_split"]
            return fitting.divide(values, share, options["seed"]) if share else (values, None)
        first, rest = fitting.columns_of(held, names)
        try:
            return values, self._checked(self._read(first, rest, columns, names))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`validation_data` must have the form of the data of `fit`: {error}") from error

    def _evaluate(self, data, others, columns, batch_size, names=None):
        """Returns the loss, the metrics of `_compilation` and the scores of `_scores`."""
        checks.size("batch_size", batch_size)
        values = self._checked(self._read(data, others, columns, names))
        if not self._trained().compiled:
            self._compile("adamw")
        metrics = self._trained().evaluate(self._batches(values, batch_size), return_dict=True, verbose=0)
        return {**metrics, **self._scores(values, batch_size)}

    def _batches(self, values, batch_size, weights=None, shuffle=False, seed=0):
        """Returns batches of examples. With `weights` of labels each target has the weight of its label."""
        examples = self._examples(values)

        def make():
            made = examples if isinstance(examples, list) else list(examples.as_numpy_iterator())
            if not made:
                raise bad_argument("max_length", "leave a token to learn in at least one example", self.max_length)
            # Losses ignore targets below 0.
            return made if weights is None else [(*one, weights[np.maximum(one[1], 0)]) for one in made]

        padding = self._padding() if weights is None else (*self._padding(), 0)
        renew = shuffle and self.renews
        return Batches(
            make, padding, batch_size, self.max_length, shuffle=shuffle, renew=renew, seed=seed, finish=self._finish
        )

    def _prepare(self, learning_rate, steps):
        if self._is_compiled:
            if learning_rate is not None:
                raise ValueError("`learning_rate` must be left out for a task that you compiled; received both.")
            return
        peak = self.learning_rate if learning_rate is None else checks.positive_number("learning_rate", learning_rate)
        self._compile(fitting.default_optimizer(peak, steps))

    # A subclass overrides the methods below.

    def _checked(self, values):
        """Returns the columns of `fit`, checked."""
        return [strings(name, column) for name, column in zip(self.columns, values)]

    def _examples(self, values):
        """Returns a `tf.data.Dataset` of (inputs, targets), or a list of them."""
        raise NotImplementedError

    def _padding(self):
        """Returns the padding value of each part of an example."""
        return self._input_padding(), 0

    def _input_padding(self):
        """Returns the padding value of each input of the model."""
        ids = self._pad_id()
        return {"token_ids": ids, "token_type_ids": 0} if self._token_types else ids

    _finish = None  # a function that completes a batch

    def _compilation(self):
        """Returns the loss and the metrics."""
        raise NotImplementedError

    def _scores(self, values, batch_size):
        """Returns scores by name, besides the metrics of `_compilation`."""
        return {}

    def _trained(self):
        """Returns the model that `fit` trains."""
        return self.model

    def _probabilities(self, examples, batch_size, verbose, activation=keras.ops.softmax):
        """Returns the activation of the logits of each example, float32."""
        function = functools.partial(probabilities, self.model, activation=activation)
        return in_batches(function, examples, self._input_padding(), batch_size, self.max_length, verbose)

    def _pad_id(self):
        return 0 if self.tokenizer.pad_id is None else self.tokenizer.pad_id

    def _ids(self, texts):
        """Returns the ids of each text, with `start` and `end`, truncated."""
        return rows_of(row(self.tokenizer, texts, self.max_length))

    def _export(self, folder, overwrite, **options):
        """Writes a SavedModel that truncates its texts as the task does."""
        tokenizer = self.tokenizer.from_config({**self.tokenizer.get_config(), "length": self.max_length})
        names = None if self.labels is None else list(map(str, self.labels))
        text.export(self.model, tokenizer, folder, labels=names, overwrite=overwrite, **options)

    def _checkpoint_config(self):
        """Returns the values of config.json for a Hugging Face folder; None for the checkpoint's values."""
        return None if self.labels is None else config_with_labels(self.model, self.labels)

    def checkpoint_model(self) -> keras.Model:
        """Returns the model that a Hugging Face folder holds: the task's model, or its encoder."""
        return self.model

    def _check_format(self):
        """Raises ValueError if a Hugging Face folder cannot hold the model."""

    def _save_beside(self, folder):
        """Writes further files of a Hugging Face folder."""
