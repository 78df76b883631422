"""The API pages show what `help` shows: options of tables by name, with defaults, and arguments of calls as a list."""

import inspect
import sys
import textwrap

import griffe
from griffe import Parameter, ParameterKind, Parameters

import keras_txf  # noqa: F401  whose modules are then in `sys.modules`

KINDS = {kind.name: getattr(ParameterKind, kind.name.lower()) for kind in inspect._ParameterKind}


class ShownOptions(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if not obj.is_module and obj.docstring and "{options}" in obj.docstring.value:
            obj.docstring.value = inspect.getdoc(live(obj))
        if obj.docstring:
            obj.docstring.value = sections(inspect.cleandoc(obj.docstring.value))
        if obj.is_function and "options" in obj.parameters:
            obj.parameters = Parameters(*map(shown, inspect.signature(live(obj)).parameters.values()))


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


def shown(parameter):
    default = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
    if default is None and parameter.kind.name.startswith("VAR_"):
        default = "{}" if parameter.kind.name.endswith("KEYWORD") else "()"
    return Parameter(parameter.name, kind=KINDS[parameter.kind.name], default=default)
