"""Learning rates: schedules over the steps, and layer-wise decay."""

import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register
from keras_txf.training.freezing import renew
from keras_txf.training.selection import as_patterns


@register
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's schedule: scale · dim^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    The first step is step 1. The peak, at `warmup_steps`, is scale / sqrt(dim · warmup_steps). After four times as many
    steps the rate is still half of the peak. A cooldown at the end of a training multiplies the rate of the last steps
    by a factor that falls linearly from 1 to 0. With `gradient_accumulation_steps=k` of an optimizer Keras counts
    batches, not updates: multiply all steps by k.

    Args:
        dim: model width.
        warmup_steps: steps of linear growth; 4,000 in the paper.
        scale: factor on the rate.
        total_steps: steps of the whole training; the rate is 0 afterwards. None for no cooldown.
        cooldown_steps: steps of the cooldown, such as a fifth of `total_steps`.

    Raises:
        ValueError: one of `total_steps` and `cooldown_steps` without the other; a warm-up or a cooldown longer than the
            training.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 5.3; for the cooldown
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

    With `gradient_accumulation_steps=k` of an optimizer Keras counts batches, not updates: multiply all steps by k.

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


REFUSED = (keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer)
BLOCKS = ("encoder_#/*", "decoder_#/*")
EMBEDDINGS = ("*embedding/*", "*embedding_norm/*", "*embedding_projection/*", "*_position/*")


def layerwise_decay(
    optimizer: Any,
    decay: float = 0.9,
    blocks: str | Sequence[str] = BLOCKS,
    embeddings: str | Sequence[str] = EMBEDDINGS,
) -> Any:
    """Returns an optimizer that multiplies the rate of each variable by `decay` to the power of its depth.

    The head, and every variable outside blocks and embeddings, has depth 0. The last block has depth 1, the first of L
    blocks depth L, the embeddings depth L + 1. Encoder and decoder are counted separately; the embeddings lie below the
    deeper of the two. Decoupled weight decay, such as AdamW's, is multiplied too. The result has the optimizer's class
    as a base and supports schedules, callbacks that set the rate, `.keras` files and mixed float16 (Keras wraps it in a
    `LossScaleOptimizer`). Adafactor takes the smaller of its rate and 1 / sqrt(step): late in a training all its blocks
    have the same rate.

    Args:
        optimizer: any new Keras optimizer except a wrapper.
        decay: factor on the rate from one block to the block below, in (0, 1]. 1 changes nothing.
        blocks: patterns of the paths of variables in blocks, with `#` for the number of the block. The largest number
            among the trained variables is the last block.
        embeddings: patterns of the paths of variables below the blocks; default the embeddings, their norm and
            projection, and the position tables that all blocks share. The first pattern that matches a path counts,
            patterns of `blocks` first. Each pattern that you pass must match a trained variable.

    Raises:
        ValueError: a decay out of range, a wrapper or a built optimizer; at the build, variables without any block, or
            a pattern that you passed and that matches no variable.

    Reference:
        [ELECTRA](https://arxiv.org/abs/2003.10555), appendix B;
        [Universal Language Model Fine-tuning](https://arxiv.org/abs/1801.06146) for discriminative fine-tuning.

    Example:

    >>> model = txf.models.encoder_classifier(100, num_classes=3, num_layers=2, dim=32, num_heads=4)
    >>> optimizer = txf.training.layerwise_decay(keras.optimizers.AdamW(1e-3), decay=0.5)
    >>> optimizer.build(model.trainable_variables)
    >>> {path.split("/")[0]: rate for path, rate in optimizer.rates.items()}
    {'embedding': 0.125, 'encoder_0': 0.25, 'encoder_1': 0.5, 'logits': 1.0}
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(optimizer, (*REFUSED, LayerwiseDecay)):
        raise ValueError(
            "`optimizer` must be a Keras optimizer that updates all variables itself; received "
            f"{short_repr(optimizer)}. Wrap the result in a LossScaleOptimizer."
        )
    if optimizer.built:
        raise ValueError(f"`optimizer` must be new; received {short_repr(optimizer)}, which is already built.")
    if checks.positive_number("decay", decay) > 1:
        raise ValueError(f"`decay` must be in (0, 1]; received {short_repr(decay)}.")
    blocks, embeddings = as_patterns("blocks", blocks), as_patterns("embeddings", embeddings, least=0)
    if any(pattern.count("#") != 1 for pattern in blocks):
        raise ValueError(
            f"`blocks` must be patterns with one `#`, for the number of a block; received {short_repr(blocks)}."
        )
    plain = type(optimizer)
    if isinstance(optimizer, keras.optimizers.Nadam) and hasattr(optimizer, "_parallel_update_step"):
        plain = keras.optimizers.Nadam  # Keras' class for PyTorch would count each group of variables as a step
    # All classes are registered under one name: `LayerwiseDecay.from_config` makes the class again.
    cls = keras.saving.register_keras_serializable(package="keras_txf", name="LayerwiseDecay")(
        type(f"Layerwise{plain.__name__}", (LayerwiseDecay, plain), {"__doc__": LayerwiseDecay.__doc__})
    )
    result = renew(optimizer, cls)
    result.layerwise = {"decay": decay, "blocks": list(blocks), "embeddings": list(embeddings)}
    result._plain = keras.optimizers.serialize(optimizer)
    return result


@register
class LayerwiseDecay:
    """The mixin that `layerwise_decay` adds to a class of optimizers: a rate for each variable."""

    _factor = 1.0  # on the rate, while the weights of a group decay
    _restored = False  # a restored optimizer may have patterns of variables that are now frozen

    @property
    def rates(self):
        """The factor on the learning rate of each variable, by its path."""
        return dict(zip(self._paths, self._rates, strict=True))

    def build(self, variables):
        self._paths = [_path(variable) for variable in variables]
        self._rates = _rates(self._paths, **self.layerwise)
        if not self._restored:
            _check_matches("blocks", self.layerwise["blocks"], BLOCKS, self._paths)
            _check_matches("embeddings", self.layerwise["embeddings"], EMBEDDINGS, self._paths)
        super().build(variables)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate * self._rates[self._get_variable_index(variable)])

    def _parallel_update_step(self, grads, variables, learning_rate):  # of most optimizers on PyTorch
        for rate, pairs in self._groups(zip(variables, grads)):
            variables, grads = zip(*pairs)
            super()._parallel_update_step(list(grads), list(variables), learning_rate * rate)

    def _apply_weight_decay(self, variables):
        decaying = [(variable,) for variable in variables if self._use_weight_decay(variable)]
        for rate, group in self._groups(decaying):
            self._factor = rate
            try:
                super()._apply_weight_decay([variable for (variable,) in group])
            finally:
                self._factor = 1.0

    def _get_current_learning_rate(self):
        rate = super()._get_current_learning_rate()
        return rate if self._factor == 1.0 else rate * self._factor

    def _groups(self, rows):
        """Groups rows by the rate of the variable that each row starts with."""
        groups = {}
        for row in rows:
            groups.setdefault(self._rates[self._get_variable_index(row[0])], []).append(row)
        return groups.items()

    def get_config(self):
        return {"optimizer": {**self._plain, "config": super().get_config()}, **self.layerwise}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        optimizer = keras.optimizers.deserialize(config.pop("optimizer"), custom_objects=custom_objects)
        result = layerwise_decay(optimizer, **config)
        result._restored = True
        return result


def _path(variable):
    return getattr(variable, "path", variable.name)


def _rates(paths, decay, blocks, embeddings):
    numbers = {path: _block(path, blocks) for path in paths}
    counts = {}
    for stack, number in filter(None, numbers.values()):
        counts[stack] = max(counts.get(stack, 0), number + 1)
    if paths and not counts:  # a restored model may have nothing to train
        raise ValueError(
            f"`blocks` must match trained variables; received {blocks}, which match none of {paths[:3]} ..."
        )

    def depth(path):
        if numbers[path] is not None:
            stack, number = numbers[path]
            return counts[stack] - number
        return max(counts.values()) + 1 if any(_matches(pattern, path) for pattern in embeddings) else 0

    return [float(decay ** depth(path)) for path in paths]


def _check_matches(name, patterns, default, paths):
    """Raises ValueError if a pattern matches no variable, except for the defaults, which serve many models."""
    unused = [pattern for pattern in patterns if not any(_matches(pattern, path) for path in paths)]
    if paths and unused and tuple(patterns) != default:
        raise ValueError(
            f"`{name}` must match trained variables; received {short_repr(unused[0])}, which matches none of "
            f"{short_repr(paths[:3])} ..."
        )


def _block(path, patterns):
    """Returns the pattern that a path matches and the number in the path, or None."""
    matches = ((pattern, _matches(pattern, path)) for pattern in patterns)
    return next(((pattern, int(match[1])) for pattern, match in matches if match), None)


def _matches(pattern, path):
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\#", r"(\d+)"), path)
