"""The seeds that a sampler draws from: of a call of `generate`, and of one step of its loop."""

import keras
from keras import ops

from keras_txf import checks

DRAW_STRIDE = 2**20  # between the seeds of two draws in one step
# 2**32 divided by the golden ratio. PyTorch adds seed and step, so with a stride of 1 the steps of one seed would draw
# what other seeds draw.
STEP_STRIDE = 0x61C88647


def seed_state(seed):
    """The state that draws begin with, int (2,): of any integer, and of None another one at each call."""
    seed = checks.optional(checks.integer, "seed", seed)
    return keras.random.SeedGenerator(None if seed is None else seed % 2**31).state.value  # no backend takes all


class StepSeed(keras.random.SeedGenerator):
    """The seeds of one step, as Keras takes them: tensors, so that a compiled loop keeps no state.

    Args:
        seed: int (2,), of the call of `generate`.
        count: int (), the step.
    """

    def __init__(self, seed, count):
        self.value = seed + ops.cast(ops.stack([ops.zeros_like(count), count]), seed.dtype) * STEP_STRIDE
        self.draws = 0

    def next(self, ordered=True):
        offset = self.draws * DRAW_STRIDE
        self.draws += 1
        return self.value + ops.convert_to_tensor([0, offset], self.value.dtype)
