"""What a public layer is called on: each argument is a tensor, or is refused by its name before Keras looks at it."""

import functools
import inspect
import typing

from keras_txf import checks

SWITCHES = ("return_attention_scores", "reverse")  # the arguments that are True or False
CACHES = ("cache", "context_cache")  # the arguments that are a `Cache`

Layer = typing.TypeVar("Layer", bound=type)


def named_arguments(cls: Layer) -> Layer:
    """Decorates a layer: `__call__` converts nested lists to tensors and names the argument that is not a tensor."""
    call, parameters = cls.__call__, list(inspect.signature(cls.call).parameters.values())[1:]
    required = {p.name for p in parameters if p.default is p.empty}
    known = {p.name for p in parameters} | {"training"}

    def check(name, value):
        if name == "training":  # Keras takes 0 and 1 too, and tensors
            return value if value is None or hasattr(value, "dtype") or value in (0, 1) else checks.boolean(name, value)
        if name in SWITCHES:
            return checks.boolean(name, value)
        if name in CACHES:
            return checks.optional(_cache, name, value)
        return value if value is None and name not in required else checks.dense_tensor(name, value)

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        names = _names(type(self))  # a subclass may take others, which are its own
        args = [check(name, value) if name in known else value for name, value in zip(names, args)] + list(
            args[len(names) :]
        )
        kwargs = {name: check(name, value) if name in known else value for name, value in kwargs.items()}
        return call(self, *args, **kwargs)

    cls.__call__ = __call__
    return cls


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
def _names(cls):
    return [p.name for p in call_parameters(cls).values() if p.kind is p.POSITIONAL_OR_KEYWORD]
