"""What a public layer is called on: each argument is a tensor, or is refused by its name before Keras looks at it."""

import functools
import inspect

from keras_txf import checks

SWITCHES = ("return_attention_scores", "reverse")  # the arguments that are True or False


def named_arguments(cls):
    """Has a layer's `__call__` make tensors of nested lists, and refuse what is none, by the names in the signature of `call`."""
    call, parameters = cls.__call__, list(inspect.signature(cls.call).parameters.values())[1:]
    required = {p.name for p in parameters if p.default is p.empty}
    known = {p.name for p in parameters} | {"training"}

    def check(name, value):
        if name == "training":  # Keras takes 0 and 1 too, and tensors
            return value if value is None or hasattr(value, "dtype") or value in (0, 1) else checks.boolean(name, value)
        if name in SWITCHES:
            return checks.boolean(name, value)
        return value if value is None and name not in required else checks.dense_tensor(name, value)

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        names = _names(type(self))  # a subclass may take others, which are its own
        args = [check(name, value) if name in known else value for name, value in zip(names, args)] + list(args[len(names) :])
        kwargs = {name: check(name, value) if name in known else value for name, value in kwargs.items()}
        return call(self, *args, **kwargs)

    cls.__call__ = __call__
    return cls


@functools.cache
def _names(cls):
    return [p.name for p in inspect.signature(cls.call).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
