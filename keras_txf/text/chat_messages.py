"""The messages of a conversation, checked; and their rendering by a Jinja template, in a process with limits."""

import functools
import re

import numpy as np

from keras_txf.checks import short_repr
from keras_txf.strangers import StrangersError, ask
from keras_txf.text.lazy_imports import require_jinja2

ROLES = ("system", "user", "assistant", "tool")  # of any template; it may have others, which it names
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing in the messages of different models


def checked_messages(name, messages, source):
    """Returns messages as a template reads them: a list of dicts of JSON's types, without None.

    A template writes whatever it is given, even a misspelt role or a content that is not a text.
    """
    messages = plain(name, messages)
    if not isinstance(messages, list) or not messages or not all_dicts(messages):
        raise ValueError(f"`{name}` must be a list of dicts, at least one; received {short_repr(messages)}.")
    found = []
    for place, message in enumerate(messages):
        message = {key: value for key, value in message.items() if value is not None}
        role = message.get("role")
        if not isinstance(role, str):
            raise ValueError(
                f"`{name}` must each have a string as 'role'; received {short_repr(message)} at place {place}."
            )
        if role not in ROLES and role not in source:
            raise ValueError(
                f"`{name}` must each have one of {list(ROLES)} as 'role', or one that the template names; received "
                f"{short_repr(role)} at place {place}."
            )
        _check_content(name, message, place, source)
        reasoning = next((message[key] for key in REASONING if key in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        found.append(message)
    return found


def _check_content(name, message, place, source):
    """Raises ValueError if the content is not a text that the template reads. A tool may return any content."""
    content = message.get("content")
    if isinstance(content, str) or content is None and message.keys() & {"tool_calls", *REASONING}:
        return
    if content is not None and message["role"] not in ROLES[:3]:
        return
    if content and all_dicts(content) and re.search(r"""\.text\b|['"]text['"]""", source):
        return
    raise ValueError(
        f"`{name}` must each have a string as 'content', or parts that the template reads; received "
        f"{short_repr(message)} at place {place}."
    )


def plain(name, value):
    """Copies a value of JSON's types, or a NumPy array. Raises ValueError for objects, whose methods run."""
    if isinstance(value, np.ndarray):
        return plain(name, value.tolist())
    if isinstance(value, np.generic):
        return plain(name, value.item())
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (list, tuple)):
        return [plain(name, inner) for inner in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(name, inner) for key, inner in value.items()}
    raise ValueError(f"`{name}` must be of strings, numbers, lists and dicts; received {short_repr(value)}.")


def all_dicts(values):
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


@functools.lru_cache(maxsize=64)
def has_generation(source):
    """Whether a template marks answers by `{% generation %}`. Raises ValueError if it is not a template."""
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
