"""Trials: a call that is not known to decode runs on random weights, and its outputs are compared.

The outputs for a prompt and for the tokens after it, read one by one, must equal the outputs for the whole sequence.

Legend: B batch, T length.
"""

import weakref

import keras
import numpy as np
from keras import ops

from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checks import in_one_line, short_repr
from keras_txf.generation.decoding.layout import OrderedLayout, PromptLayout, StepLayout
from keras_txf.generation.decoding.parts import CutPart

BATCH, LENGTH, PROMPT, PADDING, WIDTH = 2, 257, 253, 3, 4  # the width divides the columns of a prompt
KNOWN = (
    keras.layers.Activation, keras.layers.Add, keras.layers.Dense, keras.layers.Dropout, keras.layers.Embedding,
    keras.layers.Identity, keras.layers.Multiply, keras.layers.ReversibleEmbedding, keras.layers.SpatialDropout1D,
    keras.layers.Subtract,
)  # fmt: skip
LINEAR = (keras.layers.Dense, keras.layers.ReversibleEmbedding)
ROWS = 4  # batch and length on which the last calls run
NORMS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)  # along the last axis
DECODE_IN_GRAPH = (
    keras.layers.Conv1D, keras.layers.GroupQueryAttention, keras.layers.MultiHeadAttention, keras.layers.RNN
)  # fmt: skip
MIXES = "mixes the positions of a sequence, and is not an attention that decodes"
_PASSED = weakref.WeakKeyDictionary()  # operation -> the calls that passed: type of part, and which inputs are new


def check_part(part, new, padding, vocab_size):
    """Raises ValueError if a part returns other values step by step than for the whole sequence.

    Args:
        part: a `Part`.
        new: set of the Symbols that depend on new tokens.
        padding: set of the Symbols of padding masks: the outputs of attention for padding do not matter.
        vocab_size: number of tokens, for ids.
    """
    operation = part.call.operation
    passed = _PASSED.setdefault(operation, set())
    arguments = type(part), tuple(x in new for x in part.call.inputs)
    if arguments in passed or part.is_known:
        return
    if _is_known(operation) and not part.has_positions and not _adds_positions(part, new):
        return
    prefix, part.prefix = part.prefix, 0
    try:
        problem = _problem(part, new, padding, vocab_size)
    except Exception as error:  # a user's layer may raise any exception
        problem = f"cannot be called on one token at a time: {in_one_line(error).rstrip('.')}"
    finally:
        part.prefix = prefix
    if problem:
        raise ValueError(
            f"`model` must be made of attention that decodes and of layers that treat each position alone; its layer "
            f"{short_repr(operation.name)} ({_kind(operation)}) {problem}; {_hint(operation)}see `txf.layers.Cache`."
        )
    passed.add(arguments)


def check_logits(parts, hidden, logits, new):
    """Raises ValueError if a model returns probabilities: samplers and beams would take them for logits.

    Args:
        parts: list of the `Part`s, in order.
        hidden: Symbol of the input of the layer that makes the logits. The calls after it run on large random values,
            for which logits leave the interval from 0 to 1.
        logits: Symbol of the logits.
        new: set of the Symbols that depend on new tokens.
    """
    last, made = [], {hidden}
    for part in parts:
        if not made.isdisjoint(part.call.inputs):
            last.append(part)
            made.update(part.call.outputs)
    calls = [part.call for part in last]
    if all(map(_is_linear, (call.operation for call in calls))):
        return
    vectors = max((part.prefix for part in last if isinstance(part, CutPart)), default=0)  # before the tokens
    found = _run_on_random(calls, logits, vectors + ROWS)
    if found.min() >= 0 and found.max() <= 1 and found.any():
        raise ValueError(
            "`model` must return logits, which may be any numbers; it returns probabilities. Leave out the softmax at "
            "its end and train with from_logits=True, or make a model that ends before the softmax."
        )


def _run_on_random(calls, logits, size):
    """The logits of calls on large random values; `size` stands for each unknown size."""
    rng, values = np.random.default_rng(0), {}
    for symbol in (x for call in calls for x in call.inputs):
        if symbol not in values:
            sizes = [ROWS, *[size] * len(symbol.shape[1:])]
            shape = [one if known is None else known for one, known in zip(sizes, symbol.shape)]
            drawn = 10 * rng.normal(size=shape) if "float" in symbol.dtype else rng.integers(0, 2, shape)
            values[symbol] = ops.convert_to_tensor(drawn, dtype=symbol.dtype)
    for call in calls:
        values.update(zip(call.outputs, call.run(values)))
    return _numpy(values[logits])


def _is_linear(operation):
    """Whether an operation is known to return logits and no probabilities."""
    kind, activation = type(operation), getattr(operation, "activation", None)
    known = kind in LINEAR or kind.__module__.startswith("keras_txf.")
    return known and activation in (None, keras.activations.linear)


def _adds_positions(part, new):
    """Whether a call combines tokens with a constant of several positions, which a step cannot align."""
    constants = [x for x in part.call.inputs if x not in new]
    return not part.reads_positions and any(len(x.shape) > 2 and x.shape[1] != 1 for x in constants)


def _kind(operation):
    """The class of an operation, and the first layer inside it that is not known."""
    kind, inside = type(operation).__name__, _unknown_inside(operation)
    return kind if not inside else f"{kind} with {short_repr(inside[0].name)}, {type(inside[0]).__name__}"


def _hint(operation):
    """Advice for an operation that holds a layer of Keras, which would decode outside of the operation."""
    is_inside = any(isinstance(layer, DECODE_IN_GRAPH) for layer in _unknown_inside(operation))
    return "a layer of Keras decodes in the graph of the model, not within another layer; " if is_inside else ""


def _unknown_inside(operation):
    if not isinstance(operation, keras.layers.Layer):
        return []
    return [layer for layer in flatten_layers(operation, include_self=False) if not _is_trusted(layer)]


def _is_known(operation):
    if not isinstance(operation, keras.layers.Layer):
        return type(operation).__name__ == "Entry"
    return getattr(operation, "position_wise", False) is True or all(map(_is_trusted, flatten_layers(operation)))


def _is_trusted(layer):
    kind = type(layer)
    if kind in NORMS:
        return layer.axis in (-1, [-1])
    return kind in KNOWN or kind.__module__.startswith("keras_txf.layers.")


def _problem(part, new, padding, vocab_size):
    """The fault of a part as text, or None."""
    rng = np.random.default_rng(0)
    tokens, constants = {}, {}
    for symbol in dict.fromkeys(part.call.inputs):
        shape = [3 if size is None else size for size in symbol.shape]
        shape[0] = BATCH if symbol.shape[0] is None else shape[0]
        if symbol in new and len(shape) > 1:
            shape[1] = LENGTH + PADDING
        high = 2 if symbol.dtype == "bool" else vocab_size
        values = rng.normal(size=shape) if "float" in symbol.dtype else rng.integers(0, high, shape)
        if symbol in padding:
            values = np.arange(shape[1])[None].repeat(shape[0], axis=0) >= PADDING
        (tokens if symbol in new else constants)[symbol] = ops.convert_to_tensor(values, dtype=symbol.dtype)
    operation = part.call.operation
    weights = [] if not isinstance(operation, keras.layers.Layer) else operation.variables
    drawn = [(w, _draw(w, rng)) for w in weights if "float" in w.dtype]
    with keras.StatelessScope(state_mapping=drawn):
        real = {symbol: x[:, PADDING:] if len(x.shape) > 1 else x for symbol, x in tokens.items()}
        whole = [_numpy(x) for x in part.call.run({**constants, **real})]
        if any(x.ndim < 2 or x.shape[1] != LENGTH for x in whole):
            return MIXES
        for width in (1, WIDTH) if part.reads_positions else (1,):
            problem = _difference(whole, _step_by_step(part, tokens, constants, width))
            if problem:
                return problem + (" of a beam search" if width > 1 else "")
    return None


def _difference(whole, steps):
    """The difference between the outputs for the whole and step by step as text, or None."""
    for x, pieces in zip(whole, steps):
        y = np.concatenate(pieces, axis=1) if all(piece.ndim == x.ndim for piece in pieces) else np.zeros(0)
        if y.shape != x.shape:
            return MIXES
        wrong = np.abs(x - y) > 1e-3 * (np.nanstd(x) + 1e-6)
        wrong = wrong.reshape(*x.shape[:2], -1).any(axis=(0, 2))
        if wrong.any():
            return (
                f"mixes the positions of a sequence: at position {int(wrong.argmax())} of {LENGTH} it returns other "
                "values for a token that follows its cache than for the whole sequence"
            )
    return None


def _step_by_step(part, tokens, constants, width):
    """The outputs of a part for a prompt and for the tokens after it: for each output a list of arrays.

    Each step reads `width` alternatives. One of them is the next token, in a slot that changes from step to step.
    Without alternatives, the part first reads two tokens in order, between padding.
    """
    cut, columns = PADDING + PROMPT, PADDING + PROMPT + (LENGTH - PROMPT) * width
    seen = np.zeros((BATCH, columns), "bool")
    seen[:, PADDING:cut] = True

    def values_at(*slices):
        """The values of the inputs, with the columns of these slices."""
        parts = {s: [x[:, columns] for columns in slices] if len(x.shape) > 1 else x for s, x in tokens.items()}
        return {**constants, **{s: ops.concatenate(x, 1) if isinstance(x, list) else x for s, x in parts.items()}}

    layout, memory, known = PromptLayout(ops.convert_to_tensor(seen[:, :cut]), width), {}, {}
    values = values_at(slice(0, cut))
    part.run(values, layout, memory, known)
    pieces = [[_numpy(values[s])[:, PADDING:]] for s in part.call.outputs]
    begin = 0 if width > 1 or not part.reads_positions else 2
    columns_read = begin + 2 if begin else 1
    memory = part.move(memory, ops.zeros((BATCH,), "int32"), cut + columns_read - 2, columns, width, columns_read)
    if begin:  # the first padding has the column of the prompt's last token, the second the column of the next token
        seen[:, cut : cut + begin] = True
        new = np.tile([False, True, True, False], (BATCH, 1))
        layout = OrderedLayout(*map(ops.convert_to_tensor, (seen, new)), cut - 1, keeps=True)
        values = values_at(slice(0, 1), slice(cut, cut + begin), slice(0, 1))
        part.run(values, layout, memory, known)
        for piece, s in zip(pieces, part.call.outputs):
            piece.append(_numpy(values[s])[:, 1:-1])
    for step in range(begin, LENGTH - PROMPT):
        first, slot = cut + step * width, step % width
        mask = np.repeat(seen[:, None], width, axis=1)
        mask[:, range(width), range(first, first + width)] = True
        seen[:, first + slot] = True
        layout = StepLayout(ops.convert_to_tensor(mask), first, cut)
        indices = [cut + step if i == slot else i for i in range(width)]
        values = values_at(*(slice(i, i + 1) for i in indices))
        part.run(values, layout, memory, known)
        for piece, s in zip(pieces, part.call.outputs):
            piece.append(_numpy(values[s])[:, slot : slot + 1])
    return pieces


def _draw(weight, rng):
    fan_in = max(1, int(np.prod(weight.shape[:-1])))
    return ops.convert_to_tensor(rng.normal(size=weight.shape) / np.sqrt(fan_in), dtype=weight.dtype)


def _numpy(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))
