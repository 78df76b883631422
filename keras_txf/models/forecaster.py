"""`forecaster`, and the class of functional models of float vectors with `forecast`."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checks import in_one_line, short_repr
from keras_txf.generation.parameters import StepSeed, seed_state
from keras_txf.generation.prompts import check_switch
from keras_txf.generation.roll_out import Feedback, RollOutEngine, future_values, series_rows
from keras_txf.layers.serialization import register
from keras_txf.layers.token_input import inputs_by_name, series_inputs
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.decoding_models import call_sequential, check_decodable, decoding_models
from keras_txf.models.generate_calls import check_rows, engine_of, knows_options, other_inputs, switch_length_of


def forecaster(
    model: keras.Model,
    feedback: Callable | None = None,
    series: str | None = None,
    future_features: int = 0,
    name: str | None = None,
) -> Any:
    """Adds `forecast` to a functional model of float vectors: its outputs are fed back as the next inputs.

    Use it for a causal model that is trained to predict the next vector at each position of a series: measurements,
    motion, audio frames. `forecast` reads the series once, and each new vector once, with the caches of `generate`.
    As with `generative` the layers may be attention with `causal=True`, `keras.layers.LSTM` and `GRU`,
    `Conv1D(padding="causal")`, your own layers whose `call` has an argument `cache`, and layers that treat each
    position separately.

    Args:
        model: a functional `keras.Model` that takes float vectors (B, T, F) and returns floats (B, T, G).
        feedback: function of the outputs at the last position, float32 (B, G), made of `keras.ops`, that returns the
            next vector, (B, F). With an argument `seed`, for `keras.random`, it may draw. Default: the outputs
            themselves. A `.keras` file keeps a function of `keras.saving.register_keras_serializable`; other
            functions forecast, and `save` raises.
        series: the name of the input that grows, in a model with several inputs of float vectors (B, T, F). The
            argument `inputs` of `forecast` takes the other inputs, such as a `context`.
        future_features: number of features at the end of a vector that are known ahead, such as the hour of the day.
            `forecast` takes them as `future`, and `feedback` returns the other F - `future_features`. The known
            features of a vector belong to its own time step. For the known features of the next step, store them in the
            vector before it, in training and in `future`.
        name: name of the new model; default the name of `model`.

    Returns:
        A functional `keras.Model` with the same inputs, outputs and layers, and `forecast`.

    Raises:
        ValueError: a layer that mixes positions and does not decode, such as `keras.layers.Bidirectional`, by its name;
            outputs or a `feedback` of another width than the series; no input of float vectors, or several.

    Example:

    >>> series = keras.Input((None, 3), name="series")
    >>> x = txf.layers.FeatureEmbedding(32)(series)
    >>> x = txf.layers.EncoderBlock(num_heads=4, causal=True)(x)
    >>> model = txf.models.forecaster(keras.Model(series, keras.layers.Dense(3)(x)))
    >>> model.forecast(np.zeros((2, 24, 3), "float32"), steps=12).shape
    (2, 12, 3)
    >>> def draw(outputs, seed):  # of 3 means and 3 logarithms of deviations
    ...     mean, log_scale = keras.ops.split(outputs, 2, axis=1)
    ...     return mean + keras.ops.exp(log_scale) * keras.random.normal(keras.ops.shape(mean), seed=seed)
    >>> model = txf.models.forecaster(keras.Model(series, keras.layers.Dense(6)(x)), draw)
    >>> model.forecast(np.zeros((2, 24, 3), "float32"), steps=12, num_return_sequences=5).shape
    (2, 5, 12, 3)
    """
    checks.optional(checks.string, "name", name)
    call_sequential(model, None)
    check_decodable(model)
    series = _series_of(model, series)
    inputs = inputs_by_name(model)
    output = model.output[0] if isinstance(model.output, (list, tuple)) and len(model.output) == 1 else model.output
    if not isinstance(output, keras.KerasTensor) or len(output.shape) != 3 or "float" not in output.dtype:
        received = keras.tree.map_structure(lambda x: tuple(x.shape), model.output)
        raise ValueError(
            "`model` must return floats (batch, length, features) alone, of all positions; received outputs of shape "
            f"{short_repr(received)}."
        )
    width = inputs[series].shape[-1]
    if None in (width, output.shape[-1]):
        raise ValueError(
            "`model` must know the widths of its series and its outputs; received shapes "
            f"{tuple(inputs[series].shape)} and {tuple(output.shape)}."
        )
    checks.integer_between("future_features", future_features, 0, width - 1)
    _try_feedback(feedback, width - future_features, output.shape[-1])
    with keras.RematScope(mode=None):
        forecasting = Forecaster(model.input, model.output, name=name or model.name)
    forecasting.tokens, forecasting.feedback, forecasting.future_features = series, feedback, future_features
    decoding_models(forecasting)  # raises ValueError if decoding cannot be derived
    return forecasting


def _series_of(model, series) -> Any:
    """The name of the input that grows."""
    names = series_inputs(model)
    if series is not None:
        return checks.one_of("series", series, names)
    if len(names) != 1:
        raise ValueError(
            "`model` must have one input of float vectors (batch, length, features), or `series` must name it; "
            f"received the inputs {short_repr(sorted(inputs_by_name(model)))}, with {short_repr(names)} of float "
            "vectors."
        )
    return names[0]


def _try_feedback(feedback, width, outputs):
    """Raises ValueError if the function `feedback` does not return `width` features, or needs another argument."""
    if feedback is None:
        if outputs != width:
            raise ValueError(
                f"`feedback` must compute the next {width} features of the series from the model's {outputs} outputs; "
                "received None, which needs as many outputs as features."
            )
        return
    checks.hashable("feedback", feedback)
    if not callable(feedback) or isinstance(getattr(feedback, "__self__", feedback), (type, keras.layers.Layer)):
        raise ValueError(
            f"`feedback` must be a function of outputs, and maybe `seed`, without weights; received "
            f"{short_repr(feedback)}."
        )
    tried, seed = Feedback(feedback, width), StepSeed(ops.convert_to_tensor(seed_state(0)), ops.zeros((), "int32"))
    outputs = ops.zeros((3, outputs), "float32")
    try:
        inspect.signature(feedback).bind(outputs, **({"seed": seed} if tried.draws else {}))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`feedback` must be a function of the outputs and optionally `seed`, without other arguments; received "
            f"{short_repr(feedback)}: {in_one_line(error)}."
        ) from None
    tried(outputs, seed)


@register
class Forecaster(CheckedModel):
    """A model of a series of float vectors, whose outputs are fed back, see `forecaster`."""

    feedback: Callable | None = None
    future_features: int = 0

    @knows_options
    def forecast(
        self,
        series: Any,
        steps: int,
        seed: int | None = None,
        future: Any = None,
        num_return_sequences: int | None = None,
        stream: bool = False,
        inputs: dict[str, Any] | None = None,
    ) -> Any:
        """Continues each series.

        Args:
            series: floats (B, T, F), or a list of arrays (T, F) of unequal lengths. Each has at least one vector.
            steps: how many vectors to forecast. The memory for all of them is taken at the beginning.
            seed: for a `feedback` that draws: the same seed gives the same forecasts. Default: another one each time.
            future: floats (B, steps, `future_features`), the features of the forecast steps that are known ahead.
            num_return_sequences: how many forecasts of each series, if `feedback` draws. With it the result has an
                axis more, after the batch's.
            stream: return an iterator that yields the values of each step as they come, (B, F - `future_features`).
            inputs: the other inputs of the model, such as a `context`, in a dict: arrays with one row for each series.

        Returns:
            NumPy float32 (B, steps, F - `future_features`): the new vectors alone, without what is known ahead.

        Raises:
            ValueError: a series of another width, an empty one, or one with NaN or infinity; more steps than the model
                has positions; forecasts or weights that are not finite.

        Example:

        >>> series = keras.Input((None, 2), name="series")
        >>> x = keras.layers.GRU(16, return_sequences=True)(series)
        >>> model = txf.models.forecaster(keras.Model(series, keras.layers.Dense(1)(x)), future_features=1)
        >>> past = [np.zeros((7, 2), "float32"), np.zeros((4, 2), "float32")]
        >>> model.forecast(past, steps=3, future=np.ones((2, 3, 1), "float32")).shape
        (2, 3, 1)
        """
        if self.tokens is None:
            raise ValueError(
                "`forecast` needs the `feedback` that a clone of a model has lost: `txf.models.forecaster(clone, "
                "feedback)` gives it again."
            )
        symbol, known = inputs_by_name(self)[self.tokens], self.future_features
        rows = series_rows(series, symbol.shape[-1], symbol.dtype)
        checks.positive_int32("steps", steps)
        checks.boolean("stream", stream)
        feedback = Feedback(self.feedback, symbol.shape[-1] - known)
        each = (
            1 if num_return_sequences is None else checks.positive_integer("num_return_sequences", num_return_sequences)
        )
        if each > 1 and not feedback.draws:
            raise ValueError(
                "`num_return_sequences` must be 1 if `feedback` has no `seed`, because all forecasts of a series are "
                f"equal; received {each}."
            )
        future = future_values(future, (len(rows), steps, known), rows[0].dtype)
        inputs = other_inputs(self, self.tokens, inputs)
        check_rows(inputs, len(rows))
        self._check_length(max(map(len, rows)), steps)
        engine = engine_of(self, lambda: RollOutEngine(self.tokens, None))
        build_models = functools.partial(decoding_models, self)
        forecasts = engine.forecast(build_models, rows, future, steps, feedback, each, seed, inputs, stream)
        shape = (len(rows),) if num_return_sequences is None else (len(rows), each)
        if stream:
            return (values.reshape(*shape, *values.shape[1:]) for values in forecasts)
        return forecasts.reshape(*shape, *forecasts.shape[1:])

    def _check_length(self, length, steps):
        """Raises ValueError if the model has too few positions."""
        most = min(filter(None, (getattr(layer, "max_length", None) for layer in flatten_layers(self))), default=None)
        if most is not None and length + steps - 1 > most:
            raise ValueError(
                f"`steps` must not lead beyond the model's max_length={most} positions; received {steps} steps after "
                f"a series of {length} vectors."
            )
        check_switch(switch_length_of(self), length, length, steps)

    def get_config(self):
        config = {**super().get_config(), "future_features": self.future_features}
        if self.feedback is not None:
            config["feedback"] = _saved(self.feedback)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        feedback, future_features = config.pop("feedback", None), config.pop("future_features", 0)
        model = super().from_config(config, custom_objects)
        model.feedback = keras.saving.deserialize_keras_object(feedback, custom_objects)
        model.future_features = future_features
        return model


def _saved(feedback):
    """The configuration of a function; raises ValueError if the function cannot be loaded from it."""
    config = again = None
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        if getattr(feedback, "__name__", None) != "<lambda>":
            config = keras.saving.serialize_keras_object(feedback)
            again = keras.saving.deserialize_keras_object(config)
    if again is not feedback and (inspect.isroutine(feedback) or type(again) is not type(feedback)):
        raise ValueError(
            "`feedback` must be registered by `keras.saving.register_keras_serializable` to save the model; received "
            f"{short_repr(feedback)}."
        )
    return config
