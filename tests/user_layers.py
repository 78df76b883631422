"""Layers as a user writes them: an attention, a position, a feed-forward, and layers that cannot decode."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tests")
class DifferentialAttention(keras.layers.Layer):
    """The difference of two attentions, which cancels what both attend to in vain (Ye et al. 2024)."""

    def __init__(self, num_heads, lambda_init=0.8, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.lambda_init = num_heads, lambda_init
        self.supports_masking = True

    def build(self, shape):
        dim, self.head_dim = shape[-1], shape[-1] // self.num_heads // 2
        for name in ("query", "key", "value", "output_dense"):
            setattr(self, name, keras.layers.Dense(dim, use_bias=False, dtype=self.dtype_policy, name=name))
            getattr(self, name).build(shape)
        self.norm = keras.layers.RMSNormalization(dtype=self.dtype_policy, name="norm")
        self.norm.build((None, None, self.num_heads, 2 * self.head_dim))
        self.lambdas = self.add_weight(
            name="lambdas", shape=(4, self.head_dim), initializer=keras.initializers.RandomNormal(0, 0.1)
        )

    def call(self, inputs, mask=None, cache=None):
        length, pairs = ops.shape(inputs)[1], 2 * self.num_heads
        query = ops.reshape(self.query(inputs), (-1, length, pairs, self.head_dim))
        key = ops.reshape(self.key(inputs), (-1, length, pairs, self.head_dim))
        value = ops.reshape(self.value(inputs), (-1, length, self.num_heads, 2 * self.head_dim))
        if cache is None:
            allowed = ops.tril(ops.ones((length, length), "bool"))
            if mask is not None:
                allowed = ops.logical_and(allowed, ops.logical_or(mask[:, None, None], ops.eye(length, dtype="bool")))
        else:
            key, value = cache.update(key, value)
            allowed = cache.attention_mask
        logits = ops.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(self.head_dim)
        first, second = ops.split(ops.softmax(ops.where(allowed, logits, -1e9)), 2, axis=1)
        a, b, c, d = (self.lambdas[i] for i in range(4))
        factor = ops.exp(ops.sum(a * b)) - ops.exp(ops.sum(c * d)) + self.lambda_init
        heads = self.norm(ops.einsum("bnts,bsnh->btnh", first - factor * second, value)) * (1 - self.lambda_init)
        return self.output_dense(ops.reshape(heads, (-1, length, pairs * self.head_dim)))

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads, "lambda_init": self.lambda_init}


@keras.saving.register_keras_serializable(package="tests")
class SquaredReLU(keras.layers.Layer):
    """The feed-forward of Primer (So et al. 2021)."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.inner = keras.layers.Dense(width, name="inner")
        self.outer = None
        self.supports_masking = True

    def build(self, shape):
        self.inner.build(shape)
        self.outer = keras.layers.Dense(shape[-1], name="outer")
        self.outer.build((*shape[:-1], self.width))

    def call(self, inputs):
        return self.outer(ops.square(ops.relu(self.inner(inputs))))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


@keras.saving.register_keras_serializable(package="tests")
class Bottleneck(keras.layers.Layer):
    """A feed-forward without a `build` of its own: Keras builds the layers within when they are called."""

    def __init__(self, width, dim, **kwargs):
        super().__init__(**kwargs)
        self.width, self.dim = width, dim
        self.down = keras.layers.Dense(width, activation="tanh", name="down")
        self.up = keras.layers.Dense(dim, name="up")
        self.supports_masking = True

    def call(self, inputs):
        return self.up(self.down(inputs))

    def get_config(self):
        return {**super().get_config(), "width": self.width, "dim": self.dim}


@keras.saving.register_keras_serializable(package="tests")
class Center(keras.layers.Layer):
    """A norm of the user's: only the mean is taken away."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, shape):
        self.offset = self.add_weight(name="offset", shape=(shape[-1],), initializer="zeros")

    def call(self, inputs):
        return inputs - ops.mean(inputs, axis=-1, keepdims=True) + ops.cast(self.offset, inputs.dtype)


@keras.saving.register_keras_serializable(package="tests")
class UnitLength(keras.layers.Layer):
    """A norm of the user's that says nothing about masks."""

    def call(self, inputs):
        return inputs / (ops.norm(inputs, axis=-1, keepdims=True) + 1e-5)


@keras.saving.register_keras_serializable(package="tests")
class LogDistance(keras.layers.Layer):
    """A bias that falls with the logarithm of the distance (KERPLE, Chi et al. 2022), built at its first call."""

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def build(self, *shapes):
        self.factors = self.add_weight(name="factors", shape=(2, self.num_heads, 1, 1), initializer="ones")

    def rotate(self, x, positions):
        return x

    def bias(self, query_positions, key_positions):
        return self(query_positions, key_positions)

    def call(self, query_positions, key_positions):
        distance = ops.abs(ops.expand_dims(query_positions, -1) - ops.expand_dims(key_positions, -2))
        distance = ops.expand_dims(ops.cast(distance, self.compute_dtype), -3)
        bias = -ops.abs(self.factors[0]) * ops.log1p(ops.abs(self.factors[1]) * distance)
        return bias if len(bias.shape) == 4 else bias[None]

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}
