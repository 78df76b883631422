"""The state of a built layer in a `.keras` file, besides its weights: quantization, LoRA, adapters, frozen variables.

Keras does not save this state for the inner layers of a layer: it loads their variables as `build` makes them. Here the
state is part of the outer layer's build configuration. Keras restores it before the variables of the optimizer and the
values of the weights. Attributes identify inner layers, and numbers identify variables, as in Keras' files of weights.
"""

import keras

from keras_txf.backend.keras_private import flatten_layers, layers_by_attribute, own_trainable_by_nature

KEY = "fine_tuning"


class KeepsState:
    """A layer whose build configuration contains the changes of this layer and of its inner layers."""

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


# For each type of change: (describe, restore); `describe` returns None for an unchanged layer.
CHANGES = {"quantized": (_quantization, _quantize), "lora": (_lora, _enable_lora)}


def _describe(layer):
    """The changes of a layer and its inner layers, by the attribute of each."""
    state = {id(inner): changes for inner in flatten_layers(layer) if (changes := _changes(inner))}
    by_attribute = layers_by_attribute(layer) if state else {}
    return {attribute: state[id(inner)] for attribute, inner in by_attribute.items() if id(inner) in state}


def _changes(layer):
    changes = {name: change for name, (describe, _) in CHANGES.items() if (change := describe(layer))}
    frozen = [number for number, v in enumerate(own_trainable_by_nature(layer)) if not v.trainable]
    return changes | ({"frozen": frozen} if frozen else {})


def _restore(layer, state):
    inner = layers_by_attribute(layer)
    try:
        for name, (_, restore) in CHANGES.items():
            for attribute, changes in state.items():
                if name in changes:
                    restore(inner[attribute], changes[name])
        for attribute, changes in state.items():
            variables = own_trainable_by_nature(inner[attribute])
            for number in changes.get("frozen", []):
                variables[number].trainable = False
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"`{KEY}` of a file must hold changes that fit the inner layers of {layer.name}; received changes that "
            f"cannot be restored: {type(error).__name__} {error}."
        ) from error
