"""Checks the prompts, limits, stops and stop strings of `generate` before anything is compiled.

A row of `generate` ends when its text holds a stop string, whatever tokens the string is split into.

Legend: R rows, n new tokens so far.
"""

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr

REPLACEMENT = "\ufffd"  # the character that invalid bytes decode to


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


def new_token_limits(lengths, max_new_tokens, max_length, model_length, may_be_zero=False):
    """Returns how many tokens may follow each prompt.

    Args:
        lengths: numbers of tokens of the prompts.
        max_new_tokens: the most new tokens of each prompt, or None.
        max_length: the most tokens of a prompt and its answer, or None.
        model_length: the number of positions of the model, or None.
        may_be_zero: whether `max_new_tokens` may be 0, to read the prompts alone.
    """
    longest = max(lengths)
    if max_new_tokens is None and max_length is None:
        max_new_tokens = 64 if model_length is None else max(1, min(64, model_length - longest))
    checks.optional(checks.count if may_be_zero else checks.positive_integer, "max_new_tokens", max_new_tokens)
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


class StopStrings:
    """Finds stop strings in the texts of rows.

    The tokenizer decodes the texts outside the compiled loop, so its rules for blanks, bytes and special tokens hold. A
    row ends with the first token after which its text holds a stop string.

    Args:
        strings: the stop strings, a list.
        texts: function of a list of row numbers and a list of their new ids that returns the texts of the new ids.
    """

    def __init__(self, strings, texts):
        self.strings, self.texts = strings, texts

    def ends(self, tokens, seen):
        """The number of tokens of each row that ends among the latest tokens, and 0 for other rows, int (R,).

        Args:
            tokens: int (R, n), -1 after the end.
            seen: how many columns an earlier call has checked.
        """
        counts = (tokens >= 0).sum(axis=1)
        ends = np.zeros(len(tokens), int)
        rows = [row for row in range(len(tokens)) if counts[row] > seen]
        candidates = [
            (row, count)
            for row, stops in zip(rows, self._hold_stops(tokens, [(row, counts[row]) for row in rows]))
            if stops
            for count in range(counts[row], seen, -1)
        ]
        for (row, count), stops in zip(candidates, self._hold_stops(tokens, candidates)):
            ends[row] = count if stops else ends[row]  # the smallest count comes last
        return ends

    def _hold_stops(self, tokens, starts):
        """Whether the text of the first tokens of a row holds a stop string, for pairs of row and number of tokens."""
        if not starts:
            return []
        texts = self.texts([row for row, _ in starts], [tokens[row, :count].tolist() for row, count in starts])
        return [before_stop(text, self.strings) != text for text in texts]


def before_stop(text, strings):
    """The text before the first stop string."""
    return text[: min((text.find(string) for string in strings if string in text), default=len(text))]


def before_open_stop(text, strings):
    """The text without its longest end that is the start of a stop string."""
    longest = max(map(len, strings), default=1) - 1
    ends = [text[len(text) - length :] for length in range(min(longest, len(text)), 0, -1)]
    return text.removesuffix(next((end for end in ends if any(s.startswith(end) for s in strings)), ""))


def string_list(stop_strings):
    """Stop strings as a list, from one, several or None."""
    strings = [stop_strings] if isinstance(stop_strings, str) else [] if stop_strings is None else stop_strings
    is_list = isinstance(strings, (list, tuple)) and all(isinstance(s, str) and s for s in strings)
    if not is_list or any(REPLACEMENT in s or s.encode("utf-8", "replace").decode() != s for s in strings):
        raise ValueError(
            "`stop_strings` must be a string or a list of strings, none of them empty or with U+FFFD, which stands for "
            f"invalid bytes; received {short_repr(stop_strings)}."
        )
    return list(strings)


def stop_strings_of(stop_strings, tokenizer):
    """The `StopStrings` of the arguments of a model's `generate`, or None.

    Args:
        stop_strings: a string, several, None, or `StopStrings`.
        tokenizer: an object whose `detokenize` turns a list of rows of ids into their texts, a function that turns the
            ids of one row into its text, or None.
    """
    detokenize = getattr(tokenizer, "detokenize", tokenizer)
    if tokenizer is not None and (isinstance(tokenizer, type) or not callable(detokenize)):
        raise ValueError(
            "`tokenizer` must be a tokenizer, or a function of a list of ids that returns a text; received "
            f"{short_repr(tokenizer)}."
        )
    if isinstance(stop_strings, StopStrings):
        return stop_strings
    strings = string_list(stop_strings)
    if not strings:
        return None
    if tokenizer is None:
        raise ValueError("`tokenizer` must be given with `stop_strings`, to read the text; received None.")
    known = getattr(tokenizer, "vocab_size", float("inf"))
    batched = detokenize is not tokenizer  # the tokenizers of `txf.text` take many rows at once

    def texts(_, rows):
        rows = [[token for token in row if token < known] for row in rows]
        decoded = detokenize(rows) if batched else [detokenize(row) for row in rows]
        if not isinstance(decoded, list) or not all(isinstance(text, str) for text in decoded):
            raise ValueError(f"`tokenizer` must return a string for a list of ids; received {short_repr(decoded)}.")
        return decoded

    return StopStrings(strings, texts)
