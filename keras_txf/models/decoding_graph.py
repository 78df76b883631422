"""DecodingGraph: the inputs and outputs of the two models that decoding runs, derived from the graph of a model.

The graph is run again on symbols, with the same layers. What does not depend on the new tokens, such as an encoder, is
part of the prefill model alone. What does depend on them is called as it is, with three exceptions: attention is called
with a cache, an embedding is given its positions, and for a prompt the layers after the last attention read its last
column alone.

Legend: B batch, P prompt length, L columns, W width, C slots, S context length, D model dim, V vocabulary.
"""

import functools

import keras
from keras import ops

from keras_txf.backend.functional_graph import mask_of, reserve_names, run_graph
from keras_txf.checks import short_repr
from keras_txf.layers import DecoderBlock, EncoderBlock, PositionalEmbedding
from keras_txf.layers.arguments import call_parameters
from keras_txf.layers.cached_layers import (
    CachedContext,
    CachedLayer,
    PromptMask,
    StepMask,
    attends_to_itself,
    window_of,
)
from keras_txf.layers.decoder_start import StartPositions
from keras_txf.layers.features import AttachMask, masks_of_inputs
from keras_txf.layers.token_input import inputs_by_name, target_name
from keras_txf.models.aliases import find_aliases
from keras_txf.models.cacheable import check_cacheable
from keras_txf.models.decoding_layers import LastColumn, NewPositions
from keras_txf.models.position_wise import check_position_wise
from keras_txf.models.prefix import ClearPlaceholders, InsertPrefix, cuts_prefix, prefix_length, split_prefix
from keras_txf.models.recorded_calls import (
    RecordedCall,
    as_list,
    cache_names,
    embeds,
    given_positions,
    tensors_of,
    unused_name,
)


class DecodingGraph:
    """The graph of a model, run once on a prompt: the calls of layers on new tokens, in order."""

    def __init__(self, model, width):
        self.model, self.width, self.ids_name = model, width, target_name(model)
        self.inputs = {
            name: keras.Input(batch_shape=x.shape, dtype=x.dtype, name=name)
            for name, x in inputs_by_name(model).items()
        }
        masked = {}
        for name, vectors in masks_of_inputs(model).items():
            self.inputs[name] = keras.Input((None,), dtype="bool", name=name)
            masked[vectors] = AttachMask(name=f"{vectors}_and_mask")([self.inputs[vectors], self.inputs[name]])
        self.attention_mask = keras.Input((None,), dtype="bool", name="attention_mask")
        self.prefix = prefix_length(model, inputs_by_name(model)[self.ids_name])
        self.ids = self.inputs[self.ids_name]
        if self.prefix:
            self.ids = ClearPlaceholders(name="token_ids_or_zero")(self.ids)
        self.new, self.calls, self.caches, self._masks = {id(self.ids)}, [], {}, {}
        self.prefixed = set()  # the ids of the tensors that have the columns of the prefix
        self.positions = NewPositions(prefix=self.prefix, name="new_positions")(self.ids, self.attention_mask)
        logits = model.output.get("logits") if isinstance(model.output, dict) else model.output
        if not isinstance(logits, keras.KerasTensor) or len(logits.shape) != 3:
            raise ValueError(
                "`model` must return logits (batch, length, vocabulary), alone or in a dict as 'logits'; received "
                f"the output {short_repr(model.output)}."
            )
        reserve_names(model)
        self._aliases = find_aliases(model)
        inside = keras.Model(model.input, logits)  # without the outputs that decoding does not need
        given = {name: self.inputs[name] for name in inputs_by_name(model)} | masked | {self.ids_name: self.ids}
        self.logits = run_graph(
            inside, given if isinstance(model.input, dict) else [*given.values()], self._call, False
        )
        self._keep_needed()

    def _call(self, layer, *args, **kwargs):
        """Calls a layer of the graph, and records the call if the layer reads new tokens."""
        if not any(self._is_new(x) for x in tensors_of((args, kwargs))):
            return self._named(layer)(*args, **kwargs)
        cuts = cuts_prefix(layer, args, kwargs, self.prefix)
        if cuts:  # decoding keeps the columns: it reads the last one of a prompt alone, and a step has no prefix
            layer, args, kwargs = keras.layers.Identity(name=f"{layer.name}_kept"), args[:1], {}
        make = self._cached if "cache" in call_parameters(type(layer)) else self._plain
        call = make(layer, args, kwargs)
        self.new.update(map(id, call.outputs))
        if call.tokens is not None or (not cuts and any(id(x) in self.prefixed for x in call.inputs)):
            self.prefixed.update(map(id, call.outputs))
        self.calls.append(call)
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs

    def _is_new(self, tensor):
        return id(tensor) in self.new

    def _plain(self, layer, args, kwargs):
        found = split_prefix(layer, args, self._is_new)
        if found is not None:
            prefix, tokens = found
            prefix = prefix[0] if len(prefix) == 1 else ops.concatenate(prefix, axis=1)
            outputs = InsertPrefix(name=f"{layer.name}_prefill")(tokens, prefix, self.attention_mask)
            return RecordedCall(layer, (tokens,), {}, [outputs], tokens=tokens)
        if isinstance(layer, StartPositions):
            return RecordedCall(layer, args, kwargs, [self.positions])
        if isinstance(layer, PositionalEmbedding) and not kwargs.get("reverse"):
            kwargs = self._without_positions(layer, kwargs)
            outputs = self._named(layer)(*args, **kwargs, **given_positions(layer, self.positions))
        else:
            outputs = self._named(layer)(*args, **kwargs)
        alias = self._aliases.get(id(layer))
        return RecordedCall(layer, args, kwargs, keras.tree.flatten(outputs), alias=alias)

    def _named(self, layer):
        """The layer, or its alias where another layer of the graph has its name."""
        return self._aliases.get(id(layer), layer)

    def _without_positions(self, layer, kwargs):
        """Returns the arguments without `positions`, which decoding counts."""
        positions = kwargs.get("positions")
        if positions is not None and positions is not self.positions:
            raise ValueError(
                "`model` must leave `positions` to decoding, which counts the real tokens; its layer "
                f"{short_repr(layer.name)} is given others."
            )
        return {name: value for name, value in kwargs.items() if name != "positions"}

    def _cached(self, layer, args, kwargs):
        """Calls an attention layer with a cache."""
        arguments = dict(zip(call_parameters(type(layer)), args)) | self._without_positions(layer, kwargs)
        check_cacheable(layer, arguments, self._is_new)
        context = arguments.get("context")
        name, known = unused_name(layer.name, [call.cache_name for call in self.calls]), {}
        if context is not None:
            made = CachedContext(layer, name=f"{name}_context", dtype=layer.dtype_policy)(context)
            known = dict(zip(("context_key", "context_value"), made))
            mask = arguments.get("context_mask", mask_of(context))
            known |= {} if mask is None else {"context_mask": mask}
        x, place = arguments["inputs"], {}
        if attends_to_itself(layer):
            if self.prefix and id(x) not in self.prefixed:
                raise ValueError(
                    "`model` must put its prefix before the first attention to the tokens, and may leave it out after "
                    f"the last; its layer {short_repr(layer.name)} attends to the tokens without the prefix."
                )
            mask, positions = self._mask(
                window_of(layer), lambda window, name: PromptMask(window, name=name)(x, self.attention_mask)
            )
            place = {"attention_mask": mask, "positions": positions, "columns": self.attention_mask}
        cached = CachedLayer(layer, self.width, name=f"{name}_prefill", dtype=layer.dtype_policy)
        outputs, *cache = as_list(cached(x, **place, **known))
        self.caches.update(zip(cache_names(name), cache))
        return RecordedCall(layer, (x,), {}, [outputs], name, known)

    def _mask(self, window, make):
        """One mask for all layers with one window."""
        if window not in self._masks:
            self._masks[window] = make(window, f"mask_{window or 'all'}")
        return self._masks[window]

    def _keep_needed(self):
        """Drops the calls that no logit depends on, and refuses those that mix positions."""
        wanted, needed = {id(self.logits)}, []
        for call in reversed(self.calls):
            if wanted & set(map(id, call.outputs)):
                wanted.update(map(id, call.inputs))
                needed.append(call)
        self.calls = needed[::-1]
        names = {name for call in needed for name in cache_names(call.cache_name)}
        self.caches = {name: x for name, x in self.caches.items() if name in names}
        if not any(call.cache_name for call in self.calls):
            kinds = sorted({type(layer).__name__ for layer in self.model.layers})
            raise ValueError(
                "`model` must have an attention that decodes, a layer whose `call` takes `cache`, on its tokens "
                f"{short_repr(self.ids_name)}; received the model {short_repr(self.model.name)} of {', '.join(kinds)}."
            )
        for call in self.calls:
            if isinstance(call.layer, (EncoderBlock, DecoderBlock)):
                check_position_wise(call.layer.feed_forward, call.args, {}, self._is_new)
            elif call.cache_name is None and call.tokens is None and not isinstance(call.layer, PositionalEmbedding):
                check_position_wise(call.layer, call.args, call.kwargs, self._is_new)

    def prefill(self, return_hidden_states):
        """Inputs and outputs of the prefill model."""
        constants = {name: x for name, x in self._constants.values() if name not in self.inputs}
        logits = LastColumn(keepdims=False, name="last_logits")(self._last_logits())
        outputs = {"logits": logits, **self.caches, **constants}
        if return_hidden_states:
            outputs["hidden_states"] = self._hidden_states()
        return {**self.inputs, "attention_mask": self.attention_mask}, outputs

    def _last_logits(self):
        """The logits of the last column, (B, 1, V): the calls after the last attention, for this column alone."""
        attention, tail = set(), []  # the tensors that attention and embeddings depend on; the calls that neither does
        for call in reversed(self.calls):
            if call.cache_name is not None or embeds(call) or attention & set(map(id, call.outputs)):
                attention.update(map(id, call.inputs))
            else:
                tail.append(call)
        own = {id(x) for call in tail for x in call.outputs}
        values = {}

        def take_last(tensor):
            if self._is_new(tensor) and id(tensor) not in own and id(tensor) not in values:
                values[id(tensor)] = LastColumn(name=f"last_{len(values)}")(tensor)

        for call in reversed(tail):
            for tensor in call.inputs:
                take_last(tensor)
            call.repeat(values)
        take_last(self.logits)
        return values[id(self.logits)]

    def _hidden_states(self):
        """The input of the layer that makes the logits."""
        made_by = {id(x): call for call in self.calls for x in call.outputs}
        tensor = self.logits
        while id(tensor) in made_by and made_by[id(tensor)].cache_name is None:
            call = made_by[id(tensor)]
            before = next(x for x in call.inputs if self._is_new(x))
            makes_logits = call.kwargs.get("reverse") or isinstance(call.layer, keras.layers.Dense)
            if makes_logits or before.shape[-1] != tensor.shape[-1]:
                return before
            tensor = before
        return tensor

    @functools.cached_property
    def _constants(self):
        """The tensors that the calls read and that do not depend on new tokens: id of a tensor -> (name, tensor)."""
        found = {id(x): (name, x) for name, x in self.inputs.items()}
        used = {}
        for call in self.calls:
            for name, tensor in call.context.items():
                used[id(tensor)] = found.setdefault(id(tensor), (f"{call.cache_name}_{name}", tensor))
            for tensor in call.inputs:
                if not self._is_new(tensor):
                    used[id(tensor)] = found.setdefault(id(tensor), (f"constant_{len(used)}", tensor))
        return used

    def step(self, return_hidden_states):
        """Inputs and outputs of the step model."""
        width = self.width
        inputs = {
            self.ids_name: keras.Input((width,), dtype=self.inputs[self.ids_name].dtype, name=self.ids_name),
            "attention_mask": keras.Input(
                (None,) if width == 1 else (width, None), dtype="bool", name="attention_mask"
            ),
            "cache_position": keras.Input(batch_shape=(1,), dtype="int32", name="cache_position"),
        }
        ids, mask, cache_position = inputs.values()
        more = {}
        if width > 1:
            more["prompt_length"] = inputs["prompt_length"] = keras.Input(
                batch_shape=(1,), dtype="int32", name="prompt_length"
            )
        for name, tensor in {**self.caches, **dict(self._constants.values())}.items():
            inputs[name] = keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
        values = {id(self.ids): ids}
        values.update((key, inputs[name]) for key, (name, _) in self._constants.items())
        positions = NewPositions(True, self.prefix, name="new_positions")(ids, mask)
        outputs, self._masks = {}, {}
        for call in self.calls:
            if embeds(call):
                call.repeat(values, **given_positions(call.layer, positions))
                continue
            if call.tokens is not None:
                values[id(call.outputs[0])] = values[id(call.tokens)]
                continue
            if call.cache_name is None:
                call.repeat(values)
                continue
            place = {name: values[id(tensor)] for name, tensor in call.context.items()}
            names = cache_names(call.cache_name) if attends_to_itself(call.layer) else []
            if names:
                cache = dict(zip(("key", "value"), (inputs[name] for name in names)))
                made = self._mask(
                    window_of(call.layer),
                    lambda window, name, value=cache["value"]: StepMask(window, width, name=name)(
                        mask, cache_position, value, **more
                    ),
                )
                place |= {
                    **cache,
                    "cache_position": cache_position,
                    **dict(zip(("attention_mask", "positions", "key_positions"), made)),
                }
            cached = CachedLayer(call.layer, width, name=f"{call.cache_name}_step", dtype=call.layer.dtype_policy)
            x, *cache = as_list(cached(values[id(call.args[0])], **place))
            values[id(call.outputs[0])] = x
            outputs.update(zip(names, cache))
        logits = values[id(self.logits)]
        if return_hidden_states:
            outputs["hidden_states"] = values[id(self._hidden_states())]
        if width == 1:  # by a layer with a name: that of an operation could be one of the model's own
            logits = LastColumn(keepdims=False, name="last_logits")(logits)
        return inputs, {**outputs, "logits": logits}
