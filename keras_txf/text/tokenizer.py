"""Tokenizer: the base of all tokenizers, from text of any shape to ids, and from ids to text.

Legend: R texts, N pieces of text, L length in tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import keras

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.shown_options import show_constructor, take_options
from keras_txf.text.lazy_imports import require_tensorflow, tf
from keras_txf.text.ragged import as_ids, as_strings, as_text, flatten, pad, split_at, truncate
from keras_txf.text.vocabulary import Vocabulary

CHOICES = {  # option -> its values
    "special_tokens_in_text": ("escape", "keep"), "padding_side": ("right", "left"),
    "truncation_side": ("right", "left"),
}  # fmt: skip


class TokenizerOptions(LayerOptions, total=False):
    """Options of every tokenizer."""

    length: Annotated[
        int | str | None,
        None,
        'None for ragged ids; "longest" to pad ids to the longest text of the batch; or an integer, to pad or truncate '
        "each text to. Truncation keeps the tokens of `start` and `end`.",
    ]
    start: Annotated[
        str | list[str] | tuple[str, ...] | None,
        None,
        "a special token, or a list of special tokens, before the ids of each text. Calling the tokenizer adds these "
        "tokens, `tokenize` does not.",
    ]
    end: Annotated[str | list[str] | tuple[str, ...] | None, None, "the same, after the ids of each text."]
    special_tokens_in_text: Annotated[
        str,
        "escape",
        '"escape" reads special tokens in a text as ordinary text, so that no user can insert them; "keep" gives each'
        " special token in a text its own id.",
    ]
    padding_side: Annotated[str, "right", '"right" or "left".']
    truncation_side: Annotated[str, "right", '"right" or "left".']
    added_tokens: Annotated[
        list[str] | tuple[str, ...],
        (),
        "list of str, tokens of the vocabulary that get their own id anywhere in a text, like special tokens. They "
        'are text all the same: `detokenize` shows them, and "escape" does not change them.',
    ]


class Tokenizer(keras.layers.Layer):
    """The base of every tokenizer. A subclass implements `_encode`, texts to ids, and `_decode`, ids to texts.

    A tokenizer is a layer: call it on strings, map a `tf.data.Dataset` with it, or make it the first layer of a
    functional model on TensorFlow. The model's files then hold the vocabulary.

    Args:
        vocabulary: list of str, every token in the order of the ids.
        special_tokens: list of str, the special tokens, which ordinary text never becomes.
        pad_token, unk_token: str or None. The token of padding must be special.
        {options}

    Raises:
        ValueError: a special token that is not in the vocabulary, a token of padding that is not special, `length`
            without a token of padding or without room for `start` and `end`, an option out of its range.
    """

    _finds_special_tokens = False  # whether `_encode` and `_with_offsets` find special tokens

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        show_constructor(cls)

    def __init__(
        self,
        vocabulary: Sequence[str],
        special_tokens: Sequence[str],
        pad_token: str | None = None,
        unk_token: str | None = None,
        **options: Unpack[TokenizerOptions],
    ):
        own = take_options(Tokenizer, options)
        super().__init__(**options)
        self._folds_case = False  # whether added tokens match capital and small letters
        self._convert_input_args = False  # strings are not tensors on every backend
        self._allow_non_tensor_positional_args = True
        self._vocabulary = Vocabulary(vocabulary)
        self._special_ids = tuple(self._ids_of("special_tokens", special_tokens).items())
        self.added_tokens = self._ids_of("added_tokens", own["added_tokens"])
        both = sorted(self.special_tokens.keys() & self.added_tokens)
        if both:
            raise ValueError(f"`added_tokens` must not be special; received the special {short_repr(both)}.")
        self.pad_token, self.unk_token = pad_token, unk_token
        self._special("pad_token", [pad_token] if pad_token is not None else [])
        self.pad_id = checks.optional(self._vocabulary.id_of, "pad_token", pad_token)
        self.unk_id = checks.optional(self._vocabulary.id_of, "unk_token", unk_token)
        length = own["length"]
        is_number = length is not None and not (isinstance(length, str) and length == "longest")
        self.length = checks.size("length", length) if is_number else length
        self.start = self._special("start", own["start"])
        self.end = self._special("end", own["end"])
        for name, choices in CHOICES.items():
            setattr(self, name, checks.one_of(name, own[name], choices))
        if length is not None and self.pad_id is None:
            raise ValueError(
                f"`length` needs a token of padding; received length={short_repr(length)} and pad_token=None."
            )
        if is_number and length < len(self.start) + len(self.end):
            raise ValueError(
                f"`length` must leave room for `start` and `end`; received length={length}, "
                f"start={list(self.start)} and end={list(self.end)}."
            )
        self.built = True

    def _ids_of(self, name, tokens):
        return {token: self._vocabulary.id_of(name, token) for token in checks.strings(name, tokens)}

    def _special(self, name, tokens):
        tokens = tokens if isinstance(tokens, (list, tuple)) else [] if tokens is None else [tokens]
        for token in tokens:
            if not isinstance(token, str) or token not in self.special_tokens:
                known = sorted(self.special_tokens)
                raise bad_argument(name, f"be one of `special_tokens`, {short_repr(known)}", token)
        return tuple(tokens)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, V."""
        return len(self._vocabulary)

    @property
    def _max_length(self):
        """`length` if it is a number, else None."""
        return self.length if isinstance(self.length, int) else None

    @property
    def special_tokens(self):
        """A dict of the special tokens and their ids."""
        return dict(self._special_ids)

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token. Raises ValueError if the vocabulary lacks it."""
        return self._vocabulary.id_of("token", token)

    def id_to_token(self, id: int) -> str:
        """Returns the token of an id. Raises ValueError if the vocabulary lacks it."""
        return self._vocabulary.token_of("id", id)

    def tokenize(self, text: Any) -> Any:
        """Converts text to ids, without `start`, `end`, padding and truncation.

        Args:
            text: str, nested lists of str, or a string tensor, dense or ragged.

        Returns:
            int32 RaggedTensor (..., L); for a single string a tensor (L,).

        Raises:
            ValueError: a value that is not text.
        """
        texts, restore = flatten(as_text(text))
        return restore(self._rows(texts))

    def tokenize_with_offsets(self, texts: Sequence[str]) -> list:
        """Converts texts to ids, and to the offsets of the tokens in the texts.

        Use it to find the tokens of a part of a text, such as an answer or a name, or the text of some tokens.

        Args:
            texts: list of N strings.

        Returns:
            A list of N pairs of NumPy arrays: the ids of `tokenize`, int32 (L,), and the offsets, int32 (L, 2), of each
            token's first character and of the character after its last. A blank that is part of a token is one of its
            characters. Several tokens of one character have the offsets of this character; of SentencePiece's bytes the
            last one alone.

        Raises:
            ValueError: a value that is not a list of strings; special_tokens_in_text="keep" or `added_tokens` with a
                tokenizer other than `BytePairTokenizer`.

        Example:

        >>> tokenizer = txf.text.ByteTokenizer()
        >>> [(ids, offsets)] = tokenizer.tokenize_with_offsets(["né"])
        >>> ids.tolist(), offsets.tolist()
        ([113, 198, 172], [[0, 1], [1, 2], [1, 2]])
        """
        texts = checks.strings("texts", texts)
        as_text(texts, "`texts`")
        if self.special_tokens_in_text == "keep" and not self._finds_special_tokens:
            must = 'be "escape" for offsets of a tokenizer other than BytePairTokenizer'
            raise bad_argument("special_tokens_in_text", must, "keep")
        if self.added_tokens:
            must = "be none for offsets of a tokenizer other than BytePairTokenizer"
            raise bad_argument("added_tokens", must, list(self.added_tokens))
        return self._with_offsets(texts) if texts else []

    def __call__(self, *args, **kwargs):
        require_tensorflow()  # here, because Keras adds lines to errors in `call`
        return super().__call__(*args, **kwargs)

    def call(self, inputs):
        """Converts strings (...) to ids, int32 (..., `length`), ragged where `length` is None.

        Outside of a graph, dense ids are a tensor of Keras' backend.
        """
        texts, restore = flatten(as_text(inputs))
        rows = add_start_and_end(self, self._rows(texts), self._max_length)
        if self.length is None:
            return restore(rows)
        padded = restore(pad(rows, self._max_length, self.pad_id, self.padding_side))
        for_tensorflow = keras.backend.backend() == "tensorflow" or not tf.executing_eagerly()
        if for_tensorflow or isinstance(padded, tf.RaggedTensor):
            return padded
        return keras.ops.convert_to_tensor(padded.numpy())

    def compute_output_spec(self, inputs):
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype="int32", ragged=self.length is None and len(shape) > 1)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self._max_length)

    def detokenize(self, ids: Any, skip_special_tokens: bool = True) -> Any:
        """Converts ids to text.

        Args:
            ids: int (..., L), nested lists or a tensor, dense or ragged.
            skip_special_tokens: whether to skip special tokens, padding included. The unknown token stands for text: it
                stays unless it is also the padding, `start` or `end`.

        Returns:
            A str or nested lists of str; inside a TensorFlow graph a string tensor (...). U+FFFD replaces bytes that
            are not UTF-8.

        Raises:
            ValueError: a value that is not ids, or ids outside of the vocabulary.
        """
        rows, restore = flatten(as_ids(ids, self.vocab_size), inner=1)
        if checks.boolean("skip_special_tokens", skip_special_tokens):
            added = {self.pad_token, *self.start, *self.end}
            skipped = [id for token, id in self._special_ids if token != self.unk_token or token in added]
            if skipped:
                hidden = tf.scatter_nd([[id] for id in skipped], [True] * len(skipped), [self.vocab_size])
                rows = tf.ragged.boolean_mask(rows, ~tf.gather(hidden, rows))
        text = restore(self._decode(rows))
        return as_strings(text) if tf.executing_eagerly() else text

    def _rows(self, texts):
        """string (R,) -> int32 RaggedTensor (R, L)."""
        special = self.special_tokens if self.special_tokens_in_text == "keep" else {}
        whole = special | self.added_tokens
        if not whole:
            return self._encode(texts)
        pieces, whole_ids, splits = split_at(texts, whole, self.added_tokens if self._folds_case else ())
        ids = tf.concat([self._encode(pieces, splits), whole_ids], axis=1)
        return tf.RaggedTensor.from_row_splits(ids, splits, validate=False).merge_dims(1, 2)

    def _encode(self, texts, splits=None):
        """Converts ordinary texts (R,) to ids, int32 RaggedTensor (R, L).

        With `splits`, int64, the texts are the pieces between special and added tokens. The pieces from one split to
        the next belong to one text.
        """
        raise NotImplementedError

    def _with_offsets(self, texts):
        """Converts a list of ordinary texts to a list of (ids, offsets), see `tokenize_with_offsets`."""
        raise NotImplementedError

    def _decode(self, rows):
        """Converts ids, RaggedTensor (R, L), special tokens included, to texts, string (R,)."""
        raise NotImplementedError

    def get_config(self):
        names = ("length", "special_tokens_in_text", "padding_side", "truncation_side")
        options = {name: getattr(self, name) for name in names}
        lists = {name: list(getattr(self, name)) for name in ("start", "end", "added_tokens")}
        return {**super().get_config(), **options, **lists}


show_constructor(Tokenizer)


def add_start_and_end(tokenizer, rows, max_length=None, fill=None):
    """Truncates ragged rows (R, L), and puts `start` before and `end` after each of them.

    With `fill`, this value replaces each token of `start` and `end`, for rows of labels or weights.
    """
    if max_length is not None:
        rows = truncate(rows, max_length - len(tokenizer.start) - len(tokenizer.end), tokenizer.truncation_side)
    if not tokenizer.start + tokenizer.end:
        return rows
    start, end = (repeat_tokens(tokenizer, tokens, rows, fill) for tokens in (tokenizer.start, tokenizer.end))
    return tf.concat([start, rows, end], axis=1)


def repeat_tokens(tokenizer, tokens, rows, fill=None):
    """Returns the ids of special tokens, or as many values `fill`, for each of the rows: (R, number of tokens)."""
    values = [tokenizer.special_tokens[token] if fill is None else fill for token in tokens]
    return tf.repeat(tf.constant([values], rows.dtype, [1, len(tokens)]), rows.nrows(), axis=0)
