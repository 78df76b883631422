"""Checks the prompts, limits and stops of `generate` before anything is compiled."""

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr


def prompt_lists(name, prompts, pad_id, vocab_size):
    """Returns prompts as lists of ids without padding, from lists, arrays or tensors, ragged or padded on any side."""
    if hasattr(prompts, "to_list"):  # a tf.RaggedTensor
        prompts = prompts.to_list()
    if not isinstance(prompts, (list, tuple)):
        prompts = _as_array(name, prompts)
        if not prompts.ndim:
            raise ValueError(f"`{name}` must hold sequences of ids; received {short_repr(prompts)}.")
    rows = [_as_array(name, row) for row in prompts]
    if not rows:
        raise ValueError(f"`{name}` must hold at least one sequence; received none.")
    for row in rows:
        if row.ndim != 1:
            raise ValueError(f"`{name}` must hold sequences of ids; received one of shape {row.shape}.")
    for row in rows:
        if row.size and not np.issubdtype(row.dtype, np.integer):
            raise ValueError(f"`{name}` must hold integers; received {row.dtype}.")
    rows = [row if pad_id is None else row[row != pad_id] for row in rows]
    for row in rows:
        checks.ids_in_vocabulary(name, row, vocab_size)
    return [row.astype(int).tolist() for row in rows]


def start_list(start_id, vocab_size):
    """Returns the first tokens of prompts or answers as a list, from one id or several."""
    several = isinstance(start_id, (list, tuple)) and len(start_id) > 0
    return [checks.id_below("start_id", token, vocab_size) for token in (start_id if several else [start_id])]


def stop_lists(stop_ids, stop_sequences, vocab_size):
    """Returns the stops as lists of ids. Raises ValueError for ids outside the vocabulary."""
    ids = np.atleast_1d(_as_array("stop_ids", [] if stop_ids is None else stop_ids))
    if ids.size and (ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"`stop_ids` must be a token id or several; received {short_repr(stop_ids)}.")
    checks.ids_in_vocabulary("stop_ids", ids, vocab_size)
    is_empty = stop_sequences is None or (isinstance(stop_sequences, (list, tuple)) and not stop_sequences)
    sequences = [] if is_empty else prompt_lists("stop_sequences", stop_sequences, None, vocab_size)
    if not all(sequences):
        raise ValueError(
            f"`stop_sequences` must hold sequences of at least one id; received {short_repr(stop_sequences)}."
        )
    return [[token] for token in ids.tolist()] + sequences


def _as_array(name, x):
    """A NumPy array of lists, arrays or tensors."""
    if ops.is_tensor(x):
        return ops.convert_to_numpy(x)  # also from a GPU, where `np.asarray` fails
    try:
        return np.asarray(x)
    except (TypeError, ValueError, OverflowError):  # nested lists of unequal lengths
        raise ValueError(f"`{name}` must hold token ids; received {short_repr(x)}.") from None


def new_token_limits(lengths, max_new_tokens, max_length, model_length):
    """Returns how many tokens may follow each prompt.

    Args:
        lengths: numbers of tokens of the prompts.
        max_new_tokens: the most new tokens of each prompt, or None.
        max_length: the most tokens of a prompt and its answer, or None.
        model_length: the number of positions of the model, or None.
    """
    longest = max(lengths)
    if max_new_tokens is None and max_length is None:
        max_new_tokens = 64 if model_length is None else max(1, min(64, model_length - longest))
    checks.optional(checks.positive_integer, "max_new_tokens", max_new_tokens)
    checks.optional(checks.positive_integer, "max_length", max_length)
    if max_length is not None and longest >= max_length:
        raise ValueError(
            f"`max_length` must exceed the prompts' lengths; received {max_length} and a prompt of {longest} tokens."
        )
    limits = [
        min(bound for bound in (max_new_tokens, max_length and max_length - length) if bound is not None)
        for length in lengths
    ]
    if longest + max(limits) >= 2**31:
        raise ValueError(
            f"`max_new_tokens` and `max_length` must let a text be shorter than 2**31 tokens; received "
            f"max_new_tokens={short_repr(max_new_tokens)}, max_length={short_repr(max_length)}."
        )
    total = max(length + limit for length, limit in zip(lengths, limits))
    if model_length is not None and total > model_length:
        raise ValueError(
            f"The model has max_length={model_length} positions; received {longest} prompt tokens "
            f"and max_new_tokens={max_new_tokens}, max_length={max_length}."
        )
    return limits


def check_switch(switch_length, shortest, longest, new):
    """Raises ValueError if the rotary frequencies of earlier tokens would change during an answer.

    Args:
        switch_length: the number of tokens beyond which all positions have other frequencies, or None.
        shortest, longest: the fewest and the most tokens that the longest prompt of a batch may have.
        new: the most tokens that follow the prompt; the model does not read the last one.
    """
    if switch_length is not None and shortest <= switch_length < longest + new - 1:
        room = switch_length + 1 - longest
        advice = f" `max_new_tokens={room}` ends there; pass the result as the prompt of a second call." * (room > 0)
        raise ValueError(
            f"The rotary positions of type 'longrope' rotate all tokens by other angles beyond {switch_length} tokens, "
            "and the keys in the cache would keep the old angles: a prompt and its answer must lie on one side. "
            f"Received prompts of up to {longest} tokens and max_new_tokens={new}.{advice}"
        )
