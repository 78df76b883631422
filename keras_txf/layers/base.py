"""Layer: the base class of all layers of this package."""

import contextvars
import functools
import inspect

import keras
from keras import tree

from keras_txf import checks
from keras_txf.backend.keras_private import computing_in, flatten_layers, unless_overridden
from keras_txf.layers.rematerialization import no_rematerialization, rematerialized_call
from keras_txf.layers.saved_state import KeepsState
from keras_txf.layers.serialization import option_names, serialize
from keras_txf.layers.shown_options import show_constructor

_inside_layer = contextvars.ContextVar("whether an outer layer has checked the arguments", default=False)


class Layer(KeepsState, keras.layers.Layer):
    """Keras' Layer with the common features of this package's layers.

    - `get_config` returns the arguments of the constructor, which are attributes of the same names.
    - The outermost layer checks the arguments of its call before Keras converts them. Errors name the argument.
    - Keras does not trace `call` for the output shape if the class has a `compute_output_spec`. A subclass that
      overrides only `call` is traced.
    - A `.keras` file keeps quantization, adapters and frozen variables of a built layer.
    - A layer whose policy is float64 computes in float64 on every backend.

    A class with weights declares in `weight_splits` how `layout_map` splits each weight over the devices of a model
    axis, by the name of the weight in paths: "columns" (the last axis), "rows" (the first axis), or "whole" (each
    device has a copy). The rules in `training/weight_splits.py` check whether the sizes divide.

    The signature of a constructor that ends in `**options: Unpack[Table]` lists the options of the table. The docstring
    of the class lists them at its line `{options}`.
    """

    weight_splits = {}

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "call" in own and not {"compute_output_spec", "compute_output_shape"} & own.keys():
            cls.compute_output_spec = keras.layers.Layer.compute_output_spec
        show_constructor(cls)

    def __new__(cls, *args, **kwargs):
        if isinstance(kwargs.get("dtype"), dict):  # Keras' error for it does not name the argument
            checks.dtype("dtype", kwargs["dtype"])
        known = _known_options(cls)
        if known is not None:  # Keras' error for an unknown name suggests no other name
            names = [name for name in kwargs if name not in OF_KERAS]
            checks.known_names(f"an option of {cls.__name__}", names, known)
        layer = super().__new__(cls, *args, **kwargs)
        layer._arguments = _arguments(cls, args, kwargs)
        return layer

    def get_options(self):
        """The arguments of the constructor by name, for `get_config`.

        For a user's subclass with its own constructor the values are those that this constructor received. An attribute
        may differ: the subclass may have passed another value to the constructor of its base class.
        """
        if self._arguments is None:
            # A constructor of this package passes the options of the layer above on, as `**options`.
            owners = [cls for cls in type(self).__mro__ if issubclass(cls, Layer) and "__init__" in vars(cls)]
            return {name: getattr(self, name) for cls in owners for name in option_names(cls)}
        arguments = self._arguments.by_name  # a dict may be the configuration of a layer, which the attribute holds
        return {name: getattr(self, name, x) if isinstance(x, dict) else x for name, x in arguments.items()}

    def get_config(self):
        return {**{name: serialize(value) for name, value in self.get_options().items()}, **super().get_config()}

    def check_argument(self, name, value):
        """Returns an argument of `call`, or raises a ValueError that names it. A layer may override this check."""
        parameter = _own_parameters(type(self)).get(name)
        if name == "training":  # Keras also accepts 0, 1 and tensors
            return value if value is None or hasattr(value, "dtype") or value in (0, 1) else checks.boolean(name, value)
        if parameter is None:
            return value
        if name in SWITCHES:
            return checks.boolean(name, value)
        if name in CACHES:
            return checks.optional(_cache, name, value)
        return value if value is None and parameter.default is not parameter.empty else checks.dense_tensor(name, value)

    def __call__(self, *args, **kwargs):
        if _inside_layer.get():
            return self._call(args, kwargs)
        names = positional_names(type(self))
        args = [*map(self.check_argument, names, args), *args[len(names) :]]
        kwargs = {name: self.check_argument(name, value) for name, value in kwargs.items()}
        token = _inside_layer.set(True)
        try:
            return self._call(args, kwargs)
        finally:
            _inside_layer.reset(token)

    def _call(self, args, kwargs):
        if self.compute_dtype != "float64":
            return super().__call__(*args, **kwargs)
        with computing_in("float64"):
            return super().__call__(*args, **kwargs)

    def symbolic_call(self, *args, **kwargs):
        """The symbolic outputs of a call, from `compute_output_spec` or from Keras' trace of `call`.

        A call with a cache is traced. A call is also traced while an inner layer waits for its first call to be built,
        such as a user's position layer: the trace makes this first call.
        """
        has_cache = kwargs.get("cache") is not None or kwargs.get("context_cache") is not None
        with no_rematerialization(self):
            if has_cache or any(map(_waits, flatten_layers(self, include_self=False))):
                return keras.layers.Layer.compute_output_spec(self, *args, **kwargs)
            return self.compute_output_spec(*args, **kwargs)

    rematerialized_call = rematerialized_call

    @unless_overridden
    def compute_output_shape(self, *shapes, **named_shapes):
        symbols = [keras.KerasTensor(shape) for shape in shapes]
        named = {name.removesuffix("_shape"): keras.KerasTensor(shape) for name, shape in named_shapes.items()}
        # A call would build this layer, and its weights would have other paths than in its owner.
        call = self.symbolic_call if self.built else type(self).from_config(self.get_config())
        return tree.map_structure(lambda symbol: symbol.shape, call(*symbols, **named))


OF_KERAS = {*option_names(keras.layers.Layer), "input_shape", "batch_input_shape"}  # arguments of Keras' Layer


@functools.cache
def _known_options(cls):
    """The options of a constructor by name; None for a user's class, and for a subclass of Keras' Dense."""
    above = [parent for parent in cls.__mro__ if issubclass(parent, keras.layers.Layer)]
    above = above[: above.index(keras.layers.Layer)]
    if not all(issubclass(parent, Layer) and parent.__module__.startswith("keras_txf.") for parent in above):
        return None
    owners = [parent for parent in above if "__init__" in vars(parent)]
    return {name for owner in owners for name in option_names(owner)} - OF_KERAS


class _Arguments:
    """The arguments of a constructor call. Keras would look for layers in a dict."""

    def __init__(self, by_name):
        self.by_name = by_name


def _arguments(cls, args, kwargs):
    """The arguments of a user's constructor, or None if the constructor belongs to this package or to Keras."""
    if cls.__init__.__module__.split(".")[0] in ("keras", "keras_txf"):
        return None
    names = []  # the constructor of a base class names the arguments in `*args`
    for owner in (owner for owner in cls.__mro__ if "__init__" in vars(owner)):
        parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]
        names += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            break
    own = inspect.signature(cls.__init__).parameters.values()
    defaults = {p.name: p.default for p in own if p.default is not p.empty}
    return _Arguments({**defaults, **dict(zip(names, args)), **kwargs})


def call_on_symbols(layer, *inputs, **arguments):
    """Runs the `call` of a layer that is made of layers on symbols. Keras traces the inner layers of other packages."""
    inputs, arguments = tree.map_structure(_without_history, (inputs, arguments))
    return tree.map_structure(_without_history, layer.call(*inputs, **arguments))


def _without_history(x):
    """A new symbol of the same shape: a model's graph must not contain the inner layers of a layer."""
    return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x


def _waits(layer):
    """Whether a layer is built by its first call and was not called yet."""
    return not layer.built and type(layer).build is not keras.layers.Layer.build


SWITCHES = ("return_attention_scores", "reverse")  # arguments that are True or False
CACHES = ("cache", "context_cache")  # arguments that are a `Cache`


@functools.cache
def _own_parameters(cls):
    """The parameters of `call` in the package's class. The `call` of a user's subclass may have others of any type."""
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
    """The parameters of the `call` of a class by name, in order and without `self`; empty for a class without `call`.

    A `call` with `**kwargs` also has the parameters of the `call` of the base class.
    """
    found = {}
    for owner in cls.__mro__:
        if "call" not in vars(owner):
            continue
        own = list(inspect.signature(owner.call).parameters.values())[1:]
        for p in own:
            found.setdefault(p.name, p)
        if all(p.kind is not p.VAR_KEYWORD for p in own):
            return {p.name: p for p in found.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    return found


@functools.cache
def positional_names(cls):
    """The names of the positional arguments of the `call` of a class."""
    return [p.name for p in call_parameters(cls).values() if p.kind is p.POSITIONAL_OR_KEYWORD]
