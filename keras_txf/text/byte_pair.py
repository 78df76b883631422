"""BytePairTokenizer: byte-level BPE, such as GPT-2's and Llama 3's."""

import functools
import itertools
import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Self, Unpack

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import parse_json
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import shows_options, take_options
from keras_txf.text.lazy_imports import tf, tokenizers
from keras_txf.text.tokenizer import Tokenizer, TokenizerOptions
from keras_txf.text.vocabulary import LARGEST_VOCABULARY, first_tokens, from_files, lines, read_text

# New in each process; letters and digits, which normalizers do not change.
PREFIX = secrets.token_hex(16)


class BytePairOptions(TokenizerOptions, total=False):
    """Options of `BytePairTokenizer`."""

    pad_token: Annotated[
        str | None,
        None,
        "special token of padding; default `<pad>` or `[PAD]` if the file has it, else None. A tokenizer without a "
        "token of padding, such as GPT-2's, can pad with any special token.",
    ]


@register
class BytePairTokenizer(Tokenizer):
    """Runs a `tokenizer.json`, such as byte-level BPE, with the package `tokenizers`.

    For GPT-2, RoBERTa, BART, Llama 3, Qwen and others. The tokenizer runs in Python, outside of TensorFlow's graph: in
    `tf.data` and in a functional model, whose `.keras` file holds it. It does not run in a SavedModel, or without the
    package `tokenizers`.

    Args:
        definition: str, the content of the file, which `from_file` reads. Padding, truncation and the special tokens
            around a text are options of this tokenizer; the file defines everything else.
        {options}

    The special tokens are the `added_tokens` that the file marks as special.

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged. Bytes that are not UTF-8 count as
            U+FFFD.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ImportError: `tokenizers` is not installed.
        ValueError: a string that is not the content of a `tokenizer.json`, an id without a token; see also `Tokenizer`.

    Reference:
        [Language Models are Unsupervised Multitask Learners](https://openai.com/research/better-language-models).

    Example:

    >>> tokenizer = txf.text.BytePairTokenizer.train(["a dog sees a dog"], vocab_size=261, length=6)
    >>> ids = tokenizer("a dog")
    >>> tokenizer.detokenize(ids)
    'a dog'
    """

    _finds_special_tokens = True

    def __init__(self, definition: str, **options: Unpack[BytePairOptions]):
        own, kernel = take_options(BytePairTokenizer, options), kernel_of(definition)
        tokens = {id: token for token, id in kernel.get_vocab().items()}
        size, missing = kernel.get_vocab_size(), sorted(set(range(len(tokens))) - set(tokens))
        if len(tokens) < size:
            raise ValueError(
                f"`definition` must have one token for each id; received {size} tokens for {len(tokens)} ids."
            )
        if missing:
            raise ValueError(f"`definition` must have a token for each id; received none for id {missing[0]}.")
        added = kernel.get_added_tokens_decoder()
        special = [added[id].content for id in sorted(added) if added[id].special]
        pad_token = own.pop("pad_token")
        if pad_token is None:
            pad_token = next((token for token in ("<pad>", "[PAD]") if token in special), None)
        kernel.no_padding()
        kernel.no_truncation()
        parts = json.loads(kernel.to_str())
        unk_token = parts["model"].get("unk_token") or tokens.get(parts["model"].get("unk_id"))
        if checks.strings("added_tokens", own["added_tokens"]):
            raise bad_argument("added_tokens", "be left out: `definition` holds the added tokens", own["added_tokens"])
        super().__init__([tokens[id] for id in range(len(tokens))], special, pad_token, unk_token, **own, **options)
        self._kernel = kernel
        self._definition = definition
        self._encoder = escaping(kernel, parts, special) if self.special_tokens_in_text == "escape" else kernel
        self._prepare = None  # a function of a text, before `_encoder`

    @classmethod
    @shows_options(defaults="class")
    def from_file(cls, path: str | os.PathLike, **options: Unpack[BytePairOptions]) -> Self:
        """Makes the tokenizer of a `tokenizer.json`.

        Args:
            path: the file.
            {options}

        Raises:
            ImportError: `tokenizers` is not installed.
            ValueError: a file that is missing, empty, not in UTF-8 or not a `tokenizer.json`.
        """
        return from_files(functools.partial(cls, read_text("path", path)), [path], {}, options)

    @classmethod
    @shows_options(defaults="class")
    def train(
        cls,
        source: str | os.PathLike | Iterable[str | os.PathLike],
        vocab_size: int,
        special_tokens: Sequence[str] = ("<pad>", "<s>", "</s>"),
        min_frequency: int = 2,
        verbose: int | str = "auto",
        **options: Unpack[BytePairOptions],
    ) -> Self:
        """Trains a byte-level BPE tokenizer, which splits text into words like GPT-2's.

        Args:
            source: path of a text file in UTF-8, or a list of paths; or an iterable of strings.
            vocab_size: the largest number of tokens, special tokens and the 256 bytes included.
            special_tokens: the first tokens.
            min_frequency: how often a pair of pieces must occur in the text to be merged.
            verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.
            {options}

        Raises:
            ImportError: `tokenizers` is not installed.
            ValueError: an empty source, a wrong encoding, a size without room for the bytes.
        """
        special_tokens = first_tokens(special_tokens)
        min_frequency = checks.integer_between("min_frequency", min_frequency, 0, 2**31 - 1)
        if checks.integer_between("vocab_size", vocab_size, 1, LARGEST_VOCABULARY) < 256 + len(special_tokens):
            must = f"have room for 256 bytes and {len(special_tokens)} special tokens"
            raise bad_argument("vocab_size", must, vocab_size)
        learner = tokenizers.Tokenizer(tokenizers.models.BPE())
        learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        learner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=special_tokens,
            show_progress=False,
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        )
        learner.train_from_iterator(lines(source, verbose=verbose), trainer)
        return cls(learner.to_str(), **options)

    @property
    def continuing_prefix(self):
        """The prefix of the pieces within a word, such as "##"; None or "" for no prefix."""
        return getattr(self._kernel.model, "continuing_subword_prefix", None)

    def _rows(self, texts):
        """string (R,) -> int32 RaggedTensor (R, L).

        The package itself finds special tokens and the spaces next to them.
        """
        ids, lengths = tf.numpy_function(self._encode_batch, [texts], [tf.int32, tf.int64], stateful=False)
        ids.set_shape([None])
        lengths.set_shape([None])
        return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)

    def keep_special_tokens_without(self, guard):
        """Keeps a special token whole, unless the character `guard` follows its first character. Removes `guard`."""
        self._encoder, names = with_secret_names(self._kernel.to_str())
        tokens = sorted(names, key=len, reverse=True)
        pattern = re.compile("|".join(f"{re.escape(token)}(?!{guard})" for token in tokens) or "(?!)")
        self._prepare = lambda text: pattern.sub(lambda found: names[found[0]], text).replace(guard, "")

    def _encode_batch(self, texts):
        texts = [text.decode("utf-8", "replace") for text in texts]
        texts = texts if self._prepare is None else list(map(self._prepare, texts))
        rows = [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]
        return np.fromiter(itertools.chain.from_iterable(rows), "int32"), np.array(list(map(len, rows)), "int64")

    def _with_offsets(self, texts):
        encodings = self._encoder.encode_batch(texts, add_special_tokens=False)
        return [
            (np.array(encoding.ids, "int32"), np.array(encoding.offsets, "int32").reshape(-1, 2))
            for encoding in encodings
        ]

    def _decode(self, rows):
        texts = tf.numpy_function(self._decode_batch, [rows.values, rows.row_splits], tf.string, stateful=False)
        texts.set_shape([None])
        return texts

    def _decode_batch(self, ids, splits):
        rows = [row.tolist() for row in np.split(ids, splits[1:-1])] if len(splits) > 1 else []
        return np.array([text.encode() for text in self._kernel.decode_batch(rows, skip_special_tokens=False)], object)

    def get_config(self):
        return {**super().get_config(), "definition": self._definition, "pad_token": self.pad_token}


def kernel_of(definition):
    """Makes a tokenizer of the package `tokenizers`. Raises ValueError if it would not follow the definition."""
    try:
        parts = parse_json(definition)
        kernel = tokenizers.Tokenizer.from_str(definition)
        for token in parts.get("added_tokens") or []:
            if kernel.token_to_id(token["content"]) != token["id"]:  # `tokenizers` would ignore the token
                raise ValueError(f"the added token {short_repr(token)} must not have the id of another one")
        kernel.encode("a word", add_special_tokens=False)
    except ImportError:
        raise
    except Exception as error:  # the package raises plain `Exception`s
        raise ValueError(
            f"`definition` must be the content of a `tokenizer.json`; received {short_repr(str(definition)[:40])}: "
            f"{error}."
        ) from None
    return kernel


def escaping(kernel, parts, special):
    """Returns a tokenizer with the same ids that reads special tokens in a text as ordinary text.

    Args:
        kernel: `tokenizers.Tokenizer`, which the function may change.
        parts: the parsed JSON of `kernel`.
        special: list of the special tokens.
    """
    model = parts["model"]
    pieces = set(model["vocab"] if isinstance(model["vocab"], dict) else dict(model["vocab"]))
    if not _makes(model, pieces & {*special} - {model.get("unk_token")}):
        kernel.encode_special_tokens = True
        return kernel
    return _renamed(parts, special)[0]


@functools.lru_cache(maxsize=4)
def with_secret_names(definition):
    """Returns a tokenizer that finds special tokens only under secret names, and a dict of these names by token.

    Args:
        definition: JSON of a `tokenizers.Tokenizer`, without padding and truncation.
    """
    parts = json.loads(definition)
    return _renamed(parts, [token["content"] for token in parts["added_tokens"] if token["special"]])


def _makes(model, pieces):
    """Whether a model may turn ordinary text into one of these pieces."""
    if model["type"] != "BPE" or model.get("ignore_merges"):  # these models look up whole words or pieces
        return bool(pieces)
    return any(_merged(model, _pair(merge)) in pieces for merge in model["merges"])


def _pair(merge):
    return merge if isinstance(merge, list) else merge.split(" ", 1)


def _merged(model, pair):
    return pair[0] + pair[1].removeprefix(model.get("continuing_subword_prefix") or "")


def _renamed(parts, special):
    """Returns the tokenizer of `parts` with secret names for special tokens, and these names by token.

    The unknown token keeps its name.
    """
    model = dict(parts["model"])
    names = {token: f"{PREFIX}{token.encode().hex()}x" for token in special if token != model.get("unk_token")}
    pieces = model["vocab"]
    if isinstance(pieces, dict):
        model["vocab"] = {names.get(piece, piece): id for piece, id in pieces.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), value] for piece, value in pieces]
    if model["type"] == "BPE":
        pairs = [_pair(merge) for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint([*pair, _merged(model, pair)])]
    added = [
        {**token, "content": names[token["content"]], "special": False} if token["content"] in names else token
        for token in parts["added_tokens"]
    ]
    others = {**parts, "model": model, "added_tokens": added, "post_processor": None}
    encoder = tokenizers.Tokenizer.from_str(json.dumps(others))
    encoder.encode_special_tokens = True
    for token in parts["added_tokens"]:
        if encoder.token_to_id(names.get(token["content"], token["content"])) != token["id"]:
            raise ValueError(
                "`definition` must keep the ids of special tokens under other names; received "
                f"{short_repr(token['content'])}, whose id changes."
            )
    return encoder, names
