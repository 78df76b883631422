"""Functions for the private names of Keras that layers and training need.

The module `functional_graph` has the private names of graphs.
"""

import contextlib
import contextvars

import keras
from keras import ops
from keras.src.backend import AutocastScope
from keras.src.backend import compute_output_spec as infer_outputs
from keras.src.backend.common import dtypes, global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.saving.saving_lib import _walk_saveable
from keras.src.saving.serialization_lib import ObjectSharingScope
from keras.src.utils.python_utils import default as unless_overridden  # noqa: F401  marks a method as not overridden

WAITING = "uninitialized_variables"  # Keras' list of variables without values yet


class _NarrowTypes(dict):
    """Keras' table of dtypes that its operations narrow to 32 bits; `computing_in("float64")` takes float64 out."""

    keeps_float64 = contextvars.ContextVar("keeps_float64", default=False)

    def get(self, dtype, default=None):
        return dtype if dtype == "float64" and self.keeps_float64.get() else super().get(dtype, default)


dtypes.BIT64_TO_BIT32_DTYPE = _NarrowTypes(dtypes.BIT64_TO_BIT32_DTYPE)


@contextlib.contextmanager
def computing_in(dtype):
    """A scope in which operations on float64 return float64, if `dtype` is "float64".

    On JAX and PyTorch Keras' `matmul`, `mean`, `maximum`, norms and other operations return float32 for float64. JAX
    itself has float64 only with `jax_enable_x64`.
    """
    token = _NarrowTypes.keeps_float64.set(dtype == "float64" and _has_float64())
    try:
        yield
    finally:
        _NarrowTypes.keeps_float64.reset(token)


def _has_float64():
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.config.jax_enable_x64


def config_of_model(model):
    """Returns the configuration of a model, which also tells which layers share a layer."""
    with ObjectSharingScope():
        return model.get_config()


def model_of_config(cls, config):
    """Makes a model of a class from its configuration; layers that share a layer share it again."""
    with ObjectSharingScope():
        return cls.from_config(config)


def keeps_shared_layers():
    """Whether Keras saves or loads an object whose configuration marks shared layers."""
    return global_state.get_global_attribute("shared_objects/id_to_config_map") is not None


def flatten_layers(layer, include_self=True):
    """Returns the layers inside a layer or a model, at any depth, each once; the layer itself is the first."""
    return layer._flatten_layers(include_self)


def layers_by_attribute(layer):
    """Returns the layers inside a layer by their attributes, such as "attention/query", as in Keras' weight files.

    Names and paths may change when the layer is made again. The layer itself has the attribute path "".
    """
    found, known = {}, set()

    def add(path, value):
        if isinstance(value, keras.layers.Layer) and id(value) not in known:
            known.add(id(value))
            found[path] = value
            for attribute, inner in _walk_saveable(value):
                add(f"{path}/{attribute}".lstrip("/"), inner)
        elif isinstance(value, (list, tuple, dict)):
            for number, inner in enumerate(value.values() if isinstance(value, dict) else value):
                add(f"{path}/{number}", inner)

    add("", layer)
    return found


def trainable_by_nature(layer):
    """Returns the variables that training may change, frozen or not; not statistics of a norm or int8 kernels."""
    variables = [variable for inner in flatten_layers(layer) for variable in inner._trainable_variables]
    return list({id(variable): variable for variable in variables}.values())


def own_trainable_by_nature(layer):
    """Returns the `trainable_by_nature` variables of a layer without its inner layers, in the order of creation."""
    return list(layer._trainable_variables)


def has_own_weights(layer):
    """Whether a layer has its own weights, outside of its inner layers."""
    return bool(layer._trainable_variables or layer._non_trainable_variables)


def accept_trainable_state(model):
    """Keeps Keras from warning that `trainable` has changed since `compile`."""
    getattr(model, "_compiled_trainable_state", {}).update((layer, layer.trainable) for layer in flatten_layers(model))


def trained_by(optimizer):
    """Returns the variables that an optimizer was built for."""
    return optimizer._trainable_variables


@contextlib.contextmanager
def unlocked(layer):
    """A scope in which a built layer takes new variables."""
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def count_as_called(model):
    """Lets Keras export a functional model to ONNX that was never called: the graph holds its shapes."""
    model._called = True


def untrack(layer, thing):
    """Makes a layer forget one of its variables or seed generators."""
    if isinstance(thing, keras.Variable):
        layer._untrack_variable(thing)
    else:
        with unlocked(layer):
            layer._tracker.untrack(thing)


def kept_kernel(dense):
    """Returns the variable that holds the kernel of a Dense or EinsumDense layer, quantized or not."""
    return dense._kernel


def kernel_shape(dense):
    """Returns the shape of the unpacked kernel of a Dense or EinsumDense layer: int4 packs two numbers in one."""
    if isinstance(dense, keras.layers.Dense):
        return dense.input_spec.axes[-1], dense.units
    return tuple(dense.original_kernel_shape if dense.quantization_mode == "int4" else dense._kernel.shape)


def float_kernel(dense):
    """Returns the kernel of a Dense or EinsumDense layer, dequantized if it is int8 or int4."""
    kernel, mode, einsum = dense._kernel, dense.quantization_mode, isinstance(dense, keras.layers.EinsumDense)
    if mode not in ("int8", "int4"):
        return kernel
    scale = dense.kernel_scale
    if mode == "int8":
        return ops.divide(ops.cast(kernel, "float32"), dense._adjust_scale_for_dequant(scale) if einsum else scale)
    kernel = keras.quantizers.unpack_int4(kernel, dense._int4_unpacked_column_size if einsum else dense.units, axis=-1)
    kernel = ops.cast(kernel, "float32")  # (rows, columns)
    if (dense._int4_block_size or -1) == -1:
        values = ops.divide(kernel, scale)
    else:
        of_row = ops.cast(dense.g_idx, "int32")
        zero = ops.cast(ops.take(dense.kernel_zero, of_row, axis=0), "float32")
        values = ops.multiply(ops.subtract(kernel, zero), ops.take(scale, of_row, axis=0))
    return ops.reshape(values, kernel_shape(dense))


def dense_with(dense, kernel=None, **attributes):
    """Returns a layer like a Dense or EinsumDense layer, with the same variables and other attributes, for its `call`.

    With `kernel` the layer is not quantized. Keras does not track the layer.
    """
    if kernel is not None:
        attributes.update(_kernel=kernel, _dtype_policy=keras.DTypePolicy(dense.compute_dtype))
    layer = object.__new__(type(dense))
    vars(layer).update(vars(dense), **attributes)
    return layer


def training_of_call(layer):
    """Returns the `training` of the outermost call that is running."""
    return layer._get_call_context().get_value("training")


def remat_mode(layer):
    """Returns the mode of the `keras.RematScope` in which a layer was made, or None."""
    return layer._remat_mode


def without_autocast():
    """A scope in which variables keep their own dtype under any policy of the called layer."""
    return AutocastScope(None)


def infer_spec(function, *symbols):
    """Returns the symbolic tensors that a function returns for symbolic tensors."""
    return infer_outputs(function, *symbols)


@contextlib.contextmanager
def without_values():
    """A scope whose new variables have no values yet. Yields the list of these variables."""
    before, made = global_state.get_global_attribute(WAITING), []
    global_state.set_global_attribute(WAITING, made)
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield made
    finally:  # in Keras' own list, the variables would get values after the next stateless scope
        global_state.set_global_attribute(WAITING, before)


def puts_values_off():
    """Whether the code runs in a scope such as `without_values`."""
    scope = get_stateless_scope()
    return scope is not None and not scope.initialize_variables


def has_value(variable):
    return variable._value is not None


def initialize(variable, initializer=None):
    """Gives a variable without a value the value of an initializer, by default of its own initializer."""
    if initializer is not None:
        variable._initializer = initializer
    variable._deferred_initialize()


def seed_of_words(words):
    """Returns a seed for `keras.random` from the two words that a `SeedGenerator` would return."""
    return _SeedOfWords(words)


class _SeedOfWords(keras.random.SeedGenerator):
    def __init__(self, words):  # without a state: a loop cannot make variables
        self.words, self._initial_seed = words, 0

    def next(self, ordered=True):
        return self.words


def _track_variables(layer):
    """Registers every variable of a layer as a PyTorch parameter.

    Keras registers one variable for each path. If two inner models share a path, `zero_grad` skips the first variable,
    and its gradients accumulate.
    """
    import torch

    parameters = {}
    for number, variable in enumerate(layer.variables):
        known = variable.path in parameters
        parameters[f"{variable.path}/{number}" if known else variable.path] = variable.value
    layer._torch_params = torch.nn.ParameterDict(parameters)


def read_sequence(layer, x, states, mask):
    """Returns the outputs (B, T, D) of a recurrent layer of Keras, and its states after the last token.

    Args:
        layer: with return_sequences=True.
        x: float (B, T, any width).
        states: list of initial states (B, ...), nested for stacked cells.
        mask: bool (B, T), True at real tokens, or None.
    """
    dtype = layer.cell.compute_dtype
    states = keras.tree.map_structure(lambda state: keras.ops.cast(state, dtype), list(states))
    layer._maybe_config_dropout_masks(layer.cell, x[:, 0, :], states)
    _, outputs, states = layer.inner_loop(keras.ops.cast(x, dtype), states, mask, training=False)
    layer._maybe_reset_dropout_masks(layer.cell)
    return outputs, states if isinstance(states, (list, tuple)) else [states]


def attend_with(layer, query, key, value, update, mask):
    """Returns the output of Keras' `MultiHeadAttention` or `GroupQueryAttention` with keys from a cache.

    Args:
        query, key, value: float (B, T, any width), of the new tokens.
        update: function of the new keys and values (B, T, heads, width) that returns all keys and values.
        mask: bool (B, 1, T, S).
    """
    gate = layer._gate_dense(query) if getattr(layer, "_use_gate", None) or getattr(layer, "use_gate", None) else None
    heads = layer._query_dense(query), *update(layer._key_dense(key), layer._value_dense(value))
    repeats = getattr(layer, "num_repeats", 1)
    query, key, value = (x if x is heads[0] else keras.ops.repeat(x, repeats, axis=2) for x in heads)
    layer._return_attention_scores = False
    x, _ = layer._compute_attention(query, key, value, attention_mask=mask[:, 0], training=False)
    return layer._output_dense(x if gate is None else x * gate)


if keras.backend.backend() == "torch":
    keras.layers.Layer._track_variables = _track_variables
