"""ByteTokenizer and CharacterTokenizer: a token for each byte, or for each character."""

import collections
import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Self, Unpack

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import shows_options, take_options
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import from_bytes, pairs
from keras_txf.text.tokenizer import Tokenizer, TokenizerOptions
from keras_txf.text.vocabulary import first_tokens, lines

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@register
class ByteTokenizer(Tokenizer):
    """Makes a token of each byte of the text in UTF-8: nothing to train, no unknown token.

    For many languages, noisy text and small vocabularies. Sequences are about four times as long as with subwords.

    Args:
        special_tokens: list of str, the first ids, which the bytes follow. With the default, ByT5's, the id of a byte
            is its value plus 3.
        extra_tokens: list of str, special tokens whose ids follow the ids of the bytes.
        pad_token: the special token of padding, or None.
        {options}

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ValueError: special tokens that occur twice or are names of bytes such as `<0x41>`; see also `Tokenizer`.

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
        unk_token = "<unk>" if "<unk>" in first else None  # no text becomes this token
        super().__init__(first + BYTE_TOKENS + last, first + last, pad_token, unk_token, **options)
        self._first, self._last = tuple(first), tuple(last)

    def _encode(self, texts, splits=None):
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        ids = tf.cast(values, tf.int32) + len(self._first)
        return tf.RaggedTensor.from_row_lengths(ids, tf.cast(tf.strings.length(texts), tf.int64), validate=False)

    def _with_offsets(self, texts):
        results = []
        for text in texts:
            values = np.frombuffer(text.encode(), "uint8").astype("int32")
            indices = np.arange(len(values))
            results.append((values + len(self._first), from_bytes(text, indices, indices + 1)))
        return results

    def _decode(self, rows):
        first, last = ([token.encode() for token in tokens] for tokens in (self._first, self._last))
        strings = tf.constant(first + [bytes([byte]) for byte in range(256)] + last)
        return tf.strings.reduce_join(tf.gather(strings, rows), axis=-1)

    def get_config(self):
        own = {"special_tokens": list(self._first), "extra_tokens": list(self._last), "pad_token": self.pad_token}
        return {**super().get_config(), **own}


class CharacterOptions(TokenizerOptions, total=False):
    """Options of `CharacterTokenizer`."""

    pad_token: Annotated[str | None, "[PAD]", "the special token of padding."]
    unk_token: Annotated[str | None, "[UNK]", "the special token of characters that are not in the vocabulary."]


@register
class CharacterTokenizer(Tokenizer):
    """Makes a token of each character (Unicode code point) of the text.

    For small alphabets, such as dates, names and character language models.

    Args:
        vocabulary: list of str, the special tokens and the characters, in the order of their ids.
        special_tokens: list of str, the special tokens of the vocabulary. Every other token must be a single
            character.
        {options}

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged. Bytes that are not UTF-8 count as
            U+FFFD.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ValueError: a token of several characters that is not special; see also `Tokenizer`.

    Example:

    >>> tokenizer = txf.text.CharacterTokenizer.train(["abba"], length=4)
    >>> tokenizer("bad").numpy().tolist()
    [3, 2, 1, 0]
    >>> tokenizer.detokenize([3, 2, 1, 0])
    'ba[UNK]'
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        special_tokens: Sequence[str] = ("[PAD]", "[UNK]"),
        **options: Unpack[CharacterOptions],
    ):
        own = take_options(CharacterTokenizer, options)
        super().__init__(vocabulary, special_tokens, **own, **options)
        self._special("unk_token", [self.unk_token])
        characters = [token for token in self._vocabulary.tokens if token not in self.special_tokens]
        for token in characters:
            if len(token) > 1:
                raise bad_argument("vocabulary", "hold single characters and special tokens", token)
        # The last entry is the id of code points beyond the vocabulary's.
        self._ids = np.full(2 + max(map(ord, characters), default=0), self.unk_id, "int32")
        for character in characters:
            self._ids[ord(character)] = self.token_to_id(character)

    @classmethod
    @shows_options(defaults="class")
    def train(
        cls,
        source: str | os.PathLike | Iterable[str | os.PathLike],
        vocab_size: int | None = None,
        special_tokens: Sequence[str] = ("[PAD]", "[UNK]"),
        verbose: int | str = "auto",
        **options: Unpack[CharacterOptions],
    ) -> Self:
        """Makes the tokenizer of the characters of a text, the most frequent first.

        Args:
            source: path of a text file in UTF-8, or a list of paths; the ends of lines are characters too. Or an
                iterable of strings.
            vocab_size: the number of tokens, special tokens included; default all characters of the text.
            special_tokens: the first tokens.
            verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.
            {options}

        Raises:
            ValueError: an empty source, a wrong encoding, a `vocab_size` too small for the special tokens.
        """
        special_tokens = first_tokens(special_tokens)
        vocab_size = checks.optional(checks.positive_integer, "vocab_size", vocab_size)
        if vocab_size is not None and vocab_size <= len(special_tokens):
            raise bad_argument("vocab_size", f"be more than the {len(special_tokens)} special tokens", vocab_size)
        counts = collections.Counter()
        for line in lines(source, keep_ends=True, verbose=verbose):
            counts.update(line)
        frequent = sorted(counts, key=lambda character: (-counts[character], character))
        vocabulary = special_tokens + [character for character in frequent if character not in special_tokens]
        return cls(vocabulary[:vocab_size], special_tokens, **options)

    def _encode(self, texts, splits=None):
        codes = tf.strings.unicode_decode(texts, "UTF-8")
        return codes.with_flat_values(tf.gather(self._ids, tf.minimum(codes.flat_values, len(self._ids) - 1)))

    def _with_offsets(self, texts):
        results = []
        for text in texts:
            codes = np.array([ord(character) for character in text], "int64")
            indices = np.arange(len(text))
            results.append((self._ids[np.minimum(codes, len(self._ids) - 1)], pairs(indices, indices + 1)))
        return results

    def _decode(self, rows):
        return tf.strings.reduce_join(tf.gather(tf.constant(self._vocabulary.tokens), rows), axis=-1)

    def get_config(self):
        own = {"vocabulary": list(self._vocabulary.tokens), "special_tokens": list(self.special_tokens)}
        return {**super().get_config(), **own, "pad_token": self.pad_token, "unk_token": self.unk_token}
