"""Decoding with a sampler: read the prompt once, then one token after the other, until every row has stopped.

Legend: B batch, R rows (the sequences of a batch, several for each prompt where that is asked), P prompt
length, N new tokens at most, L = P + N, V vocabulary, S stops of M tokens, W tokens of a row in one step.
"""

import typing

import keras
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.generation.adjustable import join
from keras_txf.generation.bounds import bounded, log_probabilities
from keras_txf.generation.compilers import while_loop
from keras_txf.generation.layouts import choose_layouts
from keras_txf.generation.processors import History
from keras_txf.generation.ranking import rows
from keras_txf.layers.caching import Step, cache_slots
from keras_txf.layers.projections import elsewhere


FURTHEST = 2**20  # steps: beyond them lie the second and later draws of a step
APART = 0x61C88647  # 2**32 by the golden ratio: PyTorch draws by the sum of seed and step, so steps of 1 are other seeds


class Request(typing.NamedTuple):
    """What one call of `generate` asks for, as tensors.

    Args:
        ids: int (B, P), the prompts, padded on the left.
        visible: bool (B, columns), True at their real tokens; columns for what will follow.
        inputs: what else the prefill model takes, by name.
        history: int (B, L), the prompts, and -1 where nothing stands yet.
        limits: int (B,), how many tokens each row may have, from 1 to N.
        stops: int (S, M), see `History`.
        seed: int (2,).
        numbers: the floats of the sampler and of each processor, see `adjustable.py`.
    """

    ids: object
    visible: object
    inputs: dict
    history: object
    limits: object
    stops: object
    seed: object
    numbers: list

    @property
    def prompt_length(self):
        return ops.shape(self.ids)[1]

    @property
    def new(self):
        return ops.shape(self.history)[1] - self.prompt_length


class Reader:
    """The two models of `models.stepping`, called with tensors.

    Args:
        prefill, step: the models.
        ids_name: the name of their token ids.
        pad_id: of the model, or None.
    """

    def __init__(self, prefill, step, ids_name, pad_id):
        self.prefill, self.step = prefill, step
        self.ids_name, self.pad_id = ids_name, pad_id
        self.width = step.input[ids_name].shape[1]
        self.changing = {tensor.name for tensor in step.inputs} & set(step.output)
        every_step = {ids_name, "visible", "index", "prompt_length"}
        self.constant = {tensor.name for tensor in step.inputs} - self.changing - every_step

    def read_prompt(self, request, repeats=1):
        """What the prefill model returns, its cache, and what stays as it is; each row `repeats` times.

        The cache has the columns of the prompt alone: whole, it would lie twice in memory while it is used.
        """
        prompts = {self.ids_name: request.ids, "visible": request.visible[:, : request.prompt_length]}
        outputs = dict(self.prefill({**request.inputs, **prompts}, training=False))
        batch = ops.shape(request.ids)[0]
        known = {**request.inputs, **outputs}
        cache = {name: repeat_rows(known[name], repeats, batch) for name in self.changing}
        constant = {name: repeat_rows(known[name], repeats, batch) for name in self.constant}
        layouts = choose_layouts(self.step, batch * repeats * self.width)
        constant["matrices"] = [layout.matrix() for layout in layouts]
        return outputs, cache, constant

    def widen(self, state, request):
        """A state that follows the prompt, its cache with all columns."""
        columns, slots = ops.shape(request.visible)[1], {}
        for block in [layer.block for layer in self.step.layers if isinstance(layer, Step)]:
            slots[f"{block.name}_key"] = slots[f"{block.name}_value"] = cache_slots(block, self.width, columns)
        cache = {}
        for name, known in state["cache"].items():
            axis = self.step.input[name].shape.index(None, 1)
            missing = slots.get(name, columns) - ops.shape(known)[axis]
            cache[name] = ops.pad(known, [(0, missing if i == axis else 0) for i in range(3)])
        return {**state, "cache": cache}

    def read(self, tokens, visible, index, cache, constant, request, repeats=1):
        """Reads `tokens`, (R, W), into the columns from `index` on: logits (R, W, V), the cache, and other outputs.

        A batch that is known from the prompts may not be known from the tokens: within the model TensorFlow loses it.
        """
        width = tokens.shape[1]
        place = {self.ids_name: tokens, "visible": visible, "index": ops.reshape(index, (1,))}
        if width == 1:
            place["visible"] = ops.reshape(visible, (-1, ops.shape(visible)[-1]))
        elif "prompt_length" in self.step.input:
            place["prompt_length"] = ops.full((1,), request.prompt_length, "int32")
        products = {}
        layouts = choose_layouts(self.step, ops.shape(request.ids)[0] * repeats * width)
        for layout, matrix in zip(layouts, constant["matrices"], strict=True):
            products |= layout.products(matrix)
        inputs = {name: constant[name] for name in self.constant}
        with elsewhere(products):
            outputs = dict(self.step({**inputs, **cache, **place}, training=False))
        cache = {name: outputs.pop(name) for name in cache}
        logits = outputs.pop("logits")
        return ops.reshape(logits, (-1, width, logits.shape[-1])), cache, outputs

    def is_real(self, tokens):
        return ops.ones_like(tokens, "bool") if self.pad_id is None else ops.not_equal(tokens, self.pad_id)


class SampledDecoding:
    """One token after the other, chosen by a sampler.

    Args:
        reader: with models of width 1.
        sampler: function of logits, float32 (R, V), and a seed for `keras.random`, that returns ids (R,).
        processors: functions of logits and `History`.
        repeats: how many sequences for each prompt.
    """

    def __init__(self, reader, sampler, processors, repeats):
        self.reader, self.sampler, self.processors, self.repeats = reader, sampler, processors, repeats

    def start(self, request):
        """Reads the prompts and chooses the first tokens: the state, and what stays as it is, dicts of tensors."""
        outputs, cache, constant = self.reader.read_prompt(request, self.repeats)
        history = ops.repeat(request.history, self.repeats, axis=0)
        state = {
            "count": ops.zeros((), "int32"),
            "history": history,
            "visible": ops.repeat(request.visible, self.repeats, axis=0),
            "log_probs": ops.zeros_like(history[:, : request.new], "float32"),
            "running": ops.ones_like(history[:, 0], "bool"),
        }
        logits = ops.repeat(outputs["logits"], self.repeats, axis=0)
        return {**self._append(state, logits, request), "cache": cache}, constant

    def advance(self, state, constant, request, until):
        """Chooses tokens until each row has `until`, or has stopped."""

        def wanted(state):
            return ops.logical_and(state["count"] < until, ops.any(state["running"]))

        def body(state):
            column = request.prompt_length + state["count"] - 1
            logits, cache, _ = self.reader.read(
                state["tokens"], state["visible"], column, state["cache"], constant, request, self.repeats
            )
            return {**self._append(state, logits[:, 0], request), "cache": cache}

        return while_loop(wanted, body, state)

    def results(self, state, request):
        """The new tokens, int (R, N), -1 after the end, their log-probabilities, and each row's sum."""
        tokens = state["history"][:, request.prompt_length :]
        return tokens, state["log_probs"], ops.sum(state["log_probs"], axis=1)

    def _append(self, state, logits, request):
        """The state without its cache, with one token more."""
        count, history, running = state["count"], state["history"], state["running"]
        prompt_length = request.prompt_length
        sampler = join(self.sampler, request.numbers[0])
        logits = process(self.processors, logits, history, count, request)
        token = check_ids(sampler(logits, StepSeed(request.seed, count)), logits)
        log_probs = rows(log_probabilities(logits), token[:, None])
        history = write_column(history, prompt_length + count, ops.where(running, token, -1))
        limits = ops.repeat(request.limits, self.repeats)
        ended = ops.logical_or(stopped(latest(history, count, request), request), count + 1 >= limits)
        real = ops.logical_and(running, self.reader.is_real(token))
        return {
            "count": count + 1,
            "tokens": ops.where(running, token, 0)[:, None],
            "history": history,
            "visible": write_column(state["visible"], prompt_length + count, real),
            "log_probs": write_column(state["log_probs"], count, ops.where(running, log_probs[:, 0], 0.0)),
            "running": ops.logical_and(running, ops.logical_not(ended)),
        }


def process(processors, logits, history, count, request):
    """Logits (R, V) in float32, as the processors want them; none is larger than a sum of them can be."""
    logits = ops.cast(logits, "float32")
    logits = bounded(logits, logits)
    past = History(history, request.prompt_length, count, request.stops)
    for processor, numbers in zip(processors, request.numbers[1:], strict=True):
        changed = check_logits(join(processor, numbers)(logits, past), logits)
        logits = bounded(changed, changed)
    return logits


def check_ids(ids, logits):
    """What a sampler, maybe the caller's, has returned: int32 (R,)."""
    right = hasattr(ids, "shape") and len(ids.shape) == 1 and len({ids.shape[0], logits.shape[0]} - {None}) < 2
    if not right or "int" not in keras.backend.standardize_dtype(ids.dtype):
        raise ValueError(
            f"`sampler` must return integers of shape (rows,), an id for each row of logits; received {short_repr(ids)}."
        )
    return ops.cast(ids, "int32")


def check_logits(changed, logits):
    """What a processor, maybe the caller's, has returned: float32 (R, V)."""
    if not hasattr(changed, "shape") or len(changed.shape) != 2 or changed.shape[1] != logits.shape[1]:
        raise ValueError(f"`processors` must return logits of shape {tuple(logits.shape)}; received {short_repr(changed)}.")
    return ops.cast(changed, "float32")


def latest(history, count, request):
    """The tokens up to place `count`, of (..., L), as many as a stop has, (..., M)."""
    length = request.stops.shape[1]
    places = count - (length - 1) + ops.arange(length)
    tokens = ops.take(history, request.prompt_length + places, axis=-1)
    return ops.where(places >= 0, tokens, -1)  # what stands in the prompt does not count


def stopped(tokens, request):
    """Whether the latest tokens, (..., M), end with one of the stops, (...)."""
    same = ops.logical_or(tokens[..., None, :] == request.stops, request.stops == -2)
    return ops.any(ops.all(same, axis=-1), axis=-1)


def write_column(table, column, values):
    """A table (..., columns) with `values`, (...), in one column."""
    # No `slice_update`: outside of a loop, TensorFlow has XLA compile each by itself.
    return ops.where(ops.arange(ops.shape(table)[-1]) == column, values[..., None], table)


def repeat_rows(x, repeats, batch):
    """Each row of the batch several times: x is (batch, ...) or, as a cache, (batch · heads, ...)."""
    if repeats == 1:
        return x
    rows = ops.repeat(ops.reshape(x, (batch, -1)), repeats, axis=0)
    return ops.reshape(rows, (-1, *ops.shape(x)[1:]))


class StepSeed(keras.random.SeedGenerator):
    """The seeds of one step, as Keras takes them: tensors, so that a compiled loop has no state to keep."""

    def __init__(self, seed, count):
        self.value = seed + ops.cast(ops.stack([ops.zeros_like(count), count]), seed.dtype) * APART
        self.draws = 0

    def next(self, ordered=True):
        further = self.draws * FURTHEST
        self.draws += 1
        return self.value + ops.convert_to_tensor([0, further], self.value.dtype)
