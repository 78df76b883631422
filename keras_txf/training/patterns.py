"""Patterns of the paths of layers and variables."""

import difflib
import fnmatch

import keras

from keras_txf.checks import short_repr


def as_patterns(name, patterns, least=1):
    """Returns the list of patterns of an argument, which may be one string."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if (
        not isinstance(patterns, (list, tuple))
        or not all(isinstance(pattern, str) for pattern in patterns)
        or len(patterns) < least
    ):
        raise ValueError(
            f"`{name}` must be a pattern such as '*/query', or a list of them; received {short_repr(patterns)}."
        )
    return patterns


def select(name, patterns, paths, kind, least=1):
    """Returns the paths that a pattern matches; refuses a pattern without a match.

    `*` matches any text, slashes included, `?` one character, `[0-3]` one of these characters.
    """
    chosen = {}
    for pattern in as_patterns(name, patterns, least):
        matches = fnmatch.filter(paths, pattern)
        if not matches:
            near = difflib.get_close_matches(pattern, paths, 3, 0) or sorted(paths)[:3]
            raise ValueError(
                f"`{name}` must match the paths of {kind}; received {short_repr(pattern)}, which matches none. There "
                f"are {', '.join(map(repr, near)) or 'none'}{' ...' * (len(paths) > 3)}."
            )
        chosen.update(dict.fromkeys(matches))
    return list(chosen)


def check_model(model):
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"`model` must be a built Keras model; received {short_repr(model)}.")
