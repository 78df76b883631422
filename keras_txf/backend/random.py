"""Random numbers that `keras.random` cannot draw, and the states of a backend's generators."""

import keras


def uniform(rows, seed):
    """Draws random numbers in [0, 1), float32 (rows, 1), which a seed repeats with and without XLA.

    Args:
        rows: number of rows, an integer or a scalar tensor.
        seed: a seed of `keras.random`.
    """
    if keras.backend.backend() != "tensorflow" or not hasattr(seed, "value"):  # a seed of Keras, not a `StepSeed`
        return keras.random.uniform((rows, 1), dtype="float32", seed=seed)
    return _hashed_uniform(rows, seed)


def dropout(x, rate, seed):
    """Sets a share `rate` of x to zero and divides the rest by the share that is kept.

    JAX and PyTorch run Keras' dropout. On TensorFlow Keras' dropout draws a 32-bit float for each number, and takes a
    sixth of a training step on a CPU. Here each 32-bit word serves two numbers, which rounds `rate` to a multiple of
    1 / 65,536.

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


def generator_states():
    """Returns the states of PyTorch's own generators, from which dropout without a seed draws."""
    if keras.backend.backend() != "torch":
        return {}
    import torch

    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return {f"torch_generator_{i}": state.numpy() for i, state in enumerate(states)}


def set_generator_states(states):
    """Sets the states that `generator_states` returns; an empty dict changes nothing."""
    for i, state in enumerate(states.values()):
        import torch

        state = torch.from_numpy(state)
        torch.cuda.set_rng_state(state, i - 1) if i else torch.set_rng_state(state)


def _hashed_uniform(rows, seed):
    """Hashes the seed and the row: TensorFlow's own random numbers differ between XLA and its graphs."""
    import tensorflow as tf

    first, second = tf.unstack(tf.cast(tf.bitwise.bitwise_and(seed.next(), 0xFFFFFFFF), "uint32"))
    x = tf.cast(tf.range(rows)[:, None], "uint32")
    for word in (first, second):
        x = x * tf.constant(0x9E3779B9, "uint32") + word
        for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):  # Wellons' triple32
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, "uint32"))) * tf.constant(
                factor, "uint32"
            )
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(14, "uint32")))
    return tf.cast(tf.cast(tf.bitwise.right_shift(x, tf.constant(8, "uint32")), "int32"), "float32") / 2**24
