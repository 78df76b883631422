"""Adapters of a Dense or EinsumDense layer: a low-rank product added to its kernel (LoRA), or another kernel.

The first adapter changes the class of the layer in place, and the removal of the last adapter restores the class.
Paths, weights and graphs of the layer stay the same. A layer without adapters runs no code of this file.
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

QUANTIZED = (None, "int8", "int4")  # quantization modes of layers that may have adapters
ADAPTED = (keras.layers.Dense, keras.layers.EinsumDense)
OF_DENSE = "...x,xy->...y"  # the equation of Dense
PRODUCT = object()  # instead of the name of an adapter: the layer without adapter and without activation
_using = contextvars.ContextVar("names of adapters by the id of a layer", default=types.MappingProxyType({}))


class _Adapter:
    """Variables of a layer, in float32 under every policy: bfloat16 would round small steps of training away."""

    def __init__(self, layer, name, **options):
        self.options, self.equation = options, _equation(layer)
        with unlocked(layer):
            self.variables = {
                part: layer.add_weight(name=f"{name}_{part}", shape=shape, initializer=initializer, dtype="float32")
                for part, (shape, initializer) in self.weights(layer, **options).items()
            }
        self.seed = keras.random.SeedGenerator() if options.get("dropout") else None


class LowRank(_Adapter):
    """x A B · alpha / rank, added to the product of the layer. B is initially zero, and A as in PEFT.

    A has the axes of the kernel, except the rank as its last axis. B has the rank and the last axis of the kernel. So
    A B has the shape of the kernel, as in Keras' LoRA of EinsumDense. A Dense layer is the EinsumDense ...x,xy->...y.
    """

    checks = {"rank": checks.positive_integer, "alpha": checks.positive_number, "dropout": checks.rate}
    kind, adds = "low_rank", True  # adds to the product of the layer instead of replacing it

    @staticmethod
    def weights(layer, rank, **_):
        """Shape and initializer of each variable, by name."""
        *others, last = kernel_shape(layer)
        axes = _axes_of_inputs(_equation(layer))
        fan_in = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", input_axes=axes, output_axes=())
        return {"lora_a": ((*others, rank), fan_in), "lora_b": ((rank, last), "zeros")}

    def update(self, inputs, training=False):
        """The term added to the product with `inputs`; for None the term added to the kernel."""
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
    """Replaces the kernel and the bias of a layer, initially by copies of them; for heads that are trained anew."""

    kind, checks, adds = "whole", {}, False

    @staticmethod
    def weights(layer):
        """Shape and initializer of each variable, by name."""

        def begin(values, shape, dtype):
            return ops.copy(ops.cast(values(), dtype))  # a copy, because JAX must not train the base's array

        weights = {"kernel": (kernel_shape(layer), functools.partial(begin, lambda: float_kernel(layer)))}
        bias = vars(layer)["bias"]
        return weights if bias is None else weights | {"bias": (bias.shape, functools.partial(begin, lambda: bias))}


KINDS = {cls.kind: cls for cls in (LowRank, Whole)}


def takes_adapters(layer):
    """Whether a layer is built and has the `call` of Dense or EinsumDense, or of this package's subclasses."""
    owner = next(cls for cls in type(layer).__mro__ if "call" in vars(cls))
    known = owner in ADAPTED or owner.__module__.startswith("keras_txf.")
    return isinstance(layer, ADAPTED) and layer.built and known


def _equation(layer):
    """The equation of a layer: inputs, kernel -> outputs."""
    return OF_DENSE if isinstance(layer, keras.layers.Dense) else layer.equation


def _axes_of_inputs(equation):
    """The axes of the kernel over which the einsum sums."""
    inputs, kernel, outputs = re.split(",|->", equation)
    return [axis for axis, letter in enumerate(kernel) if letter in inputs and letter not in outputs]


def _einsum_low_rank(equation, x, a, b):
    """The einsum of x, A and B. It never computes A B, which has the size of the kernel."""
    inputs, kernel, outputs = re.split(",|->", equation)
    rank = next(letter for letter in string.ascii_letters if letter not in equation)
    factors = [(kernel[:-1] + rank, a), (rank + kernel[-1], b)]
    if kernel[-1] in inputs:  # some backends multiply from left to right
        factors.reverse()
    (first, one), (second, other) = factors
    return ops.einsum(f"{inputs},{first},{second}->{outputs}", x, one, other)


def attach(layer, name, kind, **options):
    """Adds an inactive adapter, one of `KINDS`, to a layer that `takes_adapters` and has a mode of `QUANTIZED`."""
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
    """Removes an adapter, active or not. The removal of the last adapter restores the class of the layer."""
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
    """Kind and options of each adapter of any layer by name, for `attach`."""
    return {name: [adapter.kind, adapter.options] for name, adapter in adapters_of(layer).items()}


def active_adapters(model):
    """The names of the active adapters of all layers with adapters, in order."""
    return tuple(layer.active for layer in flatten_layers(model) if isinstance(layer, Adapted))


class Adapted(Changed):
    """The mixin of a Dense or EinsumDense layer with `adapters` by name; one of them may be active."""

    @property
    def active(self):
        """The name of the active adapter, or None."""
        return _using.get().get(id(self), self.chosen)

    @active.setter
    def active(self, name):
        self.chosen = name

    @contextlib.contextmanager
    def using(self, name):
        """A scope of this thread in which another adapter is active, or no adapter for None."""
        token = _using.set({**_using.get(), id(self): name})
        try:
            yield
        finally:
            _using.reset(token)

    @property
    def kernel(self):
        """The kernel with the active adapter; of a quantized layer with a low-rank adapter its integer kernel alone."""
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
    def activation(self, function):  # Keras sets the activation for rematerialization
        vars(self)["activation"] = function

    def call(self, inputs, training=None):
        return self._adapt(super().call, inputs, training)

    def quantized_call(self, inputs, training=None):
        return self._adapt(super().quantized_call, inputs, training)

    def _adapt(self, call, inputs, training):
        adapter = self.adapters.get(self.active)
        if adapter is None:
            return call(inputs, training=training)
        if not adapter.adds:  # its kernel is float, also if the layer is quantized
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
    """Replaces the method `quantize` that Keras set on the layer, and that expects the layer's earlier class."""
    received = config if isinstance(config, str) else getattr(config, "mode", mode)
    if received not in QUANTIZED:
        raise ValueError(
            f"`mode` must be 'int8' or 'int4' for a layer with adapters; received {short_repr(received)} for "
            f"{layer.path}."
        )
    quantize(mode, config=config, type_check=False)


def _attach_all(layer, described):
    for name, (kind, options) in described["adapters"].items():
        if name not in adapters_of(layer):  # the layer's own configuration may have restored it
            attach(layer, name, kind, **options)
    layer.active = described["active"]


def _describe_all(layer):
    return {"adapters": describe(layer), "active": layer.active} if isinstance(layer, Adapted) else None


CHANGES["adapters"] = (_describe_all, _attach_all)
