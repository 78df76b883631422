"""Adapters of a Dense or EinsumDense layer: a low-rank product added to its kernel (LoRA), or another kernel.

The first adapter sets methods on the layer, as Keras sets `build` and `quantize`, and the removal of the last adapter
deletes them. Class, paths, weights and graphs of the layer stay the same. A layer without adapters runs no code of this
file.
"""

import functools
import re
import string

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.keras_private import (
    dense_with,
    flatten_layers,
    float_kernel,
    kept_kernel,
    kernel_shape,
    unlocked,
    untrack,
)
from keras_txf.backend.random import dropout
from keras_txf.checks import short_repr
from keras_txf.layers.saved_state import CHANGES, KeepsState

QUANTIZED = (None, "int8", "int4")  # quantization modes of layers that may have adapters
ADAPTED = (keras.layers.Dense, keras.layers.EinsumDense)
OF_DENSE = "...x,xy->...y"  # the equation of Dense


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
    """x A B · alpha / rank, added to the product of the layer.

    A has the axes of the kernel, with the last axis replaced by the rank. B has the rank and the last axis of the
    kernel, so A B has the shape of the kernel, as in Keras' LoRA of EinsumDense. A is initialized as in PEFT, and B
    with zeros.
    """

    checks = {"rank": checks.positive_integer, "alpha": checks.positive_number, "dropout": checks.rate}
    kind = "low_rank"

    @staticmethod
    def weights(layer, rank, **_):
        """Shape and initializer of each variable, by name."""
        *others, last = kernel_shape(layer)
        axes = _axes_of_inputs(_equation(layer))
        fan_in = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform", input_axes=axes, output_axes=())
        return {"lora_a": ((*others, rank), fan_in), "lora_b": ((rank, last), "zeros")}

    def call(self, layer, method, inputs, training):
        """The outputs of a layer with this adapter; `method` is the `call` or `quantized_call` of the layer's class."""
        product = method(dense_with(layer, activation=keras.activations.linear), inputs, training=training)
        return layer.activation(product + ops.cast(self._update(inputs, training), product.dtype))

    def _update(self, inputs, training):
        if training and self.seed is not None:
            inputs = dropout(inputs, self.options["dropout"], self.seed)
        a, b = self.variables["lora_a"], self.variables["lora_b"]
        if self.equation == OF_DENSE:
            product = ops.matmul(ops.matmul(inputs, a), b)
        else:
            product = _einsum_low_rank(self.equation, inputs, a, b)
        return self._factor() * product

    def _factor(self):
        return self.options["alpha"] / self.options["rank"]

    def merge(self, layer):
        """Adds this adapter to the kernel of a float layer."""
        kernel = kept_kernel(layer)
        update = ops.matmul(self.variables["lora_a"], self.variables["lora_b"])
        kernel.assign(ops.add(kernel, self._factor() * update))


class Whole(_Adapter):
    """Replaces the kernel and the bias of a layer, initially by copies of them; for heads that are trained anew."""

    kind, checks = "whole", {}

    @staticmethod
    def weights(layer):
        """Shape and initializer of each variable, by name."""

        def begin(values, shape, dtype):
            return ops.copy(ops.cast(values(), dtype))  # a copy, because JAX must not train the base's array

        weights = {"kernel": (kernel_shape(layer), functools.partial(begin, lambda: float_kernel(layer)))}
        bias = layer.bias
        return weights if bias is None else weights | {"bias": (bias.shape, functools.partial(begin, lambda: bias))}

    def call(self, layer, method, inputs, training):
        """The outputs of a layer with this adapter, which is float even if the layer is quantized."""
        other = dense_with(layer, self.variables["kernel"], bias=self.variables.get("bias"))
        return type(layer).call(other, inputs, training=training)

    def merge(self, layer):
        """Assigns the kernel and the bias of this adapter to a float layer."""
        kept_kernel(layer).assign(self.variables["kernel"])
        if layer.bias is not None:
            layer.bias.assign(self.variables["bias"])


KINDS = {cls.kind: cls for cls in (LowRank, Whole)}


def takes_adapters(layer):
    """Whether a layer is built and computes as Dense or EinsumDense, or as this package's subclasses."""
    if not isinstance(layer, ADAPTED) or not layer.built or ("call" in vars(layer) and not adapters_of(layer)):
        return False
    owners = [next(cls for cls in type(layer).__mro__ if name in vars(cls)) for name in ("call", "kernel")]
    return all(owner in ADAPTED or owner.__module__.startswith("keras_txf.") for owner in owners)


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


class Adapters(dict):
    """The adapters of a layer by name. The layer computes with the adapter `active`, or without one for None.

    The layer has this dict as `adapters`, and the `METHODS` of this dict instead of the methods of the layer's class.
    """

    METHODS = ("call", "quantized_call", "quantize", "save_own_variables", "load_own_variables")

    def __init__(self, layer):
        super().__init__()
        self.layer, self.active, self.set_by_keras = layer, None, {"quantize": layer.quantize}
        methods = {name: getattr(self, name) for name in self.METHODS}
        vars(layer).update(methods, adapters=self)  # without Keras' tracking of attributes

    def leave(self):
        """Gives the layer back the methods of its class."""
        for name in ("adapters", *self.METHODS):
            del vars(self.layer)[name]
        vars(self.layer).update(self.set_by_keras)

    def call(self, inputs, training=None):
        return self._run(type(self.layer).call, inputs, training)

    def quantized_call(self, inputs, training=None):
        return self._run(type(self.layer).quantized_call, inputs, training)

    def _run(self, method, inputs, training):
        if self.active is None:
            return method(self.layer, inputs, training=training)
        return self[self.active].call(self.layer, method, inputs, training)

    def quantize(self, mode=None, config=None, **kwargs):
        received = config if isinstance(config, str) else getattr(config, "mode", mode)
        if received not in QUANTIZED:
            raise ValueError(
                f"`mode` must be 'int8' or 'int4' for a layer with adapters; received {short_repr(received)} for "
                f"{self.layer.path}."
            )
        self.set_by_keras["quantize"](mode, config=config, **kwargs)

    def save_own_variables(self, store):
        type(self.layer).save_own_variables(self.layer, store)  # by numbers
        for key, variable in self._variables():
            store[key] = variable

    def load_own_variables(self, store):
        type(self.layer).load_own_variables(self.layer, store)
        for key, variable in self._variables():
            variable.assign(store[key])

    def _variables(self):
        return [(f"{name}_{part}", v) for name, adapter in self.items() for part, v in adapter.variables.items()]


def attach(layer, name, kind, **options):
    """Adds an inactive adapter, one of `KINDS`, to a layer that `takes_adapters` and has a mode of `QUANTIZED`."""
    adapter = KINDS[kind](layer, name, **options)
    adapters = layer.adapters if adapters_of(layer) else Adapters(layer)
    adapters[name] = adapter
    if adapter.seed is not None:
        with unlocked(layer):
            setattr(layer, f"{name}_seed", adapter.seed)


def detach(layer, name):
    """Removes an adapter, active or not. The removal of the last adapter restores the methods of the layer."""
    adapter = layer.adapters.pop(name)
    for variable in adapter.variables.values():
        untrack(layer, variable)
    if adapter.seed is not None:
        untrack(layer, adapter.seed)
        delattr(layer, f"{name}_seed")
    if layer.adapters.active == name:
        layer.adapters.active = None
    if not layer.adapters:
        layer.adapters.leave()


def adapters_of(layer):
    """The adapters of any layer, by name."""
    adapters = vars(layer).get("adapters")
    return adapters if isinstance(adapters, Adapters) else {}


def describe(layer):
    """Kind and options of each adapter of any layer by name, for `attach`."""
    return {name: [adapter.kind, adapter.options] for name, adapter in adapters_of(layer).items()}


def active_adapters(model):
    """The names of the active adapters of all layers with adapters, in order."""
    return tuple(layer.adapters.active for layer in flatten_layers(model) if adapters_of(layer))


def guard_files(layers):
    """Makes `.keras` files raise ValueError for adapters that Keras would not restore."""
    for layer in layers:
        if _loses_adapters(layer):
            vars(layer)["get_build_config"] = functools.partial(_guarded_build_config, layer)
        else:
            vars(layer).pop("get_build_config", None)


def _loses_adapters(layer):
    """Whether Keras would load a layer without its adapters, or without the adapters of a layer inside it."""
    inside = layer
    while isinstance(inside, keras.layers.Wrapper):  # the wrapper's configuration has its layer's
        inside = inside.layer
    kept = flatten_layers(inside) if isinstance(inside, KeepsState) else []
    return not {id(inner) for inner in flatten_layers(layer) if adapters_of(inner)} <= set(map(id, kept))


def _guarded_build_config(layer):
    if not _loses_adapters(layer):  # removed by way of an inner model
        return type(layer).get_build_config(layer)
    raise ValueError(
        f"`model` must have adapters inside layers of keras_txf to become a `.keras` file; received adapters inside "
        f"{layer.name}, a {type(layer).__name__}. Use `txf.training.save_adapter` or `model.save_weights`, or for a "
        "float model `txf.training.merge_adapter` before `model.save`."
    )


def _attach_all(layer, described):
    for name, (kind, options) in described["adapters"].items():
        if name not in adapters_of(layer):  # the layer's own configuration may have restored it
            attach(layer, name, kind, **options)
    layer.adapters.active = described["active"]


def _describe_all(layer):
    return {"adapters": describe(layer), "active": layer.adapters.active} if adapters_of(layer) else None


CHANGES["adapters"] = (_describe_all, _attach_all)
