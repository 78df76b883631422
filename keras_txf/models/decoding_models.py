"""The two functional models of generation: one reads a prompt, the other reads one more token."""

import functools

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional
from keras_txf.backend.keras_private import infer_spec
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.graph_decoder import GraphDecoder
from keras_txf.layers.caches import Cache
from keras_txf.layers.serialization import register, revive, serialize_layer
from keras_txf.layers.token_input import embedded_input
from keras_txf.models.checked_model import CheckedModel


def prefill_model(model: keras.Model, width: int = 1, return_hidden_states: bool = False) -> keras.Model:
    """Builds the model that reads prompts. It shares all weights, and returns the cache for `step_model`.

    The sequences of a batch have L columns: prompts of P columns, padded on the left, and the columns of later tokens.

    Args:
        model: a model from `decoder_generator`, `encoder_decoder`, `decoder` or `recurrent_encoder_decoder`, or a model
            for `generative`. In a model from `forecaster` the vectors of the series, float (B, P, F), are the tokens,
            and the outputs are the logits.
        width: the `width` of the `step_model`.
        return_hidden_states: also return the hidden states from which the logits are computed.

    Returns:
        A functional `keras.Model`. Inputs by name: the inputs of the model, with the new tokens `token_ids` or
        `target_ids`, int (B, P); and `attention_mask`, bool (B, L), True at the real tokens of the prompts.
        Outputs: `logits` (B, V) of the next token; for each attention `decoder_0_key`, `decoder_0_value`, ...,
        (B, key-value heads, C, head dim), where C is L, or at most the window times the width; the states of a
        recurrence, such as `decoder_states`, (B, W, ...); with a context also `decoder_0_context_key`, ...; on request
        `hidden_states` (B, P, D).

    Raises:
        ValueError: a model that cannot decode, see `generative`, or a model built with packed=True.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> prefill, step = txf.models.prefill_model(model), txf.models.step_model(model)
    >>> mask = np.array([[True, True, True, False, False]])
    >>> known = prefill({"token_ids": np.array([[5, 6, 7]]), "attention_mask": mask})
    >>> known["decoder_1_key"].shape
    (1, 4, 5, 8)
    """
    return _functional(model, width, return_hidden_states, "prefill")


def step_model(model: keras.Model, width: int = 1, return_hidden_states: bool = False) -> keras.Model:
    """Builds the model that reads one more token. It shares all weights, and can be exported.

    With a `width` W above 1 the model reads W tokens of each sequence at once, each with its own mask over the columns:
    the beams of a search, or candidates. They have W columns and the same position in the sequence. The cache holds
    their common columns, such as the prompt, once.

    Args:
        model: see `prefill_model`.
        width: number W of tokens of each sequence that a step reads.
        return_hidden_states: also return the hidden states from which the logits are computed.

    Returns:
        A functional `keras.Model`. Inputs by name: `token_ids` or `target_ids`, int (B, W); `attention_mask`,
        bool (B, L), True at the real tokens up to this one, or (B, W, L) for a width above 1; `cache_position`,
        int (1,), the column of the token, or the first of W columns; the cache from `prefill_model` or the last step;
        for a width above 1 `prompt_length`, int (1,), the number P of columns before the first step. P and L - P must
        then be multiples of W.
        Outputs: `logits` (B, V), or (B, W, V), and the cache, with the new columns; on request
        `hidden_states` (B, W, D).

    Raises:
        ValueError: see `prefill_model`.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> step = txf.models.step_model(model)
    >>> sorted(tensor.name for tensor in step.inputs)[:3]
    ['attention_mask', 'cache_position', 'decoder_0_key']
    """
    return _functional(model, width, return_hidden_states, "step")


def decoding_models(model, width=1, return_hidden_states=False, kind=Cache):
    """The `GraphDecoder` of a model, for the loops of `generate`."""
    check_decodable(model)
    checks.positive_int32("width", width)
    checks.boolean("return_hidden_states", return_hidden_states)
    return GraphDecoder(model, width, return_hidden_states, kind)


def call_sequential(model, inputs):
    """Calls a `keras.Sequential` model that was never called, because it has a graph only after its first call.

    Args:
        inputs: the symbol for a model that is not built, or None.
    """
    if isinstance(model, keras.Sequential) and not hasattr(model, "input"):
        if model.built:
            [built_for] = model.inputs
            inputs = keras.Input(batch_shape=built_for.shape, dtype=built_for.dtype, name=built_for.name)
        if inputs is not None:
            model(inputs)


def check_decodable(model, name="model"):
    """Raises ValueError if a model has no graph, or was built for packed sequences."""
    if not is_functional(model):
        received = (
            short_repr(model) if not isinstance(model, keras.Model) else f"{type(model).__name__} without a graph"
        )
        raise ValueError(
            f"`{name}` must be a functional keras.Model, such as those of `decoder_generator` and `encoder_decoder`; "
            f"received {received}."
        )
    refuse_packed(model)


def _functional(model, width, return_hidden_states, kind):
    """One half of decoding as a functional model."""
    check_decodable(model)
    checks.positive_int32("width", width)
    checks.boolean("return_hidden_states", return_hidden_states)
    half = {"prefill": Prefill, "step": Step}[kind](model, width, return_hidden_states, name=kind)
    inputs = half.inputs()
    return CheckedModel(inputs, half(inputs), name=f"{model.name}_{kind}")


def refuse_packed(model):
    """Raises ValueError for a model of packed sequences."""
    if any("segment_ids" in tensor.name for tensor in model.inputs):
        raise ValueError(
            "`generate` and `prefill_model` need a `model` built with packed=False; its weights are the same."
        )


LENGTH = 64  # length of the other inputs for the inference of shapes, unless the model's max_length is shorter


class Half(keras.layers.Layer):
    """The base of the two halves.

    Args:
        model: the functional model, whose weights are shared.
        width, return_hidden_states: see `step_model`.
    """

    def __init__(self, model, width=1, return_hidden_states=False, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.model, self.width, self.return_hidden_states = revive(model), width, return_hidden_states
        self.decoder = GraphDecoder(self.model, width, return_hidden_states)
        self.built = True

    def get_config(self):
        options = {"width": self.width, "return_hidden_states": self.return_hidden_states}
        return {**super().get_config(), "model": serialize_layer(self.model), **options}

    @functools.cached_property
    def _prefill_spec(self):
        """The symbolic outputs of `prefill` for prompts of W columns."""
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
        """The symbols of a cache and of constants. The length is unknown in a cache with one slot for each column."""
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
    """Reads one more token, or W alternatives, see `step_model`."""

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
    """The tensors of a dict of dicts in one dict, with names such as `decoder_0_key`."""
    return {f"{part}_{name}": x for part, tensors in memory.items() for name, x in tensors.items()}


def _nested(spec, tensors):
    """The reverse of `_flat`, for the names in `spec`."""
    return {part: {name: tensors[f"{part}_{name}"] for name in names} for part, names in spec.items()}


def _sized(shape, dtype, columns):
    """A symbol with 2 rows, and with `columns` instead of each unknown size."""
    return keras.KerasTensor((2, *[columns if size is None else size for size in shape[1:]]), dtype)


def _unsized(symbol, axis=...):
    """A symbol of unknown batch size, and of unknown length on `axis`: by default 1 of tokens and 2 of heads."""
    shape = symbol.shape
    if axis is ...:
        axis = {2: 1 if symbol.dtype == "bool" else None, 4: 2}.get(len(shape), 1)
    return keras.KerasTensor([None if i in (0, axis) else size for i, size in enumerate(shape)], symbol.dtype)
