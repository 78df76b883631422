"""GraphDecoder: reads a prompt, then one token after another, through the graph of a functional model.

The graph is interpreted on values. Calls that do not depend on the new tokens, such as an encoder, run once. Every
other call runs as in the graph, with all its arguments. Attention gets a cache in addition, and an embedding that
counts tokens gets positions.

Legend: see `layout`; R rows, S source length, V vocabulary.
"""

import collections
import functools

import keras
from keras import ops

from keras_txf.backend.flat_graph import flat_graph
from keras_txf.backend.functional_graph import mask_of, set_mask
from keras_txf.generation.decoding.cached_part import CachedPart
from keras_txf.generation.decoding.choice import make_part
from keras_txf.generation.decoding.layout import OrderedLayout, PromptLayout, StepLayout
from keras_txf.generation.decoding.parts import (
    CutPart,
    PaddingPart,
    PrefixPart,
    PromptPart,
    entered,
    finds_padding,
    last_column,
    logits_of,
    needed_calls,
)
from keras_txf.generation.decoding.trial import check_logits, check_part
from keras_txf.layers.caches import Cache
from keras_txf.layers.features import masks_of_inputs
from keras_txf.layers.token_input import inputs_by_name, target_name, token_input
from keras_txf.ops.tensors import batch_size


class GraphDecoder:
    """Decoding of a model.

    Args:
        model: a functional model.
        width: W, how many tokens of each sequence a step reads.
        return_hidden_states: whether prompts and steps also return the hidden states that the logits are made of.
        kind: a subclass of `Cache` for the layers that attend to the new tokens. A kind that drops tokens is used only
            in layers without a window.
    """

    def __init__(self, model, width=1, return_hidden_states=False, kind=Cache):
        # No reference to the model itself: the loops must be freed with their model.
        self.width, self.return_hidden_states = width, return_hidden_states
        self.variables, self.ids_name = model.variables, target_name(model)
        self.feature_masks = {mask: name for mask, name in masks_of_inputs(model).items() if name != self.ids_name}
        symbols, calls, outputs = flat_graph(model)
        by_tensor = {id(tensor): symbol for tensor, symbol in zip(model.inputs, symbols)}
        self.inputs = {name: by_tensor[id(tensor)] for name, tensor in inputs_by_name(model).items()}
        self.ids = self.inputs[self.ids_name]
        self.logits = logits_of(outputs)
        self._make_parts(needed_calls(calls, self.logits), token_input(model, self.ids_name).pad_id)
        padding = {x for part in self.parts if isinstance(part, PaddingPart) for x in part.call.outputs}
        for part in self.parts:
            check_part(part, self.new, padding, self.logits.shape[-1])
            if isinstance(part, CachedPart) and (kind.keeps_all or part.window is None):
                part.kind = kind
        self.hidden = self._hidden_states()
        check_logits(self.parts, self.hidden, self.logits, self.new)
        self.tail = self._tail()

    def _make_parts(self, calls, pad_id):
        """Sorts calls into constant calls, which run once, and parts, which read the tokens of each layout."""
        self.constant_calls, self.parts = [], []
        self.new, self.prefixes = {self.ids}, {}
        names, ids = {}, {self.ids}
        of_prompts = set()  # Symbols that no step reads, made after the constants
        padding = set()  # Symbols of padding masks
        for call in calls:
            is_new, is_of_prompts = (not symbols.isdisjoint(call.inputs) for symbols in (self.new, of_prompts))
            if not is_new and not is_of_prompts:
                self.constant_calls.append(call)
                continue
            number = names[call.operation.name] = names.get(call.operation.name, -1) + 1
            name = f"{call.operation.name}_call_{number}" if number else call.operation.name
            if type(call.operation).__name__ == "Entry" and call.inputs[0] in ids:
                ids.update(call.outputs)  # the ids, within another model
            if not is_new:
                part = PromptPart(call, name, 0)
            elif finds_padding(call, ids, pad_id):
                part = PaddingPart(call, name, 0)
            else:
                part = make_part(call, name, self.prefixes, self.new, padding)
            if isinstance(part, PaddingPart) or padding.issuperset(call.inputs):
                padding.update(call.outputs)
            (of_prompts if isinstance(part, PromptPart) else self.new).update(call.outputs)
            prefix = 0 if isinstance(part, CutPart) else part.prefix
            self.prefixes.update((x, prefix) for x in call.outputs if prefix)
            self.parts.append(part)

    def _hidden_states(self):
        """The Symbol of the input of the layer that makes the logits."""
        made_by = {x: part for part in self.parts for x in part.call.outputs}
        symbol = self.logits
        while symbol in made_by and not isinstance(made_by[symbol], CachedPart):
            call = made_by[symbol].call
            before = next(x for x in call.inputs if x in self.new)
            makes_logits = call.kwargs.get("reverse") or isinstance(call.operation, keras.layers.Dense)
            if makes_logits or before.shape[-1] != symbol.shape[-1] or len(before.shape) < 3:
                return before
            symbol = before
        return symbol

    def _tail(self):
        """The last parts: no attention and no hidden state depends on them, so they read only the last column."""
        needed, tail = {self.hidden} if self.return_hidden_states else set(), set()
        for part in reversed(self.parts):
            if part.reads_positions or isinstance(part, PrefixPart) or needed & set(part.call.outputs):
                needed.update(part.call.inputs)
            else:
                tail.add(part)
        return tail

    def prefill(self, inputs, attention_mask):
        """Reads prompts.

        Args:
            inputs: dict of the model's inputs and of the masks of float vectors. The ids are int (B, P), or a series
                float (B, P, F).
            attention_mask: bool (B, P), True at real tokens.

        Returns:
            A dict of `logits` (B, V) of the next token and perhaps `hidden_states` (B, P, D); the cache, a dict of
            dicts of tensors by the names of the parts; and the constants of all steps, in the same form.
        """
        values = {symbol: entered(inputs[name], symbol) for name, symbol in self.inputs.items()}
        for name, vectors in self.feature_masks.items():
            if inputs.get(name) is not None:
                set_mask(values[self.inputs[vectors]], ops.cast(inputs[name], "bool"))
        for call in self.constant_calls:
            values.update(zip(call.outputs, call.run(values)))
        # Before the parts run: Keras' MultiHeadAttention removes the masks of its inputs.
        masks = {symbol: mask_of(values[symbol]) for symbol in self._constants if symbol in values}
        layout = PromptLayout(attention_mask, self.width)
        outputs, cache, constant = self._read(values, layout, attention_mask[:, -1:], {}, {})
        for i, symbol in enumerate(self._constants):
            mask = masks[symbol] if symbol in masks else mask_of(values[symbol])
            constant[f"constant_{i}"] = {"value": values[symbol], **({} if mask is None else {"mask": mask})}
        outputs["logits"] = ops.reshape(outputs["logits"], (batch_size(inputs[self.ids_name]), self.logits.shape[-1]))
        if self.return_hidden_states:
            prefix = self.prefixes.get(self.hidden, 0)
            outputs["hidden_states"] = outputs["hidden_states"][:, layout.columns_of(prefix) :]
        return outputs, cache, constant

    def step(self, ids, attention_mask, column, prompt_length, cache, constant):
        """Reads W tokens of each row.

        Args:
            ids: int (R, W), or a series float (R, W, F).
            attention_mask: bool (R, W, L), True at the columns that each token may attend to, its own column too.
            column: int scalar, the first column that the step writes.
            prompt_length: P, an integer or a scalar tensor.
            cache, constant: the results of `prefill` or of the last step.

        Returns:
            A dict of `logits` (R, W, V) and perhaps `hidden_states` (R, W, D), and the new cache.
        """
        layout = StepLayout(attention_mask, column, prompt_length)
        outputs, cache, _ = self._read(self._values(ids, constant), layout, None, cache, constant)
        outputs["logits"] = ops.reshape(outputs["logits"], (batch_size(ids), self.width, self.logits.shape[-1]))
        return outputs, cache

    def read(self, ids, real, new, column, cache, constant, keeps=False, last=False):
        """Reads T tokens of each row in their order.

        Args:
            ids: int (R, T).
            real: bool (R, L), True at the real columns, also at the real new tokens.
            new: bool (R, T), True at the new tokens that are real.
            column: int scalar, the first column of the tokens.
            cache, constant: see `step`.
            keeps: whether earlier tokens may lie in the columns of padding among the new tokens.
            last: whether to return the logits of the last column only.

        Returns:
            A dict of `logits` (R, T or 1, V) and perhaps `hidden_states` (R, T, D), and the new cache.
        """
        layout, of_last = OrderedLayout(real, new, column, keeps), new[:, -1:] if last else None
        outputs, cache, _ = self._read(self._values(ids, constant), layout, of_last, cache, constant)
        return outputs, cache

    def _values(self, ids, constant):
        """Tensors by Symbol: the new ids, and the constants of all steps."""
        values = {self.ids: entered(ids, self.ids)}
        for i, symbol in enumerate(self._constants):
            values[symbol] = constant[f"constant_{i}"]["value"]
            set_mask(values[symbol], constant[f"constant_{i}"].get("mask"))
        return values

    def _read(self, values, layout, last, cache, constant):
        """Runs all parts on the tokens of a layout.

        Args:
            last: bool (B, 1), which rows are real in the last column: the tail reads only this column. None if the tail
                reads all columns.

        Returns:
            A dict of `logits` and perhaps `hidden_states`, the new cache, and constants.
        """
        cache, constant, of_last = dict(cache), dict(constant), {}
        last = None if last is None else PromptLayout(last, self.width, is_last=True)
        for part in self.parts:
            if last is not None and part in self.tail:
                of_last.update(
                    (x, last_column(values[x])) for x in part.call.inputs if x in self.new and x not in of_last
                )
                part.run(collections.ChainMap(of_last, values), last, {}, {})
            else:
                self._run(part, values, layout, cache, constant)
        logits = of_last[self.logits] if self.logits in of_last else values[self.logits]
        outputs = {"logits": logits if last is None else logits[:, -1:]}
        if self.return_hidden_states:
            outputs["hidden_states"] = values[self.hidden]
        return outputs, cache, constant

    def _run(self, part, values, layout, cache, constant):
        """Runs a part with its share of the memory."""
        memory, known = dict(cache.get(part.name, {})), dict(constant.get(part.name, {}))
        part.run(values, layout, memory, known)
        if memory:
            cache[part.name] = memory
        if known:
            constant[part.name] = known

    @property
    def _constants(self):
        """The Symbols that steps read and that do not depend on new tokens."""
        return list(dict.fromkeys(x for part in self.parts for x in part.constants if x not in self.new))

    def pad(self, cache, columns):
        """The cache with slots for L columns; the cache of a prompt has only the slots of the prompt."""
        padded = {name: dict(memory) for name, memory in cache.items()}
        for part in self.parts:
            memory = padded.get(part.name, {})
            more = PromptLayout.columns_of(self, part.prefix)
            for name, (axis, slots) in part.slots(columns + more, self.width).items():
                if name in memory:
                    x = memory[name]
                    missing = slots - ops.shape(x)[axis]
                    memory[name] = ops.pad(x, [(0, missing if i == axis else 0) for i in range(len(x.shape))])
        return padded

    def has_states(self, cache):
        """Whether a cache holds the state of a recurrence, from which no token can be removed."""
        return any(set(cache.get(part.name, {})) - set(part.slots(1, 1)) for part in self.parts)

    def move(self, cache, shift, last, columns, tokens):
        """The cache with slots for L columns, with the tokens of each row moved to the right.

        Args:
            shift: int (R,), the number of columns by which the tokens of a row move.
            last: int scalar, the last column that is read next.
            columns: L.
            tokens: how many columns are read next.
        """
        moved = {}
        for part in self.parts:
            more = PromptLayout.columns_of(self, part.prefix)
            if part.name in cache:
                memory = cache[part.name]
                moved[part.name] = part.move(memory, shift, last + more, columns + more, self.width, tokens)
        return moved

    # The methods that the loops of `generate` call.

    def run_prefill(self, request, repeats=1):
        """Reads the prompts of a request; each row of the cache and of the constants comes `repeats` times."""
        if request.state:
            outputs, cache, constant = self._continue(request)
        else:
            mask = request.attention_mask[:, : request.prompt_length]
            outputs, cache, constant = self.prefill({**request.inputs, self.ids_name: request.ids}, mask)
        if repeats > 1:
            repeat = functools.partial(ops.repeat, repeats=repeats, axis=0)
            cache, constant = keras.tree.map_structure(repeat, (cache, constant))
        return outputs, cache, constant

    def _continue(self, request):
        """Reads the prompt tokens that are not in the state of an earlier call."""
        state, columns = request.state, ops.shape(request.attention_mask)[1]
        new = state["new"]
        tokens, constant = new.shape[1], state["constant"]
        cache = self.move(state["cache"], state["shift"], request.prompt_length - 1, columns, tokens)
        ids, column = request.ids[:, -tokens:], request.prompt_length - tokens
        outputs, cache = self.read(ids, request.attention_mask, new, column, cache, constant, keeps=True, last=True)
        has_new = ops.any(new, axis=1)[:, None]
        outputs["logits"] = ops.where(has_new, outputs["logits"][:, 0], ops.cast(state["logits"], self.logits.dtype))
        return outputs, cache, constant

    def pad_cache(self, state, request):
        """The state after the prompts, its cache padded to the columns of the prompts and of all new tokens."""
        if request.state:
            return state
        return {**state, "cache": self.pad(state["cache"], ops.shape(request.attention_mask)[1])}

    def run_step(self, tokens, attention_mask, cache_position, cache, constant, request):
        """Reads `tokens`, (R, W), into the columns from `cache_position` on.

        Returns:
            Logits (R, W, V), the cache, and a dict of the other outputs.
        """
        if len(attention_mask.shape) == 2:
            attention_mask = attention_mask[:, None]
        outputs, cache = self.step(tokens, attention_mask, cache_position, request.prompt_length, cache, constant)
        return outputs.pop("logits"), cache, outputs
