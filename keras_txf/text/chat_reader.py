"""ChatReader: the tokens of a conversation, in which no message can slip in a special token."""

import re

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import tf
from keras_txf.text.shapes import as_text

GUARD = "\ufdd2"  # within a special token of a message; Unicode keeps it for use within a program


class ChatReader:
    """Tokenizes what a chat template rendered, without the tokenizer's `start` and `end`, which the template writes.

    The special tokens of the template are whole. Those of messages are text like any other where the tokenizer has
    `special_tokens_in_text="escape"`: `guard` breaks them up before the template sees them. A `BytePairTokenizer` then
    takes the breaks out; of others the text on both sides of a break is tokenized apart, and a message that holds a
    special token of one letter is refused.

    Args:
        tokenizer: a tokenizer.
        pad_id: the id that a model takes for padding, or None.
    """

    def __init__(self, tokenizer, pad_id=None):
        whole = {"length": None, "start": [], "end": [], "special_tokens_in_text": "keep"}
        self.tokenizer = tokenizer.from_config({**tokenizer.get_config(), **whole})
        self.pad_id = pad_id
        escapes = tokenizer.special_tokens_in_text == "escape"
        self._splits = not (escapes and tokenizer._finds_special_tokens)
        if not self._splits:
            self.tokenizer.keep_special_tokens_without(GUARD)
        tokens = sorted(tokenizer.special_tokens if escapes else [], key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None

    def __call__(self, texts):
        """Returns the ids of texts (C,): int32 RaggedTensor (C, L)."""
        texts = as_text(texts)
        if not self._splits:
            return self.tokenizer.tokenize(texts)
        return self.tokenizer.tokenize(tf.strings.split(texts, GUARD)).merge_dims(1, 2)

    def guard(self, value):
        """Breaks up the special tokens in the strings of messages, or of other variables of a template."""
        if isinstance(value, str):
            whole = value.replace(GUARD, "")
            return whole if self._pattern is None else self._pattern.sub(self._broken, whole)
        if isinstance(value, dict):
            return {key: self.guard(inner) for key, inner in value.items()}
        return [self.guard(inner) for inner in value] if isinstance(value, list) else value

    def _broken(self, found):
        token = found[0]
        if self._splits and len(token) == 1:
            raise ValueError(
                f"`messages` must not hold {short_repr(token)}, a special token of one letter, which no tokenizer but "
                f"BytePairTokenizer breaks up; received {short_repr(found.string)}."
            )
        return token[:1] + GUARD + token[1:]
