"""A loop that holds one step in memory, a loop over states, and whether a gradient may be asked for.

`keras.ops.fori_loop` on TensorFlow begins up to ten steps at once.
"""

import keras
from keras import ops


def sequential_loop(first, last, step, state):
    """Calls `step(i, state)` for i from `first` up to `last`, one after the other; returns the last state.

    Ten steps at once took 3.2 GB where one takes 0.33 GB: attention and its gradient, 8,192 tokens, 8 heads of 64.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.fori_loop(first, last, step, state)
    import tensorflow as tf

    return tf.while_loop(
        lambda i, state: i < last, lambda i, state: (i + 1, step(i, state)), (first, state), parallel_iterations=1
    )[1]


def scan_states(step, state, xs):
    """Calls `state = step(state, x)` for each x of xs; returns the last state, and the state before each x.

    On TensorFlow XLA cannot compile the gradient of `keras.ops.scan`, whose loop does not tell its largest length.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.scan(lambda state, x: (step(state, x), state), state, xs)
    import tensorflow as tf

    after = tf.scan(step, xs, state)
    return after[-1], tf.concat([state[None], after[:-1]], axis=0)


def records_gradients():
    """Whether the backend may ask for gradients of what is computed now: PyTorch says so.

    Compiled functions of the other backends leave out what nothing uses.
    """
    if keras.backend.backend() != "torch":
        return True
    import torch

    return torch.is_grad_enabled()
