"""Roll-out: a model of float vectors reads a series once, and then each vector that it forecasts.

Legend: B batch, R rows (each series has `num_return_sequences` rows), P length of the series, N new vectors at most,
L = P + N, F features of a vector, C known future features, G width of the outputs.
"""

import dataclasses
import inspect
import itertools
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.engine import Engine, check_finite_weights
from keras_txf.generation.loop import Strategy, bucket, run_steps, write_column
from keras_txf.generation.parameters import StepSeed, seed_state
from keras_txf.progress import word

COMPILING = "forecast compiles: this batch size or length is new ..."


@dataclasses.dataclass(frozen=True)
class Feedback:
    """Turns outputs into the next vector. For the engine it is a sampler with its own decoding loop.

    Args:
        function: function of outputs (R, G), and of a seed if it has an argument `seed`, that returns (R, F - C). None
            takes the outputs themselves.
        width: F - C.
    """

    function: Callable | None
    width: int

    @property
    def draws(self):
        """Whether the function takes a seed."""
        return self.function is not None and "seed" in inspect.signature(self.function).parameters

    def __call__(self, outputs: typing.Any, seed: typing.Any) -> typing.Any:
        """The values of the next vectors, float32 (R, F - C)."""
        values = outputs = ops.cast(outputs, "float32")
        if self.function is not None:
            values = self.function(outputs, **({"seed": seed} if self.draws else {}))
        shape = getattr(values, "shape", ())
        fits = ops.is_tensor(values) and len(shape) == 2 and shape[1] == self.width
        if not fits or shape[0] not in (None, outputs.shape[0]) or "float" not in str(values.dtype):
            received = f"shape {tuple(shape)}" if ops.is_tensor(values) else short_repr(values)
            raise ValueError(
                f"`feedback` must return the next features of the series, a tensor of floats (batch, {self.width}); "
                f"received {received} for outputs of shape {tuple(outputs.shape)}."
            )
        return ops.cast(values, "float32")

    def decoding_loop(self, models, processors, num_return_sequences, top_logprobs):
        return RollOut(models(), self, num_return_sequences)


class RollOutRequest(typing.NamedTuple):
    """The tensors of one call of `forecast`.

    Args:
        ids: float (B, P, F), the series, padded on the left; `Request` has the same name.
        attention_mask: bool (B, L), True at the vectors of the series.
        inputs: dict, the other inputs of the model.
        future: float (B, N, C), the known future features.
        steps: int (), how many vectors to forecast, from 1 to N.
        seed: int (2,).
    """

    ids: typing.Any
    attention_mask: typing.Any
    inputs: dict
    future: typing.Any
    steps: typing.Any
    seed: typing.Any

    state = ()  # every forecast reads its series

    @property
    def prompt_length(self) -> typing.Any:
        return ops.shape(self.ids)[1]

    @property
    def max_new_tokens(self) -> typing.Any:
        return ops.shape(self.future)[1]


class RollOut:
    """The loop of `forecast`, with the methods of `SampledDecoding`.

    Args:
        models: a `GraphDecoder` of width 1.
        feedback: a `Feedback`.
        num_return_sequences: how many forecasts of each series.
    """

    def __init__(self, models, feedback, num_return_sequences):
        self.models, self.feedback, self.num_return_sequences = models, feedback, num_return_sequences

    def start(self, request):
        """Reads the series and forecasts the first vectors: the state, and the tensors that all steps share, dicts."""
        repeats = self.num_return_sequences
        outputs, cache, constant = self.models.run_prefill(request, repeats)
        mask = ops.repeat(request.attention_mask, repeats, axis=0)
        outputs = ops.repeat(outputs["logits"], repeats, axis=0)
        empty = ops.zeros_like(mask[:, : request.max_new_tokens], "float32")
        state = {
            "count": ops.zeros((), "int32"),
            "attention_mask": mask,
            "values": ops.repeat(empty[..., None], self.feedback.width, axis=2),
        }
        return {**self._append(state, outputs, request), "cache": cache}, constant

    def advance(self, state, constant, request, until):
        """Forecasts until each row has `until` vectors, or as many as the request has steps."""

        def step(state):
            column = request.prompt_length + state["count"] - 1
            outputs, cache, _ = self.models.run_step(
                state["vectors"], state["attention_mask"], column, state["cache"], constant, request
            )
            return {**self._append(state, outputs[:, 0], request), "cache": cache}

        return run_steps(step, state, until)

    def results(self, state, request):
        """The forecast values, float32 (R, N, F - C)."""
        return (state["values"],)

    def _append(self, state, outputs, request):
        """The state without its cache, with one more vector in each row; outputs are (R, G)."""
        count = state["count"]
        values = self.feedback(outputs, StepSeed(request.seed, count))  # (R, F - C)
        future = ops.repeat(ops.take(request.future, count, axis=1), self.num_return_sequences, axis=0)  # (R, C)
        mask = state["attention_mask"]
        vectors = ops.concatenate([values, ops.cast(future, values.dtype)], axis=1)
        return {
            "count": count + 1,
            "vectors": vectors[:, None],
            "values": ops.swapaxes(write_column(ops.swapaxes(state["values"], 1, 2), count, values), 1, 2),
            "attention_mask": write_column(mask, request.prompt_length + count, ops.ones_like(mask[:, 0])),
            "running": count + 1 < request.steps,
        }


class RollOutEngine(Engine):
    """The compiled loops behind `forecast`; a process keeps as many as `Engine` says."""

    def forecast(self, build_models, series, future, steps, feedback, num_return_sequences, seed, inputs, stream):
        """Forecasts each series.

        Args:
            build_models: function of `width` and `return_hidden_states` that returns a `GraphDecoder`.
            series: list of float arrays (T, F), none empty.
            future: float array (B, steps, C).
            steps: how many vectors to forecast.
            feedback: a `Feedback`.
            num_return_sequences: how many forecasts of each series.
            seed: integer; None draws one.
            inputs: dict, the other inputs of the model.
            stream: whether to return an iterator of arrays (R, F - C) instead.

        Returns:
            NumPy float32 (R, steps, F - C).
        """
        loop = self._decoding_loop(build_models, Strategy(feedback, num_return_sequences=num_return_sequences))
        request = _request(series, future, steps, seed, inputs)
        request, functions, compiles = self._functions_for(request, (feedback, num_return_sequences), loop)
        with word(COMPILING if compiles else ""):
            if stream:  # the first vector is computed at once, while its adapters are active
                vectors = _stream(functions, request, steps, loop.models.variables)
                return itertools.chain([next(vectors)], vectors)
            [values] = functions.results(functions.finish(*functions.start(request), request), request)
        return _check_finite(ops.convert_to_numpy(values)[:, :steps], 0, loop.models.variables)


def _request(series, future, steps, seed, inputs):
    """The `RollOutRequest` of a call, NumPy arrays whose lengths are rounded up to a bucket."""
    length, new = bucket(max(map(len, series))), bucket(steps)
    vectors = np.zeros((len(series), length, series[0].shape[1]), series[0].dtype)
    mask = np.zeros((len(series), length + new), "bool")
    for row, values in enumerate(series):
        vectors[row, length - len(values) :] = values
        mask[row, length - len(values) : length] = True
    future = np.pad(future, ((0, 0), (0, new - steps), (0, 0)))
    return RollOutRequest(vectors, mask, inputs, future, np.array(steps, "int32"), seed_state(seed))


def _stream(functions, request, steps, variables):
    """The values of each step, (R, F - C)."""
    state, constant = functions.start(request)
    state = functions.pad_cache(state, request)
    for count in range(1, steps + 1):
        state = functions.advance(state, constant, request, ops.convert_to_tensor(np.array(count, "int32")))
        yield _check_finite(ops.convert_to_numpy(state["values"][:, count - 1 : count]), count - 1, variables)[:, 0]


def _check_finite(values, first, variables):
    """Returns forecasts (R, steps, F - C) that start `first` steps after the series, if they are numbers."""
    wrong = ~np.isfinite(values).all(axis=(0, 2))
    if wrong.any():
        check_finite_weights(variables)
        raise ValueError(
            f"The forecasts must be finite; received NaN or infinity at step {first + wrong.argmax() + 1}, from the "
            "model's activations or `feedback`."
        )
    return values


def series_rows(series, width, dtype):
    """The series as NumPy arrays (T, F), from floats (B, T, F), a list of arrays or a ragged tensor.

    Args:
        width: F.
        dtype: type of the model's input; the arrays are float64 for float64, otherwise float32.
    """
    rows = series.to_list() if hasattr(series, "to_list") else series  # a tf.RaggedTensor
    if not isinstance(rows, (list, tuple)):
        rows = checks.dense_tensor("series", rows)
        if len(rows.shape) != 3:
            raise ValueError(
                f"`series` must be floats of shape (batch, length, {width}), or a list of arrays (length, {width}); "
                f"received shape {tuple(rows.shape)}."
            )
    arrays = [_array("series", row) for row in rows]
    if not arrays:
        raise ValueError("`series` must hold at least one series; received none.")
    for row, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != width or not len(array) or array.dtype.kind not in "fV":
            raise ValueError(
                f"`series` must hold floats of shape (length, {width}), at least one vector; received {array.dtype} of "
                f"shape {array.shape} in row {row}."
            )
        wrong = ~np.isfinite(array.astype("float64")).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"`series` must hold finite numbers; received NaN or infinity in row {row}, position {wrong.argmax()}. "
                "Pass series of unequal lengths as a list of arrays without padding."
            )
    return [array.astype("float64" if dtype == "float64" else "float32") for array in arrays]


def future_values(future, shape, dtype):
    """The known future features, NumPy floats (B, steps, C); `future` is None if C is 0."""
    if future is None and not shape[2]:
        return np.zeros(shape, dtype)
    array = None if future is None else _array("future", future)
    is_right = array is not None and array.shape == shape and array.dtype.kind in "fV"
    if not is_right or not np.isfinite(array.astype("float64")).all():
        received = short_repr(future) if array is None else f"{array.dtype} of shape {array.shape}"
        raise ValueError(
            f"`future` must be finite floats of shape {shape}, the known future features; received {received}."
        )
    return array.astype(dtype)


def _array(name, values) -> Any:
    values = checks.dense_tensor(name, values)
    return ops.convert_to_numpy(values) if ops.is_tensor(values) else np.asarray(values)
