"""What a `.keras` file keeps of a built layer beside its weights: int8, Keras' LoRA, frozen variables, what files add.

Keras itself keeps none of it for layers inside of another: their variables come back as `build` makes them. Here it is
part of the outer layer's build configuration, so that it stands before Keras makes the variables of the optimizer and
reads the values. Inner layers go by their attributes, and variables by their numbers, as in Keras' files of weights.
"""

import keras

from keras_txf.backend.keras_private import flatten_layers, layers_by_attribute, own_trainable_by_nature

KEY = "fine_tuning"


class KeepsState:
    """A layer whose build configuration says what was done to it, and to the layers inside of it."""

    def get_build_config(self):
        state, config = _describe(self), super().get_build_config()
        return {**(config or {}), KEY: state} if state else config

    def build_from_config(self, config):
        super().build_from_config(config)
        if config and KEY in config:
            _restore(self, config[KEY])


def _quantization(layer):
    mode = getattr(layer, "quantization_mode", None)
    return mode and [mode, keras.saving.serialize_keras_object(layer.quantization_config)]


def _quantize(layer, quantization):
    mode, config = quantization
    if layer.quantization_mode is None:
        layer.quantize(mode, config=keras.saving.deserialize_keras_object(config))


def _lora(layer):
    return layer.lora_enabled and [layer.lora_rank, layer.lora_alpha] if hasattr(layer, "lora_enabled") else None


def _enable_lora(layer, rank_and_alpha):
    if not layer.lora_enabled:
        rank, alpha = rank_and_alpha
        layer.enable_lora(rank, lora_alpha=alpha)


# What is done to one layer: a function that describes it, None where nothing was done, and one that does it again.
CHANGES = {"quantized": (_quantization, _quantize), "lora": (_lora, _enable_lora)}


def _describe(layer):
    """What was done to each of the layers inside of a layer, itself included."""
    state = {id(inner): changes for inner in flatten_layers(layer) if (changes := _changes(inner))}
    places = layers_by_attribute(layer) if state else {}
    return {place: state[id(inner)] for place, inner in places.items() if id(inner) in state}


def _changes(layer):
    changes = {name: change for name, (describe, _) in CHANGES.items() if (change := describe(layer))}
    frozen = [number for number, v in enumerate(own_trainable_by_nature(layer)) if not v.trainable]
    return changes | ({"frozen": frozen} if frozen else {})


def _restore(layer, state):
    inner = layers_by_attribute(layer)
    try:
        for name, (_, restore) in CHANGES.items():
            for place in state:
                if name in state[place]:
                    restore(inner[place], state[place][name])
        for place in state:
            variables = own_trainable_by_nature(inner[place])
            for number in state[place].get("frozen", []):
                variables[number].trainable = False
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"`{KEY}` of a file must be what was done to the layers inside of {layer.name}; it cannot be done again: "
            f"{type(error).__name__} {error}."
        ) from error
