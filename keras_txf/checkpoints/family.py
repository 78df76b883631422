"""What a family of checkpoints is: how its configuration and its tensors are ours."""

import dataclasses
from collections.abc import Callable

from keras_txf import models


@dataclasses.dataclass
class Task:
    """What a family's checkpoints are made for.

    Args:
        architecture: the class of Hugging Face, as `config.json` names it.
        build: builder of `txf.models`.
        tensors: rows of the head, or a function of the config that returns them. A row for `logits` of a language
            model is for the case that it is not tied to the embedding.
        options: function of the config: the builder's options for the head.
        optional: dict of the builder's options that a tensor's presence decides -> its name.
        untied: rows that take the place of others where the logits are not tied to the embedding.
        whole: whether the class holds the family's body under its prefix; False where it is the body alone.
    """

    architecture: str
    build: Callable
    tensors: dict | Callable = dataclasses.field(default_factory=dict)
    options: Callable = lambda c: {}
    optional: dict = dataclasses.field(default_factory=dict)
    untied: dict = dataclasses.field(default_factory=dict)
    whole: bool = True

    def rows(self, config):
        return _rows(self.tensors, config)


@dataclasses.dataclass
class Family:
    """A row of option values, and a table of tensors.

    Args:
        options: function of a `Config`: the options of every builder.
        tensors: the rows of the body, or a function of the config that returns them.
        tasks: dict of names -> `Task`, what files without an architecture are for first.
        prefix: what the body's names begin with in a class with a head.
        ignore: patterns of buffers, which no weight comes from.
        kept: patterns of tensors of a head that is not built, which `save` gives back.
        aliases: dict of names that a file may use for, or beside, another tensor of the same numbers -> its name.
        neutral: keys of the config without an effect, beside those of `config.NEUTRAL`.
        says_tied: whether `tie_word_embeddings` says only whether the logits are tied to the embedding.
    """

    options: Callable
    tensors: dict | Callable
    tasks: dict
    prefix: str = ""
    ignore: tuple = ()
    kept: tuple = ()
    aliases: dict = dataclasses.field(default_factory=dict)
    neutral: tuple = ()
    says_tied: bool = True

    def rows(self, config):
        return _rows(self.tensors, config)


def _rows(table, config):
    return table(config) if callable(table) else table


def encoder_task(architecture):
    """The body alone."""
    return Task(architecture, models.encoder, whole=False)


def classes(architecture, build, tensors, options=lambda c: {}):
    """A classifier of `build`."""
    return Task(architecture, build, tensors, lambda c: {"num_classes": c.num_classes(), **options(c)})


POOLER = r"pooler\.dense\.(weight|bias)"  # of a body that is not built with it
LANGUAGE_MODELS = ("masked_lm", "causal_lm", "seq2seq")
