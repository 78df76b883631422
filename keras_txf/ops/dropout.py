"""Dropout. The one file of `ops` that knows a backend, for what `keras.random` cannot say."""

import keras


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
