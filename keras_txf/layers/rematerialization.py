"""Rematerialization of a layer in a `keras.RematScope`: the backward pass computes activations again.

Keras wraps `call` itself, which has three faults. TensorFlow does not accept keyword arguments in graphs (every `fit`).
State that `call` updates leaks on JAX. A recomputation has neither the `training` nor the seeds of the first pass. Here
a layer runs as a function of float tensors, from inputs and variables to outputs, new states and losses.
"""

import contextlib
import contextvars
import functools
import math

import keras
from keras import ops, tree

from keras_txf.backend.functional_graph import give_mask, mask_of
from keras_txf.backend.keras_private import (
    flatten_layers,
    infer_spec,
    remat_mode,
    trainable_by_nature,
    training_of_call,
    without_autocast,
)

_inside_recomputed = contextvars.ContextVar("whether an outer layer is computed again as a whole", default=False)


def no_rematerialization(layer):
    """A scope without rematerialization of inner layers, in which Keras infers the shapes of a layer's outputs."""
    if remat_mode(layer) is None:
        return contextlib.nullcontext()
    _adopt_inner(layer)
    return _whole()


def rematerialized_call(layer, layer_call, *args, **kwargs):
    """Returns `layer_call`, or a function that rematerializes, by the mode of the scope in which the layer was made.

    Inner layers of a rematerialized layer are not rematerialized again. A call with a cache needs no gradient.
    """
    _adopt_inner(layer)
    if _inside_recomputed.get() or kwargs.get("cache") is not None or kwargs.get("context_cache") is not None:
        return layer_call
    scope = remat_mode(layer)
    if scope.mode == "activations" and isinstance(layer, (keras.layers.Dense, keras.layers.Activation)):
        return keras.layers.Layer.rematerialized_call(layer, layer_call, *args, **kwargs)
    wanted = {
        "full": lambda: True,
        "larger_than": lambda: _output_size(layer, args, kwargs) > scope.output_size_threshold,
        "list_of_layers": lambda: layer.name in scope.layer_names,
    }
    return functools.partial(_compute, layer) if scope.mode in wanted and wanted[scope.mode]() else layer_call


def recomputed_activation(layer):
    """The layer's `activation_function`, rematerialized if the mode of the scope is "activations"."""
    function, mode = layer.activation_function, remat_mode(layer)
    if mode is None or mode.mode != "activations" or _inside_recomputed.get():
        return function
    return functools.partial(_compute, function) if isinstance(function, keras.layers.Layer) else keras.remat(function)


def _adopt_inner(layer):
    """Makes Keras' layers inside a layer use this module's `rematerialized_call`."""
    for inner in flatten_layers(layer, include_self=False):
        if getattr(inner.rematerialized_call, "__func__", None) is keras.layers.Layer.rematerialized_call:
            inner.rematerialized_call = functools.partial(rematerialized_call, inner)


@contextlib.contextmanager
def _whole():
    token = _inside_recomputed.set(True)
    try:
        yield
    finally:
        _inside_recomputed.reset(token)


class _Pure:
    """A call of a layer as a function of all its tensors: the arguments and the values of the variables."""

    def __init__(self, layer, args, kwargs):
        self.layer, self.variables = layer, layer.variables
        trained = {id(variable) for variable in trainable_by_nature(layer)}
        with without_autocast():
            # Other variables may change before the second pass, and some backends change them in place.
            values = [ops.cast(v.value, v.dtype) if id(v) in trained else ops.copy(v.value) for v in self.variables]
        # The second pass may run after the outer calls, from which Keras takes `training`.
        kwargs = {"training": training_of_call(layer), **kwargs}
        self.structure = args, kwargs, values
        self.tensors = tree.flatten(self.structure)

    def __call__(self, tensors):
        """Returns a flat list: the outputs, the new values of updated variables, the added losses."""
        args, kwargs, values = tree.pack_sequence_as(self.structure, tensors)
        with _whole(), keras.StatelessScope(list(zip(self.variables, values)), collect_losses=True) as scope:
            before = [scope.get_current_value(variable) for variable in self.variables]
            self.outputs = self.layer(*args, **kwargs)
            after = [scope.get_current_value(variable) for variable in self.variables]
        outputs = tree.flatten(self.outputs)
        changed = [i for i, (old, new) in enumerate(zip(before, after)) if old is not new]
        self.count, self.updated = len(outputs), [self.variables[i] for i in changed]
        # The outer call adds the losses of the activity regularizer.
        regularized = len(outputs) if self.layer.activity_regularizer is not None else 0
        return [*outputs, *(after[i] for i in changed), *scope.losses[: len(scope.losses) - regularized]]


def _compute(layer, *args, **kwargs):
    """Calls the layer with rematerialization."""
    pure = _Pure(layer, args, kwargs)
    indices = [i for i, tensor in enumerate(pure.tensors) if _is_float(tensor)]
    masks = [mask_of(tensor) for tensor in pure.tensors]  # read now: the masks may be lost before the second pass

    def run(*floats):
        tensors = list(pure.tensors)
        for index, tensor in zip(indices, floats):
            give_mask(tensor, masks[index])  # the tensor of the second pass is a new object without a mask
            tensors[index] = tensor
        return pure(tensors)

    results = (keras.remat(run) if indices else run)(*(pure.tensors[index] for index in indices))
    for variable, value in zip(pure.updated, results[pure.count :]):
        variable.assign(value)
    for loss in results[pure.count + len(pure.updated) :]:
        layer.add_loss(loss)
    return tree.pack_sequence_as(pure.outputs, results[: pure.count])


def _output_size(layer, args, kwargs):
    """The number of elements of a call's outputs. As in Keras an unknown axis counts as 1."""
    pure = _Pure(layer, args, kwargs)
    indices = [i for i, tensor in enumerate(pure.tensors) if ops.is_tensor(tensor)]

    def run(*replaced):
        tensors = list(pure.tensors)
        for index, tensor in zip(indices, replaced):
            tensors[index] = tensor
        return pure(tensors)[: pure.count]

    symbols = (
        keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype))
        for x in (pure.tensors[index] for index in indices)
    )
    specs = infer_spec(run, *symbols)
    return sum(math.prod(axis or 1 for axis in spec.shape) for spec in specs)


def _is_float(x):
    return ops.is_tensor(x) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
