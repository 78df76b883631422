"""The arguments of a layer's call: tensors, switches and caches. The check of an argument runs before Keras' own."""

import functools
import inspect

from keras_txf import checks

SWITCHES = ("return_attention_scores", "reverse")  # the arguments that are True or False
CACHES = ("cache", "context_cache")  # the arguments that are a `Cache`


def check_argument(layer, name, value):
    """Returns an argument of a layer's `call`: a tensor, a switch or a cache; raises ValueError that names it."""
    parameter = _own_parameters(type(layer)).get(name)
    if name == "training":  # Keras takes 0 and 1 too, and tensors
        return value if value is None or hasattr(value, "dtype") or value in (0, 1) else checks.boolean(name, value)
    if parameter is None:
        return value
    if name in SWITCHES:
        return checks.boolean(name, value)
    if name in CACHES:
        return checks.optional(_cache, name, value)
    return value if value is None and parameter.default is not parameter.empty else checks.dense_tensor(name, value)


@functools.cache
def _own_parameters(cls):
    """The parameters that `call` has in this package. A user's subclass may take further ones, of any kind."""
    return call_parameters(next(owner for owner in cls.__mro__ if owner.__module__.startswith("keras_txf.")))


def _cache(name, value):
    if not all(hasattr(value, method) for method in ("update", "read")):
        raise ValueError(
            f"`{name}` must be None or a Cache, with the methods `update` and `read`; received "
            f"{checks.short_repr(value)}."
        )
    return value


@functools.cache
def call_parameters(cls):
    """The parameters of the `call` of a class, by name and in order, without `self`; none where it has no `call`.

    A `call` that takes `**kwargs` has those of the class above too, to which it passes them on.
    """
    found = {}
    for owner in cls.__mro__:
        if "call" not in vars(owner):
            continue
        own = list(inspect.signature(owner.call).parameters.values())[1:]
        for p in own:
            found.setdefault(p.name, p)
        if all(p.kind is not p.VAR_KEYWORD for p in own):
            # What stands for others is known by now.
            return {p.name: p for p in found.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return found


@functools.cache
def positional_names(cls):
    """The names of the arguments of the `call` of a class that may be given by position."""
    return [p.name for p in call_parameters(cls).values() if p.kind is p.POSITIONAL_OR_KEYWORD]
