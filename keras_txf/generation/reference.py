"""The slow reference: run the whole prefix for each token."""

import numpy as np

from keras_txf import checks
from keras_txf.generation.samplers import get_sampler


def generate(next_logits, prompts, max_new_tokens, sampler, stop_ids, pad_id, seed):
    """Appends tokens to each prompt until a stop token or `max_new_tokens`.

    Args:
        next_logits: function of ids (B, T), padded on the right, and lengths (B,): the logits (B, V)
            of the token after each row's last.
        prompts: list of lists of ids, none empty.
        max_new_tokens: at most this many tokens are appended.
        sampler: "greedy", "sampling" or a function, see `samplers`.
        stop_ids: an id or several; a row ends with the first it produces.
        pad_id: what fills a row after its end.
        seed: of the sampler's random numbers; None draws one.

    Returns:
        int32 (B, longest), the prompts with what was appended, and the lengths (B,).
    """
    checks.positive_integer("max_new_tokens", max_new_tokens)
    sampler = get_sampler(sampler)
    stop_ids = [] if stop_ids is None else np.atleast_1d(stop_ids)
    random = np.random.default_rng(seed)
    lengths = np.array([len(prompt) for prompt in prompts])
    rows = np.arange(len(prompts))
    ids = np.full((len(prompts), lengths.max() + max_new_tokens), pad_id, "int32")
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    running = np.full(len(prompts), True)
    for _ in range(max_new_tokens):
        tokens = sampler(next_logits(ids, lengths).astype("float64"), random)
        ids[rows[running], lengths[running]] = tokens[running]
        lengths[running] += 1
        running &= ~np.isin(tokens, stop_ids)
        if not running.any():
            break
    return ids[:, : lengths.max()], lengths


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
