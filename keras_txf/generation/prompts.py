"""What `generate` takes: prompts and stop ids, checked before anything is compiled."""

import numpy as np

from keras_txf import checks


def prompt_lists(name, prompts, pad_id, vocab_size):
    """Prompts as lists of ids without padding, from lists, arrays or tensors, padded on either side."""
    if not isinstance(prompts, (list, tuple)):
        prompts = np.asarray(prompts)
        if not prompts.ndim:
            raise ValueError(f"`{name}` must hold sequences of ids; received {prompts}.")
    rows = [np.asarray(row) for row in prompts]
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


def check_stop_ids(stop_ids, vocab_size):
    """Refuses what can never be produced."""
    ids = np.atleast_1d([] if stop_ids is None else stop_ids)
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"`stop_ids` must be a token id or several; received {stop_ids!r}.")
    checks.ids_in_vocabulary("stop_ids", ids, vocab_size)
