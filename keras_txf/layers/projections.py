"""The Dense layers inside attention and feed-forward."""

import keras


def make_projection(layer, name, units, input_shape):
    """A built Dense layer with the `use_bias`, `kernel_initializer` and dtype policy of its owner."""
    projection = keras.layers.Dense(
        units,
        use_bias=layer.use_bias,
        kernel_initializer=clone_initializer(layer.kernel_initializer),
        dtype=layer.dtype_policy,
        name=name,
    )
    projection.build(input_shape)
    return projection


def clone_initializer(initializer):
    """Another one of its kind: one instance would repeat its numbers. Functions are taken as they are."""
    return initializer.clone() if isinstance(initializer, keras.initializers.Initializer) else initializer
