"""Parts: the calls of a graph on new tokens, and how each reads a prompt and a step.

Legend: see `layout`.
"""

import dataclasses

import keras
from keras import ops

from keras_txf.backend.flat_graph import Symbol, with_values
from keras_txf.backend.functional_graph import drop_mask, mask_of, set_mask
from keras_txf.checks import short_repr
from keras_txf.layers.base import call_parameters
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.sequence_ends import Start, StartPositions


def logits_of(outputs):
    """Returns the Symbol of the logits among the outputs of a model."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else outputs
    if isinstance(logits, (list, tuple)) and len(logits) == 1:
        [logits] = logits
    if not isinstance(logits, Symbol) or len(logits.shape) != 3:
        raise ValueError(
            "`model` must return logits (batch, length, vocabulary), alone or in a dict as 'logits'; received the "
            f"outputs {short_repr(keras.tree.map_structure(lambda x: x.shape, outputs))}. `forecaster` continues "
            "several outputs, with a `feedback` that draws each."
        )
    return logits


def needed_calls(calls, symbol):
    """Returns the calls that a Symbol depends on, in order."""
    wanted, needed = {symbol}, []
    for call in reversed(calls):
        if wanted & set(call.outputs):
            wanted.update(call.inputs)
            needed.append(call)
    return needed[::-1]


def finds_padding(call, ids, pad_id):
    """Whether a call is `ids != pad_id`, as masks of padding are made."""
    arguments = [*call.args, *call.kwargs.values()]
    is_comparison = type(call.operation).__name__ == "NotEqual" and len(arguments) == 2
    return pad_id is not None and is_comparison and arguments[0] in ids and arguments[1] == pad_id


def entered(x, symbol):
    """Returns an input in the type of the model's input, with its Keras mask."""
    x, mask = ops.convert_to_tensor(x), mask_of(x)
    y = ops.copy(ops.cast(x, symbol.dtype))  # a copy of the caller's tensor: the copy may get a mask
    if mask is not None:
        set_mask(y, mask)
    return y


def last_column(x):
    """The last column of a tensor, and of its Keras mask."""
    mask, x = mask_of(x), x[:, -1:]
    if mask is not None:
        set_mask(x, mask[:, -1:])
    return x


def arguments_of(call):
    """The arguments of a call, by their names."""
    return {**dict(zip(call_parameters(type(call.operation)), call.args)), **call.kwargs}


EMBEDDINGS = (PositionalEmbedding, keras.layers.Embedding, Start)  # layers that make padding masks


class Part:
    """A call of the graph that treats each position alone: decoding runs the call unchanged.

    Args:
        call: a `GraphCall`.
        name: unique name among the parts.
        prefix: the number of vectors before the tokens in the outputs.
    """

    reads_positions = False
    is_known = False  # whether no trial is needed
    has_positions = False  # whether the graph passes `positions` to an attention, which few layers of ours can read

    def __init__(self, call, name, prefix):
        self.call, self.name, self.prefix = call, name, prefix

    @property
    def constants(self):
        """The Symbols that a step reads and does not change. The caller drops the Symbols of new tokens."""
        return self.call.inputs

    def slots(self, columns, width, tokens=1):
        """The axis of columns in each tensor of the memory, and its length for L columns: dict of name -> pair.

        Args:
            tokens: how many tokens in order a step reads at once.
        """
        return {}

    def move(self, memory, shift, last, columns, width, tokens):
        """The memory with slots for L columns, in which the tokens of each row stand further to the right.

        Args:
            shift: int (B,), the number of columns by which the tokens of a row move.
            last: int scalar, the last column that is read next.
            columns, width, tokens: see `slots`.
        """
        return dict(memory)

    def call_on(self, layout):
        """The call for the tokens of a layout."""
        return self.call

    def run(self, values, layout, memory, known):
        """Reads the tokens of a layout.

        Args:
            values: tensors by their Symbols; the outputs are added.
            layout: a `PromptLayout` or a `StepLayout`.
            memory: dict of the tensors that the part keeps from step to step; the call changes it.
            known: dict of the tensors that a prompt passes to all steps; a prompt fills it.
        """
        outputs = self.call_on(layout).run(values)
        if isinstance(self.call.operation, EMBEDDINGS):  # a generated padding token is real: only the layout knows
            for x in outputs:
                if mask_of(x) is not None:
                    set_mask(x, layout.real(0))
        values.update(zip(self.call.outputs, outputs))


class PositionsPart(Part):
    """A call of an embedding that counts tokens, whose `call` takes `positions`."""

    reads_positions = True

    def run(self, values, layout, memory, known):
        if isinstance(self.call.operation, StartPositions):
            values[self.call.outputs[0]] = layout.positions
        else:
            super().run(values, layout, memory, known)

    def call_on(self, layout):
        return dataclasses.replace(self.call, kwargs={**self.call.kwargs, "positions": layout.positions})


class PaddingPart(Part):
    """`ids != pad_id`: the layout says which tokens are real. Generated tokens are real."""

    is_known = True

    def run(self, values, layout, memory, known):
        values[self.call.outputs[0]] = layout.real(0)


class PromptPart(Part):
    """A call of a `SoftPrompt`, or a call on its vectors, which stand before the prompt. No step runs this part."""

    is_known = True
    reads_positions = True  # the part must read the whole prompt, not its last column

    def run(self, values, layout, memory, known):
        if layout.is_prompt:
            super().run(values, layout, memory, known)


class PrefixPart(Part):
    """A concatenation of vectors and tokens along the axis of positions."""

    is_known = True

    def run(self, values, layout, memory, known):
        tokens = values[self.tokens]
        if tokens is layout.real(0):  # a padding mask, with True for the vectors
            values[self.call.outputs[0]] = layout.real(self.prefix)
            return
        mask = mask_of(tokens)
        for vectors in reversed(with_values(self.call.args[0][:-1], values)) if layout.is_prompt else ():
            if not layout.owns(mask):
                mask = layout.insert(ops.ones_like(vectors[..., 0], "bool"), mask)
            tokens = layout.insert(vectors, tokens)
        values[self.call.outputs[0]] = tokens
        if mask is not None and isinstance(self.call.operation, keras.layers.Layer):
            set_mask(tokens, layout.real(self.prefix) if layout.owns(mask) else mask)

    @property
    def tokens(self):
        return self.call.args[0][-1]

    @property
    def constants(self):
        return []


class CutPart(Part):
    """`x[:, n:]` or a `DropBefore`: cuts the n vectors before the tokens; the remaining columns are the tokens."""

    is_known = True

    def run(self, values, layout, memory, known):
        x = values[self.call.inputs[0]]
        cut = layout.is_prompt and not layout.is_last
        x = x[:, layout.columns_of(self.prefix) :] if cut else ops.copy(x)
        drop_mask(x)
        values[self.call.outputs[0]] = x
