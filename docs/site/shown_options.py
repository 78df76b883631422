"""The API pages show the options of a table in a list that opens, with types and defaults, and the arguments of calls."""

import inspect
import re
import sys
import textwrap

import griffe

from keras_txf.layers.shown_options import LINE, option_table, shown_type

WHOLE_LINE = rf"(?m)^ +{LINE}$"
OPEN, CLOSED = "???+", "???"  # of the extension pymdownx.details


class ShownOptions(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.is_module or not obj.docstring:
            return
        text = inspect.cleandoc(obj.docstring.value)
        if re.search(WHOLE_LINE, text):
            text = with_options(text, live(obj), OPEN if obj.is_class else CLOSED)
        obj.docstring.value = sections(without_types(text) if obj.is_class else text)


def with_options(text, thing, fence):
    """The docstring with the options after the section of the arguments, where the signature has `**options`."""
    function = thing.__init__ if isinstance(thing, type) else thing
    table = option_table(function)
    defaults = {name: shown.default for name, shown in inspect.signature(function).parameters.items()}
    before, after = re.split(WHOLE_LINE, text)
    arguments, blank, rest = after.partition("\n\n")
    section = before.rstrip() + arguments
    if section.endswith("\nArgs:"):
        section = section.removesuffix("\nArgs:")
    items = [item(name, type_, defaults[name], meaning) for name, (type_, _, meaning) in table.items()]
    title = f'\n\n{fence} abstract "{len(items)} options"\n\n'
    return section + title + textwrap.indent("\n".join(items), "    ") + blank + rest


def item(name, type_, default, meaning):
    """A row of the list. `...` is a default that a model or a file decides."""
    type_ = "" if shown_type(type_) == "Any" else f": {shown_type(type_)}"
    default = "" if repr(default) == "..." else f" = {default!r}".replace("'", '"')
    return f"- `{name}{type_}{default}`<br>{meaning}"


def without_types(text):
    """The docstring of a class: what its call returns is a list of text, for no annotation gives a type."""

    def as_list(found):
        return "\n\n**Returns:**\n\n- " + " ".join(found[1].split()) + "\n"

    return re.sub(r"\n\nReturns:\n((?:    .*\n?)+)", as_list, text)


def sections(text):
    """The docstring with the sections that griffe knows: a list of a call's arguments, and examples, indented."""
    text = text.replace("\nCall arguments:\n", "\nOther Parameters: Call arguments\n")
    before, found, examples = text.partition("\nExample:\n\n")
    return before + "\nExamples:\n" + textwrap.indent(examples, "    ") if found else text


def live(obj):
    """The object itself, by its module and the path within it."""
    found = sys.modules[obj.module.path]
    for name in obj.path.removeprefix(obj.module.path + ".").split("."):
        found = getattr(found, name)
    return found
