"""Dropout, of a tensor and of attention weights. It knows a backend, for what `keras.random` cannot say."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_txf.backend.keras_private import seed_of_words


def dropout(x, rate, seed):
    """Sets a share `rate` of x to zero and divides the rest by the share that is kept.

    On JAX and PyTorch this is Keras' own. TensorFlow's draws a 32-bit float for each number, and on a
    CPU dropout is then a sixth of a training step. Here each 32-bit word serves two numbers, and `rate`
    is rounded to a multiple of 1 / 65,536.

    Args:
        x: float tensor.
        rate: share in [0, 1).
        seed: a `keras.random.SeedGenerator`.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.random.dropout(x, rate, seed=seed)
    import tensorflow as tf

    threshold = min(round(rate * 65536), 65535)
    words, last = tf.shape(x), x.shape[-1]
    words = tf.concat([words[:-1], (words[-1:] + 1) // 2], axis=0)
    seeds = tf.cast(tf.math.floormod(seed.next(), tf.int32.max), "int32")
    bits = tf.random.stateless_uniform(words, seeds, minval=None, maxval=None, dtype="uint32")
    halves = tf.reshape(tf.bitcast(bits, "uint16"), tf.concat([words[:-1], 2 * words[-1:]], axis=0))
    if last is None or last % 2:
        halves = halves[..., : tf.shape(x)[-1]]
    kept = tf.cast(halves >= tf.cast(threshold, "uint16"), x.dtype)
    return x * (kept * tf.cast(65536 / (65536 - threshold), x.dtype))


@dataclasses.dataclass
class WeightDropout:
    """Dropout of attention weights: of all at once, or of a block by its number, as often as it is computed."""

    rate: float
    seed: Any  # a `keras.random.SeedGenerator`

    def __call__(self, weights):
        return dropout(weights, self.rate, self.seed)

    def in_blocks(self):
        """A function of weights and the number of their block, which drops the same weights in each call."""
        return BlockDropout(self.rate, self.seed.next())


@dataclasses.dataclass
class BlockDropout:
    """Dropout of a block of attention weights, which drops the same weights whenever the block is computed."""

    rate: float
    words: Any  # the two integers of a seed

    def __call__(self, weights, number):
        return dropout(weights, self.rate, seed_of_words(_move(self.words, number)))


def _move(words, number):
    """The first of a seed's two words is moved by a multiple of 2³² divided by the golden ratio."""
    moved = words[0] + ops.cast(number + 1, words.dtype) * 1640531527
    return ops.stack([moved, words[1]])
