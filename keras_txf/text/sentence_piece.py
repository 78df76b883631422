"""SentencePieceTokenizer: unigram and BPE models, such as T5's and Llama's."""

import base64
import binascii
import functools
import io
import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Self, Unpack

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import shows_options, take_options
from keras_txf.text.lazy_imports import require_tensorflow_text, sentencepiece, tf, tf_text
from keras_txf.text.ragged import from_bytes, marked
from keras_txf.text.sentence_piece_model import AS_IT_IS, WITH_PREFIX, WITHOUT_PREFIX, PieceTable, read_model
from keras_txf.text.tokenizer import Tokenizer, TokenizerOptions
from keras_txf.text.vocabulary import as_list, first_tokens, from_files, lines, read_bytes

NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")


class SentencePieceOptions(TokenizerOptions, total=False):
    """Options of `SentencePieceTokenizer`."""

    extra_tokens: Annotated[
        list[str] | tuple[str, ...],
        (),
        "list of str, tokens whose ids follow the model's ids, such as T5's `<extra_id_99>`, ..., `<extra_id_0>`. "
        "Extra tokens are special, unless they are among the `added_tokens`.",
    ]
    prefix_space: Annotated[
        str | None,
        None,
        'where to add a space: "first", before the first word of a text; "always", after special tokens too; "never".'
        ' Default "always" or "never", as in the model. "always" is `legacy=True` of Hugging Face\'s T5 and Llama, '
        '"first" is `legacy=False`.',
    ]
    pad_token: Annotated[
        str | None,
        None,
        "special token of padding; default `<pad>` if the model has it, else None. A model without a token of "
        "padding, such as Llama's, can pad with any special token.",
    ]


@register
class SentencePieceTokenizer(Tokenizer):
    """Splits text into the pieces of a SentencePiece model, spaces included: the ids of the package `sentencepiece`.

    For T5, Llama 1 and 2, ALBERT, XLM-RoBERTa and others whose vocabulary is a `.model` file. Unlike WordPiece, it
    restores the text from the ids, except for the changes of the model's own normalisation.

    Args:
        model: bytes of the model file, or str, the bytes in base64. `from_file` reads a file.
        vocabulary: list of str, the tokens in the order of their ids, if another file has the ids, such as Marian's
            `vocab.json`. Pieces of the model that the list lacks are unknown. A code at the beginning of a text, such
            as `>>fr<<`, is one token. None: the ids of the model.
        {options}

    The special tokens are the control symbols of the model, the unknown token and the extra tokens. A user-defined
    symbol of the model is one token in any text.

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ValueError: bytes that are not a SentencePiece model, extra tokens that the model has already; see also
            `Tokenizer`.

    Reference:
        [SentencePiece](https://arxiv.org/abs/1808.06226),
        [Subword Regularization](https://arxiv.org/abs/1804.10959) for unigram.

    Example:

    >>> tokenizer = txf.text.SentencePieceTokenizer.train(["a dog sees a dog", "a cat"], vocab_size=18, end="</s>")
    >>> ids = tokenizer(["a dog", "a cat sees"])
    >>> tokenizer.detokenize(ids)
    ['a dog', 'a cat sees']
    """

    def __init__(
        self, model: bytes | str, vocabulary: Sequence[str] | None = None, **options: Unpack[SentencePieceOptions]
    ):
        chosen = take_options(SentencePieceTokenizer, options)
        extra_tokens, prefix_space, pad_token = map(chosen.pop, ("extra_tokens", "prefix_space", "pad_token"))
        added_tokens = checks.strings("added_tokens", chosen["added_tokens"])
        model = as_bytes(model)
        parsed = read_model(model)
        extra_tokens = [extra_tokens] if isinstance(extra_tokens, str) else checks.strings("extra_tokens", extra_tokens)
        own = parsed.pieces if vocabulary is None else checks.strings("vocabulary", as_list(vocabulary))
        special_tokens = [*parsed.control, parsed.unk_token, *extra_tokens]
        if vocabulary is not None:
            special_tokens = [token for token in (*special_tokens, pad_token) if token in {*own, *extra_tokens}]
        if pad_token is None and "<pad>" in special_tokens:
            pad_token = "<pad>"
        special_tokens = [token for token in special_tokens if token not in added_tokens]
        super().__init__(own + extra_tokens, special_tokens, pad_token, parsed.unk_token, **chosen, **options)
        default = "always" if parsed.adds_prefix else "never"
        self.prefix_space = checks.one_of(
            "prefix_space", default if prefix_space is None else prefix_space, ("always", "first", "never")
        )
        self._model = model
        self._removes_spaces = parsed.removes_spaces
        self._extra_tokens = tuple(extra_tokens)
        self._table = None if vocabulary is None else PieceTable(parsed, self._vocabulary, self.special_tokens)
        try:
            with tf.init_scope():
                self._kernel(WITH_PREFIX).tokenize(["a"])
        except tf.errors.OpError as error:
            raise ValueError(
                f"`model` must be a SentencePiece model; received bytes that do not load: {short_repr(str(error))}."
            ) from None

    @classmethod
    @shows_options(defaults="class")
    def from_file(
        cls, path: str | os.PathLike, vocabulary: Sequence[str] | None = None, **options: Unpack[SentencePieceOptions]
    ) -> Self:
        """Makes the tokenizer of a model file, such as `spiece.model` or `tokenizer.model`.

        Args:
            path: the file.
            vocabulary: see `SentencePieceTokenizer`.
            {options}

        Raises:
            ValueError: a file that is missing, empty or not a SentencePiece model.
        """
        return from_files(functools.partial(cls, read_bytes("path", path), vocabulary), [path], {}, options)

    @classmethod
    @shows_options(defaults="class")
    def train(
        cls,
        source: str | os.PathLike | Iterable[str | os.PathLike],
        vocab_size: int,
        algorithm: str = "unigram",
        special_tokens: Sequence[str] = ("<pad>", "<unk>", "<s>", "</s>"),
        byte_fallback: bool = False,
        normalization: str = "nmt_nfkc",
        character_coverage: float = 0.9995,
        verbose: int | str = "auto",
        **options: Unpack[SentencePieceOptions],
    ) -> Self:
        """Trains a model on text with the package `sentencepiece`, and makes its tokenizer.

        Args:
            source: path of a text file in UTF-8, or a list of paths; or an iterable of strings.
            vocab_size: the number of tokens. With little text "unigram" may find fewer tokens.
            algorithm: "unigram", as for T5, or "bpe", as for Llama.
            special_tokens: the first tokens: padding, unknown, start, end, and any further special tokens.
            byte_fallback: whether characters outside of the vocabulary become bytes instead of the unknown token. The
                bytes take 256 of the tokens.
            normalization: "nmt_nfkc" or "nfkc"; "nmt_nfkc_cf" or "nfkc_cf", which fold case; or "identity", which
                changes no text and no space.
            character_coverage: the share of the text's characters that the vocabulary must have.
            verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.
            {options}

        Raises:
            ImportError: `sentencepiece` is not installed.
            ValueError: an empty source, a wrong encoding, a `vocab_size` that does not fit the text.
        """
        require_tensorflow_text()  # before a long training
        trained = dict(
            vocab_size=checks.size("vocab_size", vocab_size),
            model_type=checks.one_of("algorithm", algorithm, ("unigram", "bpe")),
            byte_fallback=checks.boolean("byte_fallback", byte_fallback),
            normalization_rule_name=checks.one_of("normalization", normalization, NORMALIZATIONS),
            remove_extra_whitespaces=normalization != "identity",
            character_coverage=checks.fraction("character_coverage", character_coverage),
            hard_vocab_limit=algorithm == "bpe",
        )
        special_tokens = first_tokens(special_tokens)
        if len(special_tokens) < 4:
            raise bad_argument("special_tokens", "be at least padding, unknown, start and end", special_tokens)
        needed = len(special_tokens) + 256 * byte_fallback
        if vocab_size <= needed:
            raise ValueError(
                f"`vocab_size` must be more than the {needed} tokens that `special_tokens` and `byte_fallback` take; "
                f"received vocab_size={short_repr(vocab_size)} and byte_fallback={byte_fallback}."
            )
        for index, role in enumerate(("pad", "unk", "bos", "eos")):
            trained |= {f"{role}_id": index, f"{role}_piece": special_tokens[index]}
        text, model = list(lines(source, verbose=verbose)), io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(text),
                model_writer=model,
                control_symbols=special_tokens[4:],
                max_sentence_length=1 << 20,
                minloglevel=2,
                **trained,
            )
        except (OSError, RuntimeError) as error:
            reason = str(error).rpartition("] ")[2] or str(error)
            raise ValueError(
                f"`vocab_size` does not fit `source`: sentencepiece cannot learn {vocab_size} tokens: {reason}"
            ) from None
        if options.get("pad_token") is None:
            options["pad_token"] = special_tokens[0]
        return cls(model.getvalue(), **options)

    def _kernel(self, setting):
        """Makes the kernel anew for each call, because `set_random_seed` drops its TensorFlow resource."""
        return tf_text.SentencepieceTokenizer(self._model + setting)

    def _encode(self, texts, splits=None):
        if self.prefix_space == "never":
            return self._ids(WITHOUT_PREFIX, texts)
        if self.prefix_space == "always" or splits is None:
            return self._ids(WITH_PREFIX, texts)
        first = marked(splits, texts)
        with_prefix, without = tf.where(first, texts, ""), tf.where(first, "", texts)  # one of the two is empty
        return tf.concat([self._ids(WITH_PREFIX, with_prefix), self._ids(WITHOUT_PREFIX, without)], axis=1)

    def _ids(self, setting, texts):
        if self._table is None:
            return self._kernel(setting).tokenize(texts)
        return self._table.ids(functools.partial(tf_text.SentencepieceTokenizer, self._model + setting), texts)

    def _with_offsets(self, texts):
        if self._table is not None:
            raise ValueError("`vocabulary` must be None for offsets: they need the model's own ids.")
        kernel = self._kernel(WITHOUT_PREFIX if self.prefix_space == "never" else WITH_PREFIX)
        rows = [part.to_list() for part in kernel.tokenize_with_offsets(texts)]
        return [
            (np.array(ids, "int32"), from_bytes(text, np.array(begins, "int64"), np.array(ends, "int64")))
            for text, ids, begins, ends in zip(texts, *rows)
        ]

    def _decode(self, rows):
        if self._table is not None:
            return self._table.text(rows, self.special_tokens)
        is_special = tf.reduce_any(rows.values[:, None] == self._shown_whole()[0], axis=1)
        return tf.cond(
            tf.reduce_any(is_special), lambda: self._decode_parts(rows, is_special), lambda: self._decode_ordinary(rows)
        )

    def _decode_parts(self, rows, is_special):
        """Decodes special tokens, which the kernels skip, added tokens, and the text in between."""
        ids, tokens = self._shown_whole()
        after_special = tf.concat([[False], is_special], 0)[:-1]
        starts = tf.where(marked(rows.row_splits, rows.values) | is_special | after_special)[:, 0]
        limits = tf.concat([starts, [tf.size(rows.values, tf.int64)]], 0)
        parts = tf.RaggedTensor.from_row_splits(rows.values, limits, validate=False)
        ordinary = tf.ragged.boolean_mask(parts, ~parts.with_values(is_special))
        whole = tf.gather(tokens, tf.argmax(tf.gather(rows.values, starts)[:, None] == ids, axis=1))
        text = self._decode_ordinary(ordinary)
        if self.prefix_space == "first" or self.added_tokens:
            begins = tf.gather(marked(rows.row_splits, rows.values), starts)
            if self.prefix_space == "always":  # also after a special token, but not after an added token
                begins |= ~self._follows_added(rows.values, starts)
            text = tf.where(begins, text, self._kernel(AS_IT_IS).detokenize(ordinary))
        text = tf.where(tf.gather(is_special, starts), whole, text)
        splits = tf.searchsorted(starts, rows.row_splits, out_type=tf.int64)
        return tf.strings.reduce_join(tf.RaggedTensor.from_row_splits(text, splits, validate=False), axis=-1)

    def _follows_added(self, ids, positions):
        """Whether an added token stands before each of the positions."""
        before = tf.gather(ids, tf.maximum(positions - 1, 0))
        return tf.reduce_any(before[:, None] == tf.constant(list(self.added_tokens.values()), "int32"), axis=1)

    def _decode_ordinary(self, rows):
        prefix = self.prefix_space != "never"
        if self._removes_spaces or not prefix:
            return self._kernel(WITH_PREFIX if prefix else WITHOUT_PREFIX).detokenize(rows)
        # The kernel would drop all spaces at the beginning; `sentencepiece` drops only the space that it has added.
        text = self._kernel(AS_IT_IS).detokenize(rows)
        unknown = tf.reduce_any(rows[:, :1] == self.unk_id, axis=1)  # its text is ` ⁇ `
        return tf.where(unknown, text, tf.strings.regex_replace(text, "^ ", ""))

    def _shown_whole(self):
        """Returns the ids and strings of the special tokens, except the unknown token, and of the added tokens."""
        shown = {token: id for token, id in self.special_tokens.items() if token != self.unk_token}
        shown.update(self.added_tokens)
        return tf.constant(list(shown.values()), "int32"), tf.constant(list(shown), "string")

    def get_config(self):
        model, extra = base64.b64encode(self._model).decode(), list(self._extra_tokens)
        tokens = self._vocabulary.tokens[: len(self._vocabulary) - len(extra)]
        own = {"model": model, "vocabulary": None if self._table is None else list(tokens), "extra_tokens": extra}
        return {**super().get_config(), **own, "prefix_space": self.prefix_space, "pad_token": self.pad_token}


def as_bytes(model):
    """Returns the bytes of a model. A configuration holds them in base64."""
    expected = "`model` must be the bytes of a SentencePiece model, or the bytes in base64"
    if isinstance(model, str):
        try:
            return base64.b64decode(model, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{expected} (`from_file` reads a file); received {short_repr(model[:40])}.") from None
    if not isinstance(model, (bytes, bytearray)):
        raise ValueError(f"{expected}; received {short_repr(model)}.")
    return bytes(model)
