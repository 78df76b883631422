"""The tokenizer of a task, and the ids that it gives."""

import functools
from typing import Any

import numpy as np

from keras_txf import checkpoints, text
from keras_txf.layers.embeddings import TABLES
from keras_txf.layers.shown_options import default_options
from keras_txf.models.stack import each_value
from keras_txf.tasks.option_tables import ScratchOptions
from keras_txf.text.datasets import checked_tokenizer


def rows_of(ragged):
    """The rows of a ragged tensor, as NumPy arrays. A data set would take a second to make."""
    splits = ragged.row_splits.numpy()
    return np.split(ragged.flat_values.numpy(), splits[1:-1]) if len(splits) > 1 else []


def tokenizer_or(tokenizer: Any, train: Any, name: str = "tokenizer") -> Any:
    """The tokenizer that a caller gives, or one that `train` makes."""
    return train() if tokenizer is None else checked_tokenizer(name, tokenizer)


def take_tokenizer(options: dict[str, Any]) -> tuple[Any, int, int]:
    """Takes `tokenizer`, `vocab_size` and `max_length`, which no builder has, out of the options of `from_scratch`."""
    return options.pop("tokenizer"), options.pop("vocab_size"), options.pop("max_length")


def word_pieces_or(tokenizer: Any, corpus: Any, vocab_size: int, **options: Any) -> Any:
    """The tokenizer that a caller gives, or a WordPiece tokenizer of the texts that `corpus` returns."""
    train = functools.partial(text.WordPieceTokenizer.train, start="[CLS]", end="[SEP]", **options)
    return tokenizer_or(tokenizer, lambda: train(corpus(), vocab_size))


def builder_options(
    options: dict[str, Any], tokenizer: Any, max_length: int, position: str | None = None
) -> dict[str, Any]:
    """The options of a builder with those that the examples decide: padding, and the number of learned positions.

    `position` is the task's default, which layers as `attention` replace.
    """
    positions = {"max_length": max_length} if options["position_encoding"] in TABLES else {}
    return {
        **options,
        "pad_id": tokenizer.pad_id,
        **positions,
        **_replaced(options, {"num_heads": default_options(ScratchOptions)["num_heads"], "position": position}),
    }


def _replaced(options, defaults):
    """The defaults that layers as `attention` replace in all blocks: these have heads of their own."""
    if any(layer is None for layer in each_value(options["attention"])):
        return {}
    return {name: None for name, default in defaults.items() if options[name] == default}


def tokenizer_of(path, options):
    """The folder of a checkpoint, and its tokenizer; takes the `revision` out of the options."""
    found = checkpoints.find(path, options.pop("revision", None))
    try:
        return found, text.from_checkpoint(found)
    except ValueError as error:
        raise ValueError(f"`path` must be a checkpoint with a tokenizer: {error}") from error
