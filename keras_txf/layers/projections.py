"""The Dense layers inside attention and feed-forward, and how their kernels may lie elsewhere."""

import contextlib
import contextvars

import keras

_elsewhere = contextvars.ContextVar("products by the id of a layer", default={})


def apply(layer, inputs, **kwargs):
    """What the layer gives for `inputs`: computed by itself, or inside of `elsewhere` by what stands in for it."""
    product = _elsewhere.get().get(id(layer))
    return layer(inputs, **kwargs) if product is None else product(inputs)


@contextlib.contextmanager
def elsewhere(products):
    """A scope in which functions of the inputs stand in for layers, given by their ids."""
    token = _elsewhere.set(products)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def make_projection(layer, name, units, input_shape, use_bias=None):
    """A built Dense layer with the `kernel_initializer`, dtype policy and, unless it is given, `use_bias` of its owner."""
    projection = keras.layers.Dense(
        units,
        use_bias=layer.use_bias if use_bias is None else use_bias,
        kernel_initializer=clone_initializer(layer.kernel_initializer),
        dtype=layer.dtype_policy,
        name=name,
    )
    projection.build(input_shape)
    return projection


def clone_initializer(initializer):
    """Another one of its kind: one instance would repeat its numbers. Functions are taken as they are."""
    return initializer.clone() if isinstance(initializer, keras.initializers.Initializer) else initializer
