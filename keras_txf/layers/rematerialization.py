"""What `keras.RematScope` does to a layer: its activations are computed again in the backward pass, not kept.

Keras' own way wraps `call` as it stands. TensorFlow then refuses keyword arguments in graphs (every `fit`), state that
is updated inside leaks on JAX, and a recomputation knows neither `training` nor the seeds of the first pass. So a layer
here runs as a function of float tensors: its inputs and its variables go in, its outputs, new states and losses come
out.
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

_inside = contextvars.ContextVar("whether an outer layer is computed again as a whole", default=False)


def nothing_computed_again(layer):
    """The scope in which Keras infers the shapes of a layer's outputs: the layers inside compute nothing again."""
    if remat_mode(layer) is None:
        return contextlib.nullcontext()
    _adopt_inner(layer)
    return _whole()


def rematerialized_call(layer, layer_call, *args, **kwargs):
    """The function in place of `layer_call`, as the mode of the scope has it, in which the layer was made.

    Inside of a layer that is computed again nothing is so twice. A call with a cache has no gradient to compute.
    """
    _adopt_inner(layer)
    if _inside.get() or kwargs.get("cache") is not None or kwargs.get("context_cache") is not None:
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
    """The layer's `activation_function`, computed again in the backward pass if the scope's mode is "activations"."""
    function, mode = layer.activation_function, remat_mode(layer)
    if mode is None or mode.mode != "activations" or _inside.get():
        return function
    return functools.partial(_compute, function) if isinstance(function, keras.layers.Layer) else keras.remat(function)


def _adopt_inner(layer):
    """Has Keras' own layers inside of this one computed again in the same way."""
    for inner in flatten_layers(layer, include_self=False):
        if getattr(inner.rematerialized_call, "__func__", None) is keras.layers.Layer.rematerialized_call:
            inner.rematerialized_call = functools.partial(rematerialized_call, inner)


@contextlib.contextmanager
def _whole():
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


class _Pure:
    """A call of a layer as a function of all tensors that it depends on: its arguments, and its variables' values."""

    def __init__(self, layer, args, kwargs):
        self.layer, self.variables = layer, layer.variables
        trained = {id(variable) for variable in trainable_by_nature(layer)}
        with without_autocast():
            # The others may change before the second pass, and some backends change them in place.
            values = [ops.cast(v.value, v.dtype) if id(v) in trained else ops.copy(v.value) for v in self.variables]
        # The second pass may come after the outer calls, which say whether this is training.
        kwargs = {"training": training_of_call(layer), **kwargs}
        self.structure = args, kwargs, values
        self.tensors = tree.flatten(self.structure)

    def __call__(self, tensors):
        """Flat: the outputs, the new values of the variables that were updated, the losses that were added."""
        args, kwargs, values = tree.pack_sequence_as(self.structure, tensors)
        with _whole(), keras.StatelessScope(list(zip(self.variables, values)), collect_losses=True) as scope:
            before = [scope.get_current_value(variable) for variable in self.variables]
            self.outputs = self.layer(*args, **kwargs)
            after = [scope.get_current_value(variable) for variable in self.variables]
        outputs = tree.flatten(self.outputs)
        changed = [i for i, (old, new) in enumerate(zip(before, after)) if old is not new]
        self.count, self.updated = len(outputs), [self.variables[i] for i in changed]
        # The call around this one adds the losses of the outputs themselves.
        own = len(outputs) if self.layer.activity_regularizer is not None else 0
        return [*outputs, *(after[i] for i in changed), *scope.losses[: len(scope.losses) - own]]


def _compute(layer, *args, **kwargs):
    """Calls the layer such that gradients compute it again."""
    pure = _Pure(layer, args, kwargs)
    places = [i for i, tensor in enumerate(pure.tensors) if _is_float(tensor)]
    masks = [mask_of(tensor) for tensor in pure.tensors]  # now, since the second pass may find them gone

    def run(*floats):
        tensors = list(pure.tensors)
        for place, tensor in zip(places, floats):
            give_mask(tensor, masks[place])  # another object than in the first pass, which has lost it
            tensors[place] = tensor
        return pure(tensors)

    results = (keras.remat(run) if places else run)(*(pure.tensors[place] for place in places))
    for variable, value in zip(pure.updated, results[pure.count :]):
        variable.assign(value)
    for loss in results[pure.count + len(pure.updated) :]:
        layer.add_loss(loss)
    return tree.pack_sequence_as(pure.outputs, results[: pure.count])


def _output_size(layer, args, kwargs):
    """How many numbers the call returns, as Keras counts them: an unknown axis as one."""
    pure = _Pure(layer, args, kwargs)
    places = [i for i, tensor in enumerate(pure.tensors) if ops.is_tensor(tensor)]

    def run(*given):
        tensors = list(pure.tensors)
        for place, tensor in zip(places, given):
            tensors[place] = tensor
        return pure(tensors)[: pure.count]

    given = (pure.tensors[place] for place in places)
    specs = infer_spec(run, *(keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype)) for x in given))
    return sum(math.prod(axis or 1 for axis in spec.shape) for spec in specs)


def _is_float(x):
    return ops.is_tensor(x) and keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
