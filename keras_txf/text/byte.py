"""ByteTokenizer: the bytes of UTF-8."""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from keras_txf import checks
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import shows_options
from keras_txf.text.lazy_imports import tf
from keras_txf.text.offsets import from_bytes
from keras_txf.text.option_tables import TokenizerOptions
from keras_txf.text.tokenizer import Tokenizer

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@register
@shows_options
class ByteTokenizer(Tokenizer):
    """Makes a token of each byte of the text in UTF-8: nothing to train, no unknown token.

    For many languages, noisy text, and small vocabularies. Sequences are about four times as long as with subwords.

    Args:
        special_tokens: list of str, the first ids; the bytes follow. By default those of ByT5, so that the id of a byte
            is its value plus 3.
        extra_tokens: list of str, special tokens whose ids follow those of the bytes.
        pad_token: the special token of padding, or None.
        {options}

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ValueError: special tokens that come twice or are names of bytes such as `<0x41>`; see also `Tokenizer`.

    Reference:
        [ByT5](https://arxiv.org/abs/2105.13626).

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(end="</s>")
    >>> tokenizer("né").numpy().tolist()
    [113, 198, 172, 1]
    >>> tokenizer.detokenize([113, 198, 172, 1, 0, 0])
    'né'
    """

    def __init__(
        self,
        special_tokens: Sequence[str] = ("<pad>", "</s>", "<unk>"),
        extra_tokens: Sequence[str] = (),
        pad_token: str | None = "<pad>",
        **options: Unpack[TokenizerOptions],
    ):
        first, last = checks.strings("special_tokens", special_tokens), checks.strings("extra_tokens", extra_tokens)
        unk_token = "<unk>" if "<unk>" in first else None  # no text has this token
        super().__init__(first + BYTE_TOKENS + last, first + last, pad_token, unk_token, **options)
        self._first, self._last = tuple(first), tuple(last)

    def _encode(self, texts, splits=None):
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        ids = tf.cast(values, tf.int32) + len(self._first)
        return tf.RaggedTensor.from_row_lengths(ids, tf.cast(tf.strings.length(texts), tf.int64), validate=False)

    def _with_offsets(self, texts):
        found = []
        for text in texts:
            values = np.frombuffer(text.encode(), "uint8").astype("int32")
            places = np.arange(len(values))
            found.append((values + len(self._first), from_bytes(text, places, places + 1)))
        return found

    def _decode(self, rows):
        first, last = ([token.encode() for token in tokens] for tokens in (self._first, self._last))
        strings = tf.constant(first + [bytes([byte]) for byte in range(256)] + last)
        return tf.strings.reduce_join(tf.gather(strings, rows), axis=-1)

    def get_config(self):
        own = {"special_tokens": list(self._first), "extra_tokens": list(self._last), "pad_token": self.pad_token}
        return {**super().get_config(), **own}
