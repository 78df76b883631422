"""Adapters of a Dense or EinsumDense layer: a product of low rank beside its kernel (LoRA), or a kernel in its place.

A layer gets its first adapter by a change of its class, in place, and its own class again when the last one is removed.
Its paths, its weights and the graphs that it stands in stay. No layer without an adapter runs a line of this file.
"""

import contextlib
import contextvars
import functools
import re
import string
import types

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.keras_private import flatten_layers, float_kernel, kernel_shape, unlocked, untrack
from keras_txf.backend.random import dropout
from keras_txf.checks import short_repr
from keras_txf.layers.class_change import Changed, change_class
from keras_txf.layers.saved_state import CHANGES

QUANTIZED = (None, "int8", "int4")  # the modes of a base that may have adapters
ADAPTED = (keras.layers.Dense, keras.layers.EinsumDense)
OF_DENSE = "...x,xy->...y"  # the equation of Dense
PRODUCT = object()  # in place of the name of an adapter: the layer without an adapter and without its activation
_using = contextvars.ContextVar("names of adapters by the id of a layer", default=types.MappingProxyType({}))


class _Adapter:
    """Variables of a layer, float32 under every policy: a small step on a bfloat16 number would be rounded away."""

    def __init__(self, layer, name, **options):
        self.options, self.equation = options, _equation(layer)
        with unlocked(layer):
            self.variables = {
                part: layer.add_weight(name=f"{name}_{part}", shape=shape, initializer=initializer, dtype="float32")
                for part, (shape, initializer) in self.weights(layer, **options).items()
            }
        self.seed = keras.random.SeedGenerator() if options.get("dropout") else None


class LowRank(_Adapter):
    """x A B · alpha / rank, added to the product of the layer. B begins with zeros, A as in PyTorch's LoRA and PEFT.

    A has the axes of the kernel with the rank in place of the last one, B the rank and that axis, as in Keras' LoRA of
    EinsumDense: A B has the shape of the kernel, and a Dense layer is the EinsumDense of ...x,xy->...y.
    """

    checks = {"rank": checks.positive_integer, "alpha": checks.positive_number, "dropout": checks.rate}
    kind, adds = "low_rank", True  # to the product of the layer, rather than taking its place

    @staticmethod
    def weights(layer, rank, **_):
        """Shape and initializer of each variable, by name."""
        *others, last = kernel_shape(layer)
        axes = _axes_of_inputs(_equation(layer))
        fan_in = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", input_axes=axes, output_axes=())
        return {"lora_a": ((*others, rank), fan_in), "lora_b": ((rank, last), "zeros")}

    def update(self, inputs, training=False):
        """What is added to the product with `inputs`; with None, to the kernel."""
        if training and self.seed is not None:
            inputs = dropout(inputs, self.options["dropout"], self.seed)
        a, b = self.variables["lora_a"], self.variables["lora_b"]
        if inputs is None:
            product = ops.matmul(a, b)
        elif self.equation == OF_DENSE:
            product = ops.matmul(ops.matmul(inputs, a), b)
        else:
            product = _einsum_low_rank(self.equation, inputs, a, b)
        return self.options["alpha"] / self.options["rank"] * product


class Whole(_Adapter):
    """A kernel and a bias in place of the layer's, which they begin as: for a new head, which has nothing to keep."""

    kind, checks, adds = "whole", {}, False

    @staticmethod
    def weights(layer):
        """Shape and initializer of each variable, by name."""

        def begin(values, shape, dtype):
            return ops.copy(ops.cast(values(), dtype))  # another array, for JAX must not train the base's own

        weights = {"kernel": (kernel_shape(layer), functools.partial(begin, lambda: float_kernel(layer)))}
        bias = vars(layer)["bias"]
        return weights if bias is None else weights | {"bias": (bias.shape, functools.partial(begin, lambda: bias))}


KINDS = {cls.kind: cls for cls in (LowRank, Whole)}


def takes_adapters(layer):
    """Whether a layer is built and computes what Dense or EinsumDense does: a subclass with its own `call` may not."""
    owner = next(cls for cls in type(layer).__mro__ if "call" in vars(cls))
    known = owner in ADAPTED or owner.__module__.startswith("keras_txf.")
    return isinstance(layer, ADAPTED) and layer.built and known


def _equation(layer):
    """The einsum of a layer: inputs, kernel -> outputs."""
    return OF_DENSE if isinstance(layer, keras.layers.Dense) else layer.equation


def _axes_of_inputs(equation):
    """The axes of the kernel that are summed over."""
    inputs, kernel, outputs = re.split(",|->", equation)
    return [axis for axis, letter in enumerate(kernel) if letter in inputs and letter not in outputs]


def _einsum_low_rank(equation, x, a, b):
    """The einsum of x and A B, without the product A B, which has the size of the kernel."""
    inputs, kernel, outputs = re.split(",|->", equation)
    rank = next(letter for letter in string.ascii_letters if letter not in equation)
    factors = [(kernel[:-1] + rank, a), (rank + kernel[-1], b)]
    if kernel[-1] in inputs:  # some backends multiply from left to right
        factors.reverse()
    (first, one), (second, other) = factors
    return ops.einsum(f"{inputs},{first},{second}->{outputs}", x, one, other)


def attach(layer, name, kind, **options):
    """Adds one of the `KINDS`, not active, to a layer that `takes_adapters`, of one of the modes `QUANTIZED`."""
    adapter = KINDS[kind](layer, name, **options)
    if not isinstance(layer, Adapted):
        quantize = functools.partial(_quantize, layer, layer.quantize)
        vars(layer).update(
            adapters={}, chosen=None, activation=layer.activation, quantize=quantize
        )  # untracked by Keras
        change_class(layer, Adapted)
    layer.adapters[name] = adapter
    if adapter.seed is not None:
        with unlocked(layer):
            setattr(layer, f"{name}_seed", adapter.seed)


def detach(layer, name):
    """Removes an adapter, active or not; with the last one the layer is what it was."""
    adapter = layer.adapters.pop(name)
    for variable in adapter.variables.values():
        untrack(layer, variable)
    if adapter.seed is not None:
        untrack(layer, adapter.seed)
        delattr(layer, f"{name}_seed")
    layer.active = None if layer.active == name else layer.active
    if not layer.adapters:
        change_class(layer, None)
        del layer.adapters, layer.chosen
        layer.quantize = layer.quantize.args[1]


def adapters_of(layer):
    """The adapters of any layer, by name."""
    return layer.adapters if isinstance(layer, Adapted) else {}


def describe(layer):
    """Kind and options of each adapter of any layer by name, as `attach` takes them."""
    return {name: [adapter.kind, adapter.options] for name, adapter in adapters_of(layer).items()}


def active_adapters(model):
    """The name of the active adapter of each layer that has adapters, in order."""
    return tuple(layer.active for layer in flatten_layers(model) if isinstance(layer, Adapted))


class Adapted(Changed):
    """A change of the class of a Dense or EinsumDense layer: `adapters` by name, of which one may be active."""

    @property
    def active(self):
        """The name of the adapter that counts, or None."""
        return _using.get().get(id(self), self.chosen)

    @active.setter
    def active(self, name):
        self.chosen = name

    @contextlib.contextmanager
    def using(self, name):
        """A scope, of this thread alone, in which another adapter is the active one, or none."""
        token = _using.set({**_using.get(), id(self): name})
        try:
            yield
        finally:
            _using.reset(token)

    @property
    def kernel(self):
        """With the active adapter; of a quantized layer with an adapter of low rank the kernel alone, as it is kept."""
        kernel, adapter = super().kernel, self.adapters.get(self.active)
        if adapter is None or (adapter.adds and self.quantization_mode is not None):
            return kernel
        return ops.add(kernel, adapter.update(None)) if adapter.adds else adapter.variables["kernel"]

    @property
    def bias(self):
        adapter = self.adapters.get(self.active)
        return vars(self)["bias"] if adapter is None or adapter.adds else adapter.variables.get("bias")

    @property
    def activation(self):
        return keras.activations.linear if self.active is PRODUCT else vars(self)["activation"]

    @activation.setter
    def activation(self, function):  # Keras sets it in order to compute it again in the backward pass
        vars(self)["activation"] = function

    def call(self, inputs, training=None):
        return self._adapt(super().call, inputs, training)

    def quantized_call(self, inputs, training=None):
        return self._adapt(super().quantized_call, inputs, training)

    def _adapt(self, call, inputs, training):
        adapter = self.adapters.get(self.active)
        if adapter is None:
            return call(inputs, training=training)
        if not adapter.adds:  # its kernel is float, whatever the layer's own is
            return super().call(inputs, training=training)
        with self.using(PRODUCT):
            outputs = call(inputs, training=training)
        return self.activation(outputs + ops.cast(adapter.update(inputs, training), outputs.dtype))

    def save_own_variables(self, store):
        with self.using(None):
            super().save_own_variables(store)  # by numbers
        for key, variable in self._variables():
            store[key] = variable

    def load_own_variables(self, store):
        with self.using(None):
            super().load_own_variables(store)
        for key, variable in self._variables():
            variable.assign(store[key])

    def _variables(self):
        return [(f"{name}_{part}", v) for name in self.adapters for part, v in self.adapters[name].variables.items()]


def _quantize(layer, quantize, mode=None, config=None, **_):
    """In place of the function that Keras has put on each layer, which knows the class that the layer had then."""
    received = config if isinstance(config, str) else getattr(config, "mode", mode)
    if received not in QUANTIZED:
        raise ValueError(
            f"`mode` must be 'int8' or 'int4' for a layer with adapters; received {short_repr(received)} for "
            f"{layer.path}."
        )
    quantize(mode, config=config, type_check=False)


def _attach_all(layer, described):
    for name, (kind, options) in described["adapters"].items():
        if name not in adapters_of(layer):  # of a layer that came with a configuration of its own
            attach(layer, name, kind, **options)
    layer.active = described["active"]


def _describe_all(layer):
    return {"adapters": describe(layer), "active": layer.active} if isinstance(layer, Adapted) else None


CHANGES["adapters"] = (_describe_all, _attach_all)
