"""WordPieceTokenizer: the subwords of BERT."""

import functools
import inspect
import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Self, Unpack

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import default_options, shows_options, take_options
from keras_txf.text import bert
from keras_txf.text.lazy_imports import require_tensorflow_text, tf, tf_text, tokenizers
from keras_txf.text.ragged import pairs
from keras_txf.text.tokenizer import Tokenizer, TokenizerOptions
from keras_txf.text.vocabulary import LARGEST_VOCABULARY, as_list, first_tokens, from_files, lines, read_tokens

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NORMALIZATION = {  # options of the normalization of a text -> check of the value
    "lowercase": checks.boolean, "strip_accents": functools.partial(checks.optional, checks.boolean),
    "split_chinese": checks.boolean, "clean": checks.boolean,
}  # fmt: skip
LONGEST_WORD = 100  # in characters; longer words are unknown
LONGEST_TOKEN = 256  # in bytes, of tensorflow-text


class WordPieceOptions(TokenizerOptions, total=False):
    """Options of `WordPieceTokenizer`."""

    lowercase: Annotated[bool, True, "whether to lower-case text."]
    strip_accents: Annotated[bool | None, None, "whether to drop accents; default, as `lowercase`."]
    split_chinese: Annotated[bool, True, "whether each Chinese character is a word."]
    clean: Annotated[bool, True, "whether control characters are dropped."]
    special_tokens: Annotated[
        list[str] | tuple[str, ...] | None,
        None,
        "list of str, the special tokens; default the tokens `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]` that the"
        " vocabulary has.",
    ]
    pad_token: Annotated[str | None, "[PAD]", "the special token of padding."]
    unk_token: Annotated[
        str | None, "[UNK]", "the special token of unknown words, and of words longer than 100 characters."
    ]


@register
class WordPieceTokenizer(Tokenizer):
    """Splits words into the longest pieces of the vocabulary, with the ids of Hugging Face's BERT tokenizers.

    For BERT and its relatives, such as DistilBERT, ELECTRA and MiniLM. It normalises text first. `detokenize` puts one
    space between words and punctuation marks, and does not restore upper case.

    Args:
        vocabulary: list of str, the tokens in the order of their ids. A token that begins with `##` continues a word.
        {options}

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged. Bytes that are not UTF-8 count as
            U+FFFD.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ValueError: a vocabulary that is empty, has a token twice or lacks a special token; see also `Tokenizer`.

    Reference:
        [BERT](https://arxiv.org/abs/1810.04805); the pieces are found as in
        [Fast WordPiece Tokenization](https://arxiv.org/abs/2012.15524).

    Example:

    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##afford", "##able", "!"]
    >>> tokenizer = txf.text.WordPieceTokenizer(vocabulary, start="[CLS]", end="[SEP]", length=8)
    >>> tokenizer(["Unaffordable!", "Un"]).numpy()
    array([[2, 4, 5, 6, 7, 3, 0, 0],
           [2, 4, 3, 0, 0, 0, 0, 0]], dtype=int32)
    >>> tokenizer.detokenize([2, 4, 5, 6, 7, 3, 0, 0])
    'unaffordable !'
    """

    def __init__(self, vocabulary: Sequence[str], **options: Unpack[WordPieceOptions]):
        vocabulary, own = as_list(vocabulary), take_options(WordPieceTokenizer, options)
        normalization = {name: own.pop(name) for name in NORMALIZATION}
        special_tokens, pad_token, unk_token = map(own.pop, ("special_tokens", "pad_token", "unk_token"))
        if special_tokens is None:
            known = {token for token in vocabulary if isinstance(token, str)}
            usual = (*SPECIAL_TOKENS, pad_token, unk_token)
            special_tokens = [token for token in usual if isinstance(token, str) and token in known]
        super().__init__(vocabulary, special_tokens, pad_token, unk_token, **own, **options)
        for name, check in NORMALIZATION.items():
            setattr(self, name, check(name, normalization[name]))
        self._folds_case = self.lowercase
        if self.unk_id is None:
            raise ValueError("`unk_token` must be the token of unknown words; received None.")
        # A blank, which no word has, hides special tokens: only an unknown word becomes a special token.
        hidden = [f" {token}" if token in self.special_tokens else token for token in self._vocabulary.tokens]
        with tf.init_scope():
            self._kernel = tf_text.FastWordpieceTokenizer(
                hidden,
                max_bytes_per_word=4 * LONGEST_WORD,
                token_out_type=tf.int32,
                unknown_token=f" {unk_token}" if unk_token in self.special_tokens else unk_token,
                no_pretokenization=True,
            )

    @classmethod
    @shows_options(defaults="class")
    def from_file(cls, path: str | os.PathLike, **options: Unpack[WordPieceOptions]) -> Self:
        """Makes the tokenizer of a file with one token in each line, such as `vocab.txt`.

        Args:
            path: the file, in UTF-8.
            {options}

        Raises:
            ValueError: a file that is missing, empty, not in UTF-8, has an empty line or is not a vocabulary.
        """
        return from_files(functools.partial(cls, read_tokens("path", path)), [path], {}, options)

    @classmethod
    @shows_options(defaults="class")
    def train(
        cls,
        source: str | os.PathLike | Iterable[str | os.PathLike],
        vocab_size: int,
        min_frequency: int = 2,
        verbose: int | str = "auto",
        **options: Unpack[WordPieceOptions],
    ) -> Self:
        """Trains a vocabulary on text with the package `tokenizers`, and makes its tokenizer.

        Args:
            source: path of a text file in UTF-8, or a list of paths; or an iterable of strings.
            vocab_size: the largest number of tokens, special tokens and single characters included. Each character has
                a token, and a second token within words.
            min_frequency: how often a pair of pieces must occur in the text to be merged.
            verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.
            {options}

        Raises:
            ImportError: `tokenizers` is not installed.
            ValueError: an empty source, a wrong encoding, a size too small for the special tokens and the characters.
        """
        require_tensorflow_text()  # before a long training
        vocab_size = checks.integer_between("vocab_size", vocab_size, 1, LARGEST_VOCABULARY)
        min_frequency = checks.integer_between("min_frequency", min_frequency, 0, 2**31 - 1)
        own = inspect.signature(cls).parameters.values()  # a subclass may have other defaults
        own = {parameter.name: parameter.default for parameter in own if parameter.default is not parameter.empty}
        used = {**default_options(WordPieceOptions), **own, **options}
        special_tokens = SPECIAL_TOKENS if used["special_tokens"] is None else used["special_tokens"]
        special_tokens = options["special_tokens"] = first_tokens(special_tokens)
        if vocab_size <= len(special_tokens):
            raise bad_argument("vocab_size", f"be more than the {len(special_tokens)} special tokens", vocab_size)
        model = tokenizers.models.WordPiece(unk_token=checks.string("unk_token", used["unk_token"]))
        learner = tokenizers.Tokenizer(model)
        lowercase, strip_accents, split_chinese, clean = (
            check(name, used[name]) for name, check in NORMALIZATION.items()
        )
        learner.normalizer = tokenizers.normalizers.BertNormalizer(clean, split_chinese, strip_accents, lowercase)
        learner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer
        train = functools.partial(trainer, min_frequency=min_frequency, show_progress=False)
        texts = list(lines(source, verbose=verbose))
        if any(re.search(rf"\S{{{LONGEST_WORD + 1}}}", text) for text in texts):
            # These words are unknown to any vocabulary. A repeated blob of base64 would fill the vocabulary.
            too_long = tokenizers.Regex(rf"^.{{{LONGEST_WORD + 1},}}$")
            without = tokenizers.pre_tokenizers.Split(too_long, "removed")
            learner.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([learner.pre_tokenizer, without])
        # `tokenizers` numbers the characters within words in a random order, which decides between equally frequent
        # pairs. Hence a first training collects the characters, and a second training gets them in order.
        learner.train_from_iterator(texts, train(vocab_size=1, special_tokens=special_tokens))
        least = learner.get_vocab_size()
        if vocab_size < least:
            must = f"be {least} at least, for {len(special_tokens)} special tokens and the text's characters"
            raise bad_argument("vocab_size", must, vocab_size)
        within = sorted(learner.get_vocab().keys() - {*special_tokens}, key=lambda token: (len(token), token))
        within = [token for token in within if token.startswith("##") and len(token) == 3]
        learner.train_from_iterator(texts, train(vocab_size=vocab_size, special_tokens=[*special_tokens, *within]))
        ids = learner.get_vocab()
        in_order = sorted(ids, key=ids.get)
        vocabulary = [token for token in in_order if len(token.removeprefix("##").encode()) <= LONGEST_TOKEN]
        return cls(vocabulary, **options)

    def _encode(self, texts, splits=None):
        words, lengths, limits = bert.words(texts, *self._normalization())
        pieces = self._pieces(words, lengths)
        return tf.RaggedTensor.from_row_splits(pieces.values, tf.gather(pieces.row_splits, limits), validate=False)

    def _with_offsets(self, texts):
        words = bert.words(tf.constant(texts), *self._normalization())
        pieces = self._pieces(*words[:2])
        ids, splits = pieces.values.numpy(), pieces.row_splits.numpy()
        of_word = [ids[first:last] for first, last in zip(splits, splits[1:])]
        tokens = self._vocabulary.tokens
        sizes = np.array([len(token[2:] if token.startswith("##") and len(token) > 2 else token) for token in tokens])
        sizes[self.unk_id] = 0
        offsets = of_words(texts, words, of_word, sizes, self._normalization())
        limits = splits[words[2].numpy()]
        return [(ids[first:last], spans) for first, last, spans in zip(limits, limits[1:], offsets)]

    def _normalization(self):
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        return self.lowercase, strip_accents, self.split_chinese, self.clean

    def _pieces(self, words, lengths):
        """Splits words (W,) into pieces, int32 RaggedTensor (W, pieces)."""
        return self._kernel.tokenize(tf.where(lengths > LONGEST_WORD, " ", words))  # no token has a blank: unknown

    def _decode(self, rows):
        tokens = self._vocabulary.tokens
        strings = [token[2:] if token.startswith("##") and len(token) > 2 else f" {token}" for token in tokens]
        texts = tf.strings.reduce_join(tf.gather(tf.constant(strings), rows), axis=-1)
        return tf.strings.regex_replace(texts, "^ ", "")

    def get_config(self):
        options = {name: getattr(self, name) for name in (*NORMALIZATION, "pad_token", "unk_token")}
        own = {"vocabulary": list(self._vocabulary.tokens), "special_tokens": list(self.special_tokens)}
        return {**super().get_config(), **own, **options}


def of_words(texts, words, pieces, sizes, options):
    """Finds the offsets of the pieces of BERT's words in the texts before normalisation.

    Each character becomes zero or more normalised characters. The words are these characters in order.

    Args:
        texts: list of N strings.
        words: the result of `bert.words` of the texts.
        pieces: for each word the ids of its pieces.
        sizes: int, the number of characters of each token of the vocabulary; 0 for the unknown token, a whole word.
        options: the other arguments of `bert.words`.

    Returns:
        List of N int32 (L, 2).
    """
    alphabet = sorted({character for text in texts for character in text})
    _, lengths, splits = bert.words(tf.constant(alphabet, tf.string), *options)
    ends = np.cumsum([0, *lengths.numpy()])[splits.numpy()]
    counts = dict(zip(alphabet, ends[1:] - ends[:-1]))
    lengths, splits = words[1].numpy(), words[2].numpy()
    offsets = []
    for text, first, last in zip(texts, splits, splits[1:]):
        sources = np.repeat(np.arange(len(text)), [counts[character] for character in text])
        begins, ends, index = [], [], 0
        for length, ids in zip(lengths[first:last], pieces[first:last]):
            limits = index + np.cumsum([0, *(sizes[ids] if sizes[ids].all() else [length])])
            begins.append(limits[:-1])
            ends.append(limits[1:])
            index += length
        begins, ends = (np.concatenate([*parts, np.zeros(0, "int64")]).astype("int64") for parts in (begins, ends))
        offsets.append(pairs(sources[begins], sources[ends - 1] + 1))
    return offsets
