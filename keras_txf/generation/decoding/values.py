"""What the interpreter of a graph finds in the graph, and the values that enter it."""

import keras
from keras import ops

from keras_txf.backend.flat_graph import Symbol
from keras_txf.backend.functional_graph import mask_of, set_mask
from keras_txf.checks import short_repr
from keras_txf.layers.base import call_parameters


def logits_of(outputs):
    """The Symbol of the logits among the outputs of a model."""
    logits = outputs.get("logits") if isinstance(outputs, dict) else outputs
    if isinstance(logits, (list, tuple)) and len(logits) == 1:
        [logits] = logits
    if not isinstance(logits, Symbol) or len(logits.shape) != 3:
        raise ValueError(
            "`model` must return logits (batch, length, vocabulary), alone or in a dict as 'logits'; received the "
            f"outputs {short_repr(keras.tree.map_structure(lambda x: x.shape, outputs))}."
        )
    return logits


def needed_calls(calls, symbol):
    """The calls that a Symbol depends on."""
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
    """An input in the type of the model's."""
    x, mask = ops.convert_to_tensor(x), mask_of(x)
    y = ops.copy(ops.cast(x, symbol.dtype))  # not the caller's own tensor: it may get a mask
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
