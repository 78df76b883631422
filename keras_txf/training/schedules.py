"""Schedules of the learning rate."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register


@register
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's schedule: scale · dim^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    The first step is step 1. The peak, at `warmup_steps`, is scale / sqrt(dim · warmup_steps). After four times as many
    steps the rate is still half of the peak: a cooldown at the end of a training multiplies the rate of the last steps
    by a factor that falls linearly from 1 to 0.

    Args:
        dim: model width.
        warmup_steps: steps of linear growth; 4,000 in the paper.
        scale: factor on the rate.
        total_steps: steps of the whole training, after which the rate is 0; None for no cooldown.
        cooldown_steps: steps of the cooldown, such as a fifth of `total_steps`.

    Raises:
        ValueError: one of `total_steps` and `cooldown_steps` without the other; a warm-up or a cooldown longer than the
            training.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 5.3; the cooldown is that of
        [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560).

    Example:

    >>> schedule = txf.training.InverseSquareRoot(dim=512)
    >>> optimizer = keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    """

    def __init__(
        self,
        dim: int,
        warmup_steps: int = 4000,
        scale: float = 1.0,
        total_steps: int | None = None,
        cooldown_steps: int | None = None,
    ):
        super().__init__()
        self.dim = checks.positive_integer("dim", dim)
        self.warmup_steps = checks.positive_integer("warmup_steps", warmup_steps)
        self.scale = checks.positive_number("scale", scale)
        self.total_steps, self.cooldown_steps = total_steps, cooldown_steps
        if (total_steps is None) != (cooldown_steps is None):
            raise ValueError(
                "`total_steps` and `cooldown_steps` must be given together, each a positive integer; received "
                f"total_steps={short_repr(total_steps)} and cooldown_steps={short_repr(cooldown_steps)}."
            )
        if total_steps is not None:
            self.total_steps = checks.positive_integer("total_steps", total_steps)
            self.cooldown_steps = checks.positive_integer("cooldown_steps", cooldown_steps)
            if warmup_steps > total_steps:
                raise ValueError(
                    "`warmup_steps` must be at most `total_steps`, or the rate never reaches its peak; received "
                    f"warmup_steps={warmup_steps} and total_steps={total_steps}."
                )
            if cooldown_steps > total_steps:
                raise ValueError(
                    "`cooldown_steps` must be at most `total_steps`; received "
                    f"cooldown_steps={short_repr(cooldown_steps)} and total_steps={short_repr(total_steps)}."
                )

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1
        rate = self.scale * self.dim**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)
        if self.total_steps is None:
            return rate
        return rate * ops.clip((self.total_steps + 1 - step) / self.cooldown_steps, 0.0, 1.0)

    def get_config(self):
        names = ("dim", "warmup_steps", "scale", "total_steps", "cooldown_steps")
        return {name: getattr(self, name) for name in names}


def warmup_cosine(
    peak: float, warmup_steps: int, total_steps: int, final: float = 0.0
) -> keras.optimizers.schedules.CosineDecay:
    """Returns a schedule of linear growth to `peak`, then half a cosine down to `final`, as Keras' CosineDecay.

    Args:
        peak: highest learning rate.
        warmup_steps: steps of linear growth from 0.
        total_steps: the step at which the rate is `final`, warm-up included.
        final: learning rate from there on.

    Raises:
        ValueError: a warm-up as long as the training, a `final` above the peak.

    Example:

    >>> schedule = txf.training.warmup_cosine(peak=1e-3, warmup_steps=100, total_steps=2000)
    >>> float(schedule(100))
    0.0010000000474974513
    """
    checks.positive_number("peak", peak)
    checks.positive_integer("warmup_steps", warmup_steps)
    checks.positive_integer("total_steps", total_steps)
    if warmup_steps >= total_steps:
        raise ValueError(
            f"`warmup_steps` must be below `total_steps`; received warmup_steps={warmup_steps} "
            f"and total_steps={total_steps}."
        )
    if not 0 <= checks.finite_number("final", final) <= peak:
        raise ValueError(f"`final` must be between 0 and `peak`; received final={final} and peak={peak}.")
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=0.0,
        decay_steps=total_steps - warmup_steps,
        alpha=final / peak,
        warmup_target=peak,
        warmup_steps=warmup_steps,
    )
