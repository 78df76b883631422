"""The options that other functions pass on to `generate`, and the defaults of one model, such as of its checkpoint.

See `layers.shown_options` for the tables.
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import keras

from keras_txf.checks import short_repr

_DEFAULTS = weakref.WeakKeyDictionary()


class AnswerOptions(TypedDict, total=False):
    """Options of `generate` that keep the form of its result."""

    stop_ids: Annotated[int | Sequence[int] | None, None, "a token id or several; an answer ends with the first."]
    stop_sequences: Annotated[Sequence[Sequence[int]] | None, None, "sequences of ids; an answer ends after one."]
    seed: Annotated[int | None, None, "the same seed gives the same answers. Default: other ones each time."]
    start_id: Annotated[
        int | Sequence[int] | None, None, "the token that the answers, or the prompts, begin with, or several."
    ]
    max_length: Annotated[int | None, None, "at most so many tokens in an answer, and in the prompt before it."]
    processors: Annotated[
        Sequence[Callable],
        (),
        "what is done to the logits before a token is chosen, such as `txf.generation.RepetitionPenalty(1.2)`.",
    ]


class TextOptions(AnswerOptions, total=False):
    """Options of `generate` in functions that return texts."""

    stop_strings: Annotated[
        str | Sequence[str] | None,
        None,
        "a string or several; an answer ends before the first of them, whatever tokens it is split into, and a stream "
        "shows no part of it. The prompt may hold them. Not for beams.",
    ]


class GenerateOptions(AnswerOptions, total=False):
    """Options of `generate` with the number of new tokens and the sampler."""

    max_new_tokens: Annotated[int | None, None, "at most so many tokens are generated."]
    sampler: Annotated[
        Any,
        "greedy",
        '"greedy", "sampling", "beam" or "contrastive"; or a sampler with options, such as `txf.generation.Beam(4)`.',
    ]


class ExportOptions(GenerateOptions, total=False):
    """Options of `generate` in a SavedModel."""

    num_return_sequences: Annotated[
        int | None, None, "how many sequences for each text: `text` and `scores` are then (B, number)."
    ]
    jit_compile: Annotated[
        bool,
        False,
        "whether XLA compiles the loop, which takes seconds for each new size of batch and each 32 tokens of prompt "
        "more, and makes it up to three times as fast, most where the batch is one.",
    ]


def set_generate_defaults(model: keras.Model, defaults: Callable[[dict], dict]) -> None:
    """Sets the defaults of a model's `generate`.

    Args:
        model: a model with `generate`.
        defaults: function of the caller's options, a dict, that returns the options and the defaults.
    """
    _DEFAULTS[model] = defaults


def share_generate_defaults(model, other):
    """Sets the defaults of a model for another model with the same weights."""
    if model in _DEFAULTS:
        _DEFAULTS[other] = _DEFAULTS[model]


def is_loaded(model):
    """Whether a model comes from a checkpoint or has its own defaults. It may then generate padding tokens."""
    return model in _DEFAULTS or getattr(model, "checkpoint", None) is not None


def default_stop_strings(model):
    """The stop strings among a model's defaults, or None."""
    return _DEFAULTS[model]({}).get("stop_strings") if model in _DEFAULTS else None


def with_defaults(model, options, known):
    """Returns the options of a call with the model's defaults, limited to the names in `known`.

    An option that is None has the model's default. Stop strings need a tokenizer: without a tokenizer a warning names
    the model's stop strings.
    """
    if model not in _DEFAULTS:
        return options
    completed = _DEFAULTS[model]({name: value for name, value in options.items() if value is not None})
    if options.get("stop_strings") is None and options.get("tokenizer") is None and completed.pop("stop_strings", ()):
        warnings.warn(
            f"The model's stop strings, {short_repr(default_stop_strings(model))}, do not end answers of this call "
            "without a tokenizer: pass tokenizer=, or generate by a task. stop_strings=() turns them off.",
            stacklevel=3,  # the caller of `generate`
        )
    return {name: value for name, value in {**options, **completed}.items() if name in known}
