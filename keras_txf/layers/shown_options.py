"""Options of a table as arguments of functions and constructors, in `help`, in editors and in docstrings.

The decorator `shows_options` is for functions with the last argument `**options: Unpack[Table]`. It adds the options of
the table to the signature, and replaces the line `{options}` of the docstring with a list of the meanings. Its argument
says who decides the defaults.

For the constructor of a layer, `show_constructor` shows the options and `take_options` returns their values.
"""

import functools
import inspect
import operator
import re
import textwrap
import typing
from collections.abc import Callable, Sequence
from typing import Any

from keras_txf.checks import known_names

LINE = "{options}"  # the line of a docstring that the list of options replaces
WIDTH = 118
ARGUMENTS = {}  # name of a builder -> names of its arguments, for the error about a misspelt name


class DecidedElsewhere:
    """The default that `help` shows for an option whose default a model or a file decides."""

    def __repr__(self):
        return "..."


Thing = typing.TypeVar("Thing")


@typing.overload
def shows_options(thing: Thing) -> Thing: ...
@typing.overload
def shows_options(*, defaults: str) -> Callable[[Thing], Thing]: ...
def shows_options(thing: Any = None, *, defaults: str = "table") -> Any:
    """Shows the options of a function's `**options: Unpack[Table]`.

    Args:
        thing: the function; for "elsewhere" also a class, whose constructor takes the options.
        defaults: "table": the function receives all options, with the table's defaults. "elsewhere": the function
            receives the caller's options, and the signature shows no defaults. "class": a class method receives the
            caller's options, and the signature shows the defaults of the class.
    """
    if thing is None:
        return functools.partial(shows_options, defaults=defaults)
    return {"table": _fill_in, "elsewhere": _pass_on, "class": _pass_to_class}[defaults](thing)


def _fill_in(function):
    own, defaults = [p.name for p in _own_parameters(function)], _defaults(option_table(function))
    ARGUMENTS[function.__name__] = [*own, *defaults]

    @functools.wraps(function)
    def call(*args, **kwargs):
        options = [name for name in kwargs if name not in own]
        known_names(f"an option of {function.__name__}", options, defaults, ARGUMENTS[function.__name__])
        return function(*args, **{**defaults, **kwargs})

    return _show(call, defaults)


def _pass_on(thing):
    if isinstance(thing, type):
        _pass_on(thing.__init__)
        thing.__doc__ = describe(thing.__doc__, option_table(thing.__init__))
        return thing
    return _show(thing, dict.fromkeys(option_table(thing), DecidedElsewhere()))


def _pass_to_class(function):
    table, own = option_table(function), {p.name for p in _own_parameters(function)}
    keras_own = typing.get_type_hints(_options_hint(function)).keys()

    @functools.wraps(function)
    def call(cls, *args, **options):
        known = inspect.signature(cls).parameters
        if table.keys() <= known.keys():  # a subclass with its own constructor may take other options
            known_names(f"an option of {cls.__name__}", options, {*known, *keras_own, *own} - {"kwargs"})
        return function(cls, *args, **options)

    return _show(call, _defaults(table))


def show_constructor(cls):
    """Lists the options of a constructor's `**options: Unpack[Table]` in its signature and in the class's docstring."""
    constructor = vars(cls).get("__init__")
    hints = getattr(constructor, "__annotations__", {}).values()
    if not any(typing.get_origin(hint) is typing.Unpack for hint in hints) or not option_table(constructor):
        return
    table, keras_own = option_table(constructor), inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    constructor.__signature__ = _signature(constructor, table, _defaults(table), [keras_own])
    cls.__doc__ = describe(cls.__doc__, table)


def take_options(cls, options):
    """Removes the options of a class's table from keyword arguments. Returns all options, with defaults and checked.

    The arguments of Keras' base class remain in `options`.
    """
    defaults = _defaults(option_table(cls.__init__))
    own = {name: options.pop(name, default) for name, default in defaults.items()}
    return checked(_options_hint(cls.__init__), own)


def _show(function, defaults):
    """Adds the options of a function to its signature and its docstring."""
    table = option_table(function)
    function.__signature__ = _signature(function, table, defaults)
    function.__doc__ = describe(function.__doc__, table)
    return function


@functools.cache
def option_table(function):
    """The options of a function's `**options: Unpack[Table]`, in the form of `fields`."""
    return fields(_options_hint(function))


def _options_hint(function):
    [hint] = [hint for hint in typing.get_type_hints(function).values() if typing.get_origin(hint) is typing.Unpack]
    return typing.get_args(hint)[0]


def take(table, options):
    """Removes the options of a table from `options`, and returns them checked."""
    return checked(table, {name: options.pop(name) for name in fields(table)})


def meaning(table, name):
    """The meaning of an option, for another table with the same option."""
    return fields(table)[name][2]


def default_options(table):
    """The defaults of a table, by name."""
    return _defaults(fields(table))


def _defaults(fields_of_table):
    return {name: default for name, (_, default, _) in fields_of_table.items()}


@functools.cache
def fields(table):
    """The options of a table by name: (type, default, meaning)."""
    return {
        name: (hint.__origin__, *hint.__metadata__[:2])
        for name, hint in typing.get_type_hints(table, include_extras=True).items()
        if hasattr(hint, "__metadata__")  # `LayerOptions` has none: Keras takes its arguments
    }


@functools.cache
def value_checks(table):
    """The checks of the rows of a table by name, functions (name, value) -> value."""
    hints = typing.get_type_hints(table, include_extras=True)
    rows = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: row[2] for name, row in rows.items() if len(row) > 2}


def checked(table, options):
    """The options after the checks of their rows, which raise a ValueError that names the option."""
    known = value_checks(table)
    return {name: known[name](name, value) if name in known else value for name, value in options.items()}


def _signature(function, table, defaults, rest=()):
    """The signature of a function with the options of a table instead of `**options`."""
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=_of_one(type_))
        for name, (type_, _, _) in table.items()
    ]
    return inspect.signature(function).replace(parameters=[*_own_parameters(function), *shown, *rest])


def _own_parameters(function):
    return [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]


def _of_one(type_):
    """The type of a single value: `Each` without its list, which would make the line in `help` twice as long."""
    types = typing.get_args(type_)
    single = [one for one in types if typing.get_origin(one) is not Sequence]
    one = functools.reduce(operator.or_, single) if single else None
    is_each = typing.get_origin(type_) is not Sequence and Sequence[one] in types if single else False
    return one if is_each else type_


def shown_type(type_):
    """A type as the pages show it, such as `int | None`: the type of a single value, by the public name."""
    text = inspect.formatannotation(_of_one(type_)).replace("collections.abc.", "").replace("typing.", "")
    return re.sub(r"\bkeras(\.\w+)*\.Layer\b", "keras.layers.Layer", text)


def describe(text, table):
    """The docstring with the meanings of the options instead of its line `{options}`."""
    lines = []
    for line in (text or "").splitlines():
        if line.strip() != LINE:
            lines.append(line)
            continue
        indent = line[: line.index(LINE)]
        for name, (_, _, meaning) in table.items():
            lines += textwrap.wrap(
                f"{name}: {meaning}", WIDTH, initial_indent=indent, subsequent_indent=indent + "    "
            )
    return "\n".join(lines)
