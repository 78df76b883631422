"""Defaults of `generate` that belong to one model, such as those of the checkpoint that it was loaded from."""

import warnings
import weakref
from collections.abc import Callable

import keras

from keras_txf.checks import short_repr

_DEFAULTS = weakref.WeakKeyDictionary()


def set_generate_defaults(model: keras.Model, defaults: Callable[[dict], dict]) -> None:
    """Gives a model defaults of its own.

    Args:
        model: a model with `generate`.
        defaults: function of the options that the caller gives, a dict, which returns them with the defaults added.
    """
    _DEFAULTS[model] = defaults


def share_generate_defaults(model, other):
    """Gives another model of the same weights the defaults of a model."""
    if model in _DEFAULTS:
        _DEFAULTS[other] = _DEFAULTS[model]


def is_loaded(model):
    """Whether a model came from a checkpoint, or has defaults of its own: it may then choose its padding."""
    return model in _DEFAULTS or getattr(model, "checkpoint", None) is not None


def default_stop_strings(model):
    """The model's own stop strings, or None."""
    return _DEFAULTS[model]({}).get("stop_strings") if model in _DEFAULTS else None


def with_defaults(model, given, known):
    """Returns the options of a call with the model's defaults, those in `known`; an option of None counts as none.

    Stop strings need a tokenizer: a warning says where the model has some and the call has none.
    """
    if model not in _DEFAULTS:
        return given
    found = _DEFAULTS[model]({name: value for name, value in given.items() if value is not None})
    if given.get("stop_strings") is None and given.get("tokenizer") is None and found.pop("stop_strings", ()):
        warnings.warn(
            f"The model's stop strings, {short_repr(default_stop_strings(model))}, end no answer of this call, which "
            "has no tokenizer: pass tokenizer=, or generate by a task; stop_strings=() says that none is meant.",
            stacklevel=3,  # the caller of `generate`
        )
    return {name: value for name, value in {**given, **found}.items() if name in known}
