"""StepSeed: the seeds that a sampler draws from in one step of a decode loop."""

import keras
from keras import ops

DRAW_STRIDE = 2**20  # between the seeds of two draws in one step
# 2**32 divided by the golden ratio. PyTorch adds seed and step, so with a stride of 1 the steps of one seed would draw
# what other seeds draw.
STEP_STRIDE = 0x61C88647


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
