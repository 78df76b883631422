"""Defaults of `generate` for one model, such as those of its checkpoint."""

import warnings
import weakref
from collections.abc import Callable

import keras

from keras_txf.checks import short_repr

_DEFAULTS = weakref.WeakKeyDictionary()


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
