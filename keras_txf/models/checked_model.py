"""CheckedModel: the class of the models, a functional Keras model that checks its inputs."""

import functools
import inspect
from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import name_operations, optional_inputs, own_calls
from keras_txf.backend.keras_private import computing_in, count_as_called
from keras_txf.checks import short_repr
from keras_txf.layers.features import masks_of_inputs
from keras_txf.layers.serialization import register
from keras_txf.layers.token_input import inputs_by_name


@register
class CheckedModel(keras.Model):
    """A functional model that raises ValueError for inputs which Keras would silently misread.

    Keras truncates the id 1.5 to 1 and 2**32 to 0, converts the bytes of an image to floats, and sorts the keys of a
    dict with an unknown key. The model checks the values of ids in a call on values, but not within `fit` and
    `predict`. It also raises for a loss of probabilities: Keras would clip the logits to [0, 1], and the loss would
    never fall.

    The mask of float vectors is their Keras mask, such as the mask of `keras.layers.Masking`, or `features_mask` in a
    dict with `features`.
    """

    # Attributes that `.keras` files keep together with the graph.
    checkpoint: str | None = None  # JSON for `checkpoints.save`
    tokens: str | None = None  # name of the input of ids that `generate` continues, unless it is one of `NAMES`

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, *args: Any, **kwargs: Any) -> None:
        for one in keras.tree.flatten(loss):
            if _takes_probabilities(one):
                raise ValueError(
                    "`loss` must take logits, such as keras.losses.SparseCategoricalCrossentropy(from_logits=True); "
                    f"received {short_repr(one)}, which takes probabilities."
                )
        if kwargs.get("auto_scale_loss", True) and any(
            layer.dtype_policy.name == "mixed_float16" for layer in self.layers
        ):
            # Keras reads the policy of the model, which `dtype` of a builder does not set.
            optimizer = keras.optimizers.get(optimizer)
            if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
        super().compile(optimizer, loss, *args, **kwargs)

    def compile_from_config(self, config):
        if type(self).compile is not CheckedModel.compile:
            return super().compile_from_config(config)  # a subclass with its own `compile`
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def __call__(self, inputs, *args, **kwargs):
        inputs, masks = self.split_masks(self.check_inputs(inputs), kwargs)
        with computing_in(self._widest_dtype()):
            return super().__call__(inputs, *args, **kwargs, **masks)

    def stateless_call(self, trainable_variables, non_trainable_variables, inputs, *args, **kwargs):
        # On JAX, `fit` and `predict` call this method, not `__call__`.
        inputs, masks = self.split_masks(self.complete_inputs(inputs), kwargs)
        variables = trainable_variables, non_trainable_variables
        with computing_in(self._widest_dtype()):
            return super().stateless_call(*variables, inputs, *args, **kwargs, **masks)

    @property
    def supports_masking(self):  # Keras warns if masks would be lost
        return bool(self.mask_names)

    def compute_mask(self, inputs, previous_mask=None):
        return None  # the layers of the graph set the masks of the outputs

    @functools.cached_property
    def mask_names(self):
        """Names of masks and of their inputs."""
        return masks_of_inputs(self)

    def split_masks(self, inputs, call=()):
        """Returns the inputs without the masks in their dict, and a dict with the argument `mask`, if any."""
        names = self.mask_names.keys() & inputs if isinstance(inputs, dict) else ()
        masks = {self.mask_names[name]: _as_bool(inputs[name]) for name in names if inputs[name] is not None}
        if names:
            inputs = {name: value for name, value in inputs.items() if name not in names}
        if isinstance(inputs, dict) and isinstance(self.input, keras.KerasTensor) and [*inputs] == [self.input.name]:
            [inputs] = inputs.values()  # Keras would warn of the dict
        if not masks:
            return inputs, {}
        if "mask" in call:
            raise ValueError(f"`mask` does not go with {short_repr(min(names))} in `inputs`: it is the same mask.")
        return inputs, {"mask": [masks.get(name) for name in inputs_by_name(self)]}

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                "`filepath` must end in .keras, or in .weights.h5 for `save_weights`: Keras cannot read a model with "
                f"layers of other packages from .h5; received {short_repr(str(filepath))}."
            )
        super().save(filepath, *args, **kwargs)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        count_as_called(self)
        super().export(filepath, *args, **kwargs)

    def _widest_dtype(self):
        """float64 if a layer computes in float64, else None. Layers of this package set float64 themselves."""
        return "float64" if any(layer.compute_dtype == "float64" for layer in self.layers) else None

    def summary(self, *args, **kwargs):
        with own_calls(self):
            return super().summary(*args, **kwargs)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        attributes = {name: config.pop(name, None) for name in ("checkpoint", "tokens")}
        model = super().from_config(config, custom_objects)
        name_operations(model)
        for name, value in attributes.items():
            setattr(model, name, value)
        return model

    def get_config(self):
        attributes = {"checkpoint": self.checkpoint, "tokens": self.tokens}
        return {**super().get_config(), **{name: value for name, value in attributes.items() if value is not None}}

    def complete_inputs(self, inputs):
        """Returns a dict of inputs with None for missing optional inputs. A single tensor is the required input."""
        optional = dict.fromkeys(optional_inputs(self))
        needed = [symbol.name for symbol in self.inputs if symbol.name not in optional]
        if optional and len(needed) == 1 and not isinstance(inputs, (dict, list, tuple)):
            inputs = {needed[0]: inputs}
        return {**optional, **inputs} if isinstance(inputs, dict) else inputs

    def check_inputs(self, inputs):
        """Returns the inputs, with None for missing optional inputs; raises ValueError for wrong inputs."""
        inputs = self.complete_inputs(inputs)
        if isinstance(inputs, dict):
            self._check_keys(inputs)
            inputs = {name: self._check_input(name, value) for name, value in inputs.items()}
            for mask, name in self.mask_names.items():
                if inputs.get(mask) is not None and inputs.get(name) is not None:
                    checks.padding_mask(_as_bool(inputs[mask]), inputs[name], mask)
            return inputs
        if (
            isinstance(inputs, (list, tuple))
            and len(self.inputs) == len(inputs)
            and (len(inputs) > 1 or hasattr(inputs[0], "shape"))
        ):
            return [self._check_input(name, value) for name, value in zip(inputs_by_name(self), inputs)]
        return self._check_input(next(iter(inputs_by_name(self))), inputs)

    def _check_keys(self, inputs):
        known = [*inputs_by_name(self), *self.mask_names]
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise ValueError(
                f"`inputs` must have only the keys {short_repr(known)}; received also {short_repr(unknown)}."
            )

    def _check_input(self, name, value):
        symbol = inputs_by_name(self).get(name)
        if value is None or (symbol is None and name not in self.mask_names):
            return value  # Keras raises its own error
        value = checks.dense_tensor(name, value)
        if symbol is None:
            return value
        _check_rank(name, value, symbol)
        if "int" in symbol.dtype:
            checks.token_ids(name, value, None)
        elif "float" in symbol.dtype and "int" in keras.backend.standardize_dtype(value.dtype):
            dtype = keras.backend.standardize_dtype(value.dtype)
            raise ValueError(
                f"`{name}` must be floats, such as the bytes of an image divided by 255; received {dtype}."
            )
        return value


functools.update_wrapper(CheckedModel.compile, keras.Model.compile)  # `help` shows Keras' arguments
functools.update_wrapper(CheckedModel.save, keras.Model.save)
functools.update_wrapper(CheckedModel.export, keras.Model.export)


def _as_bool(mask):
    return mask if isinstance(mask, keras.KerasTensor) and mask.dtype == "bool" else ops.cast(mask, "bool")


def _takes_probabilities(loss):
    """Whether a loss, its name or its function is a cross-entropy without `from_logits`."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras raises its own error
            return False
    if not callable(loss) or isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", None) is False
    parameters = inspect.signature(loss).parameters
    return "from_logits" in parameters and parameters["from_logits"].default is False


def _check_rank(name, value, symbol):
    """Raises ValueError if a model of float vectors or images receives ids or one image. Keras adds an axis of 1."""
    letters = {3: "BTF", 4: "BHWC"}.get(len(symbol.shape))
    rank = getattr(value.shape, "rank", len(value.shape) if isinstance(value.shape, tuple) else None)
    if letters and "float" in symbol.dtype and symbol.shape[-1] != 1 and rank not in (None, len(symbol.shape)):
        expected = ", ".join(str(letter if size is None else size) for letter, size in zip(letters, symbol.shape))
        raise ValueError(f"`{name}` must be floats of shape ({expected}); received shape {tuple(value.shape)}.")
