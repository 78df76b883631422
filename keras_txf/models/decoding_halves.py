"""Prefill and Step: the two halves of decoding as layers, of which functional models are made that export.

Legend: see `generation.decoding.layout`.
"""

import functools

import keras
from keras import ops

from keras_txf.backend.keras_private import infer_spec
from keras_txf.generation.decoding.graph_decoder import GraphDecoder
from keras_txf.layers.serialization import register, revive, serialize_layer
from keras_txf.layers.token_input import embedded_input

LENGTH = 64  # of the other inputs on which shapes are inferred, where the model allows as many


class Half(keras.layers.Layer):
    """The base of the two halves.

    Args:
        model: the functional model. The weights are shared with it.
        width, return_hidden_states: see `step_model`.
    """

    def __init__(self, model, width=1, return_hidden_states=False, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.model, self.width, self.return_hidden_states = revive(model), width, return_hidden_states
        self.decoder = GraphDecoder(self.model, width, return_hidden_states)
        self.built = True

    def get_config(self):
        own = {"width": self.width, "return_hidden_states": self.return_hidden_states}
        return {**super().get_config(), "model": serialize_layer(self.model), **own}

    @functools.cached_property
    def _prefill_spec(self):
        """The symbols that `prefill` returns for prompts of W columns."""
        inputs = {}
        for name, x in self.decoder.inputs.items():
            embedded = embedded_input(self.model, name)
            longest = LENGTH if embedded is None or embedded.max_length is None else min(LENGTH, embedded.max_length)
            inputs[name] = _sized(x.shape, x.dtype, longest)
        inputs[self.decoder.ids_name] = _sized(self.decoder.ids.shape, self.decoder.ids.dtype, self.width)
        for name, vectors in self.decoder.feature_masks.items():
            inputs[name] = keras.KerasTensor(inputs[vectors].shape[:2], "bool")
        mask = keras.KerasTensor((2, self.width), "bool")
        return infer_spec(self.decoder.prefill, inputs, mask)

    def _memory(self, cache, constant):
        """The symbols of a cache, whose length is open where it has one slot a column, and of constants."""
        slots = {part.name: part.slots(self.width, self.width) for part in self.decoder.parts}
        known = {
            part: {name: _unsized(x, slots[part].get(name, (None,))[0]) for name, x in memory.items()}
            for part, memory in cache.items()
        }
        return {**_flat(known), **{name: _unsized(x) for name, x in _flat(constant).items()}}


@register
class Prefill(Half):
    """Reads prompts, see `prefill_model`."""

    def inputs(self):
        found = {
            name: keras.Input(batch_shape=(None, *x.shape[1:]), dtype=x.dtype, name=name)
            for name, x in self.decoder.inputs.items()
        }
        for name in self.decoder.feature_masks:
            found[name] = keras.Input((None,), dtype="bool", name=name)
        return {**found, "attention_mask": keras.Input((None,), dtype="bool", name="attention_mask")}

    def call(self, inputs):
        inputs = dict(inputs)
        mask = inputs.pop("attention_mask")
        prompt = mask[:, : ops.shape(inputs[self.decoder.ids_name])[1]]
        outputs, cache, constant = self.decoder.prefill(inputs, prompt)
        cache = self.decoder.pad(cache, ops.shape(mask)[1])
        return {**outputs, **_flat(cache), **_flat(constant)}

    def compute_output_spec(self, inputs):
        outputs, cache, constant = self._prefill_spec
        return {**{name: _unsized(x) for name, x in outputs.items()}, **self._memory(cache, constant)}


@register
class Step(Half):
    """Reads one token more, or W alternatives, see `step_model`."""

    def inputs(self):
        width, decoder = self.width, self.decoder
        found = {
            decoder.ids_name: keras.Input(
                (width, *decoder.ids.shape[2:]), dtype=decoder.ids.dtype, name=decoder.ids_name
            ),
            "attention_mask": keras.Input(
                (None,) if width == 1 else (width, None), dtype="bool", name="attention_mask"
            ),
            "cache_position": keras.Input(batch_shape=(1,), dtype="int32", name="cache_position"),
        }
        if width > 1:
            found["prompt_length"] = keras.Input(batch_shape=(1,), dtype="int32", name="prompt_length")
        outputs, cache, constant = self._prefill_spec
        for name, x in self._memory(cache, constant).items():
            found[name] = keras.Input(batch_shape=x.shape, dtype=x.dtype, name=name)
        return found

    def call(self, inputs):
        inputs, decoder = dict(inputs), self.decoder
        ids, mask, column = (inputs.pop(name) for name in (decoder.ids_name, "attention_mask", "cache_position"))
        prompt_length = inputs.pop("prompt_length", None)
        _, *specs = self._prefill_spec
        cache, constant = (_nested(spec, inputs) for spec in specs)
        if len(mask.shape) == 2:
            mask = mask[:, None]
        prompt_length = None if prompt_length is None else prompt_length[0]
        outputs, cache = decoder.step(ids, mask, column[0], prompt_length, cache, constant)
        if self.width == 1:
            outputs["logits"] = outputs["logits"][:, 0]
        return {**_flat(cache), **outputs}

    def compute_output_spec(self, inputs):
        logits, hidden = self.decoder.logits, self.decoder.hidden
        shape = (None, logits.shape[-1]) if self.width == 1 else (None, self.width, logits.shape[-1])
        outputs = {"logits": keras.KerasTensor(shape, logits.dtype)}
        if self.return_hidden_states:
            outputs["hidden_states"] = keras.KerasTensor((None, self.width, hidden.shape[-1]), hidden.dtype)
        cache = {name: inputs[name] for name in _flat(self._prefill_spec[1])}
        return {**{name: keras.KerasTensor(x.shape, x.dtype) for name, x in cache.items()}, **outputs}


def _flat(memory):
    """Tensors of a dict of dicts by one name each, such as `decoder_0_key`."""
    return {f"{part}_{name}": x for part, own in memory.items() for name, x in own.items()}


def _nested(spec, tensors):
    """The reverse of `_flat`, for the names of a dict of dicts."""
    return {part: {name: tensors[f"{part}_{name}"] for name in own} for part, own in spec.items()}


def _sized(shape, dtype, columns):
    """A symbol with a size in place of each that is not known."""
    return keras.KerasTensor((2, *[columns if size is None else size for size in shape[1:]]), dtype)


def _unsized(symbol, axis=...):
    """A symbol whose batch and length are open: the length on this axis, by default 1 of tokens and 2 of heads."""
    shape = symbol.shape
    if axis is ...:
        axis = {2: 1 if symbol.dtype == "bool" else None, 4: 2}.get(len(shape), 1)
    return keras.KerasTensor([None if i in (0, axis) else size for i, size in enumerate(shape)], symbol.dtype)
