"""Jinja templates of chat models, in jinja2's sandbox, with the functions that such templates expect."""

import datetime
import functools
import json

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import jinja2

MARKS = "\ufdd0", "\ufdd1"  # around an answer; Unicode keeps both for use within a program


@functools.lru_cache(maxsize=64)
def compiled(source, marks=False):
    """Compiles a template.

    Args:
        source: str, the template.
        marks: whether to put `MARKS` around the text of a `{% generation %}` block.

    Returns:
        A function of a dict of variables that returns the text.

    Raises:
        ValueError: from here a `source` that is no template; from the function, variables that the template refuses.
    """
    try:
        template = environment(marks).from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(
            f"`template` must be a Jinja template; received {short_repr(source)}: {short_repr(str(error))}, "
            f"line {getattr(error, 'lineno', 0)}."
        ) from None

    def render(variables):
        try:
            return template.render(variables)
        except Exception as error:  # a template may do anything that the sandbox lets it
            raise ValueError(
                "`messages` must be a conversation that the template renders; received "
                f"{short_repr(variables['messages'])}: {type(error).__name__}: {short_repr(str(error))}."
            ) from error

    return render


@functools.lru_cache(maxsize=64)
def has_generation(source):
    """Whether a template marks answers by `{% generation %}`."""
    found = environment(False).parse(source).find_all(jinja2.nodes.ExtensionAttribute)
    return any(node.name == "wrapped" for node in found)


@functools.cache
def environment(marks):
    """The sandbox of all templates, as transformers sets it up."""
    first, last = MARKS if marks else ("", "")

    class Generation(jinja2.ext.Extension):
        """The block `{% generation %}`, which renders what it holds."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("wrapped"), [], [], body).set_lineno(line)

        def wrapped(self, caller):
            return f"{first}{caller()}{last}"

    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return sandbox


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Jinja's own filter would escape letters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.now().strftime(form)
