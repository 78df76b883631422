"""The mapping of the columns of a text to the slots of a cache.

Legend: see `caches`.
"""

from keras import ops

from keras_txf.ops.masks import combine_masks, first_real, put_slice
from keras_txf.ops.tensors import at_least


def put_columns(cache, new, slot):
    """Keys or values (B, K, C, ...) with new ones (B, K, T, ...), see `StepLayout`.

    Args:
        slot: the slot of the first new token, int scalar; or for each slot the number of its new token, int (B, C),
            with -1 for a slot that keeps its token.
    """
    if len(ops.shape(slot)) == 0:
        return put_slice(cache, new, slot, 2)
    numbers = slot[:, None, :, None]
    tokens = ops.take_along_axis(ops.cast(new, cache.dtype), at_least(numbers, 0), axis=2)
    return ops.where(numbers >= 0, tokens, cache)


def prompt_mask(real, keys, window):
    """The attention mask of the P tokens of a prompt, bool (B, 1, P, P), and their positions, int (B, P).

    Args:
        real: bool (B, P), True at the real tokens.
        keys: bool (B, P), True at the tokens to which others may attend.
    """
    columns = ops.arange(ops.shape(real)[1], dtype="int32")
    return combine_masks(columns, columns, True, window, keys), positions_of(real, columns)


def prompt_slots(window, width, attention_mask, length):
    """The column of the prompt for each slot, (C,); negative for an empty slot."""
    return columns_in_slots(length - 1, cache_slots(window, width, ops.shape(attention_mask)[1]))


def cache_slots(window, width, columns, tokens=1):
    """The number of slots of a cache for `columns` columns, if a step reads `tokens` tokens in order."""
    if window is None:
        return columns
    slots = window * width + tokens - 1
    if isinstance(columns, int):
        return min(slots, columns)
    return ops.minimum(slots, columns) if ops.is_tensor(columns) else slots  # unknown while JAX infers shapes


def positions_of(real, columns):
    """The positions (B, C) of columns, (C,) or (B, C): each row counts from its first real token."""
    return at_least((columns if len(columns.shape) == 2 else columns[None]) - first_real(real)[:, None], 0)


def columns_in_slots(last, slots):
    """The latest column up to `last` in each slot, (C,); negative for an empty slot."""
    # The operand of `%` is never negative: ONNX rounds negative numbers the other way.
    return last - (last + slots - ops.arange(slots, dtype="int32")) % slots
