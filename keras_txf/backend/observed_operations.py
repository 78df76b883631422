"""Observes the operations of a model while Keras infers shapes, without computing or allocating tensors.

Keras has no public way to do so on every backend.
"""

import contextlib
import functools
import math

import keras
from keras.src import backend

from keras_txf.backend import compilers
from keras_txf.backend.keras_private import flatten_layers, infer_spec

# Functions of one tensor whose gradient needs the tensor (or the result, which has the same size).
ACTIVATIONS = (
    "relu", "relu6", "sigmoid", "hard_sigmoid", "silu", "hard_silu", "gelu", "celu", "elu", "selu", "softplus",
    "softsign", "leaky_relu", "log_sigmoid", "tanh", "softmax", "log_softmax",
)  # fmt: skip


def observe(model, function, symbols, observer, others=()):
    """Calls a function of a model symbolically, and reports the operations of the model's layers.

    Args:
        model: a built model.
        function: a function of `symbols` that calls the model.
        symbols: symbolic tensors of known shapes.
        observer: an object with the methods
            on_product(multiply_adds, operands, result), after each matrix product, convolution and fused attention;
            on_activation(x), after each activation function, with its argument;
            on_layer(layer, call, *args, **kwargs), instead of each `call` of a layer;
            on_loop(length, step), with a function that does one step of a recurrent layer's loop, or of `scan_states`.
        others: further (owner, name, value), values that replace the attributes of these names.

    Returns:
        The symbolic outputs of the function.
    """
    busy = []  # if one function of a backend calls another, only the outer call counts

    def watched(function, report):
        @functools.wraps(function)
        def call(*args, **kwargs):
            if busy:
                return function(*args, **kwargs)
            busy.append(True)
            try:
                result = function(*args, **kwargs)
            finally:
                busy.pop()
            report(result, *args, **kwargs)
            return result

        return call

    def product(count):
        def report(result, *args, **kwargs):
            multiply_adds, operands = count(result, *args, **kwargs)
            if len(operands) > 1:
                observer.on_product(multiply_adds, operands, result)

        return report

    def activation(result, x, *args, **kwargs):
        observer.on_activation(x)

    def loop(result, step, inputs, states, *args, constants=None, time_major=False, **kwargs):
        inputs = keras.tree.map_structure(lambda x: x[0] if time_major else x[:, 0], inputs)
        length = keras.tree.flatten(result[1])[0].shape[0 if time_major else 1]
        observer.on_loop(length, lambda: step(inputs, [*states, *(constants or [])]))

    def states(result, step, state, xs):
        observer.on_loop(xs.shape[0], lambda: step(state, xs[0]))

    changes = [(module, name, watched(vars(module)[name], product(count))) for module, name, count in PRODUCTS]
    changes += [
        (module, name, watched(vars(module)[name], activation))
        for module in (backend.nn, backend.numpy)
        for name in ACTIVATIONS
        if name in vars(module)
    ]
    changes += [
        (backend, "rnn", watched(backend.rnn, loop)),
        (compilers, "scan_states", watched(compilers.scan_states, states)),
        (backend, "lstm", _no_kernel),
        (backend, "gru", _no_kernel),
        (keras, "remat", lambda function: function),  # shape inference needs no rematerialization
        *((layer, "call", functools.partial(observer.on_layer, layer, layer.call)) for layer in flatten_layers(model)),
        *others,
    ]

    def without_values(*tensors):
        """Gives variables values: PyTorch has none in the dtype of a variable's policy otherwise."""
        values = [(variable, keras.ops.zeros(variable.shape, variable.dtype)) for variable in model.variables]
        with keras.StatelessScope(values):
            return function(*tensors)

    with _replaced(changes):
        return infer_spec(without_values, *symbols)


def _no_kernel(*_, **__):
    """Replaces the kernel of a recurrent layer, whose loop then runs step by step."""
    raise NotImplementedError


@contextlib.contextmanager
def _replaced(changes):
    """A scope with other attributes of owners, which are modules, or objects whose class has the attribute."""
    before = [(owner, name, vars(owner).get(name)) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            vars(owner)[name] = new  # not by `setattr`, which Keras' layers watch
        yield
    finally:
        for owner, name, old in before:
            if old is None:
                del vars(owner)[name]
            else:
                vars(owner)[name] = old


def _matmul(result, x1, x2, **_):
    return math.prod(result.shape) * x1.shape[-1], (x1, x2)


def _einsum(result, subscripts, *operands, **_):
    if len(operands) > 2:  # the count depends on the order, which the backend chooses
        raise ValueError(f"`model` must have no einsum of more than two tensors; received {subscripts}.")
    sizes = {}
    for term, operand in zip(subscripts.replace(" ", "").split("->")[0].split(","), operands):
        before, dots, after = term.partition("...")
        inner = len(operand.shape) - len(before) - len(after)
        names = [*before, *(f"...{i}" for i in reversed(range(inner if dots else 0))), *after]
        for name, size in zip(names, operand.shape):
            sizes[name] = max(size, sizes.get(name, 1))
    return math.prod(sizes.values()), operands


def _tensordot(result, x1, x2, *_, **__):
    """Counts multiply-adds: each axis is in two of the three tensors."""
    return math.isqrt(math.prod((*x1.shape, *x2.shape, *result.shape))), (x1, x2)


def _convolution(result, inputs, kernel, *_, **__):
    return math.prod(result.shape) * math.prod(kernel.shape[:-1]), (inputs, kernel)


def _depthwise(result, inputs, kernel, *_, **__):
    return math.prod(result.shape) * math.prod(kernel.shape[:-2]), (inputs, kernel)


def _transposed(result, inputs, kernel, *_, **__):
    return math.prod(inputs.shape) * math.prod(kernel.shape[:-1]), (inputs, kernel)


def attention_multiply_adds(query, key, value):
    """Returns the multiply-adds of scores and of weighted values.

    Args:
        query: (B, T, N, H).
        key: (B, S, any, H).
        value: (B, S, any, V).
    """
    return math.prod(query.shape[:-1]) * key.shape[1] * (query.shape[-1] + value.shape[-1])


def _attention(result, query, key, value, *_, **__):
    return attention_multiply_adds(query, key, value), (query, key, value)


PRODUCTS = (
    (backend.numpy, "matmul", _matmul),
    (backend.numpy, "einsum", _einsum),
    (backend.numpy, "tensordot", _tensordot),
    (backend.numpy, "dot", _tensordot),
    (backend.nn, "conv", _convolution),
    (backend.nn, "depthwise_conv", _depthwise),
    (backend.nn, "conv_transpose", _transposed),
    (backend.nn, "dot_product_attention", _attention),
)
