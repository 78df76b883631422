"""Stop strings: a row of `generate` ends when its text holds one, whatever tokens the string is split into.

Legend: R rows, n new tokens so far.
"""

import numpy as np

from keras_txf.checks import short_repr

REPLACEMENT = "\ufffd"  # the character that invalid bytes decode to


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
