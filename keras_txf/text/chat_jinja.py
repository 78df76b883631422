"""Jinja templates of chat models, which run in jinja2's sandbox, in a process with limits."""

import functools

from keras_txf.checks import short_repr
from keras_txf.strangers import StrangersError, ask
from keras_txf.text.lazy_imports import require_jinja2


@functools.lru_cache(maxsize=64)
def has_generation(source):
    """Whether a template marks answers by `{% generation %}`. Refuses a source that is no template."""
    try:
        return ask("check", source)
    except StrangersError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise ValueError(
            f"`template` must be a Jinja template; received {short_repr(source)}: {short_repr(error.reason)}{line}."
        ) from None


def rendered(source, variables, marks=False):
    """Returns the text of a template.

    Args:
        source: str, the template.
        variables: dict of what the template reads, of JSON's types.
        marks: whether to put `strangers_process.MARKS` around the text of a `{% generation %}` block.

    Raises:
        ImportError: jinja2 is not installed.
        ValueError: variables that the template refuses, or too much time, memory or text.
    """
    require_jinja2()
    try:
        return ask("render", source, marks, variables)
    except StrangersError as error:
        raise ValueError(
            "`messages` must be a conversation that the template renders; received "
            f"{short_repr(variables['messages'])}: {error.kind}: {short_repr(error.reason)}."
        ) from error
