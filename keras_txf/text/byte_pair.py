"""BytePairTokenizer: byte-level BPE, such as GPT-2's and Llama 3's."""

import functools
import itertools
import json
import secrets

import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.reading import parse_json
from keras_txf.text.lazy import tf, tokenizers
from keras_txf.text.sources import LARGEST_VOCABULARY, first_tokens, lines
from keras_txf.text.tokenizer import Tokenizer, register
from keras_txf.text.vocabulary import from_files, read_text


@register
class BytePairTokenizer(Tokenizer):
    """What a `tokenizer.json` says, byte-level BPE above all, by the package `tokenizers`.

    For GPT-2, RoBERTa, BART, Llama 3, Qwen and others. It runs in Python beside TensorFlow's graph: in `tf.data` and in a
    functional model, whose `.keras` file holds it, but not in a SavedModel, nor where `tokenizers` is not installed.

    Args:
        definition: str, the content of the file. `from_file` reads one. What it does to text stays as it is, but for
            padding, truncation and the tokens that it would put around a text: those are this tokenizer's options.
        pad_token: special token of padding; default `<pad>` or `[PAD]` where there is one, else None. A tokenizer without
            one, such as GPT-2's, can pad with any special token.
        **kwargs: `length`, `start`, `end`, `special_tokens_in_text`, `padding_side`, `truncation_side` of every
            tokenizer, see `Tokenizer`. Special are the file's `added_tokens` that say so.

    Call arguments:
        inputs: str, nested lists of str, or a string tensor (...), dense or ragged. Bytes that are no UTF-8 count as
            U+FFFD.

    Returns:
        int32 (..., length), ragged where `length` is None.

    Raises:
        ImportError: `tokenizers` is not there.
        ValueError: what is no such file, or leaves ids without a token; see also `Tokenizer`.

    Reference:
        [Language Models are Unsupervised Multitask Learners](https://openai.com/research/better-language-models).

    Example:

    >>> tokenizer = txf.text.BytePairTokenizer.train(["a dog sees a dog"], vocab_size=261, length=6)
    >>> ids = tokenizer("a dog")
    >>> tokenizer.detokenize(ids)
    'a dog'
    """

    def __init__(self, definition, pad_token=None, **kwargs):
        kernel = kernel_of(definition)
        tokens = {id: token for token, id in kernel.get_vocab().items()}
        if len(tokens) < kernel.get_vocab_size():
            raise ValueError(f"`definition` must have one token for each id; received {kernel.get_vocab_size()} tokens for {len(tokens)} ids.")
        if sorted(tokens) != list(range(len(tokens))):
            missing = min(set(range(len(tokens))) - set(tokens))
            raise ValueError(f"`definition` must have a token for each id; received one without a token for id {short_repr(missing)}.")
        added = kernel.get_added_tokens_decoder()
        special = [added[id].content for id in sorted(added) if added[id].special]
        if pad_token is None:
            pad_token = next((token for token in ("<pad>", "[PAD]") if token in special), None)
        kernel.no_padding()
        kernel.no_truncation()
        parts = json.loads(kernel.to_str())
        unk_token = parts["model"].get("unk_token") or tokens.get(parts["model"].get("unk_id"))
        super().__init__([tokens[id] for id in range(len(tokens))], special, pad_token, unk_token, **kwargs)
        self._kernel = kernel
        self._definition = definition
        self._encoder = escaping(kernel, parts, special) if self.special_tokens_in_text == "escape" else kernel

    @classmethod
    def from_file(cls, path, **kwargs):
        """The tokenizer of a `tokenizer.json`.

        Args:
            path: the file.
            **kwargs: options of the tokenizer.

        Raises:
            ImportError: the package is not there.
            ValueError: a file that is missing, empty, not in UTF-8 or no `tokenizer.json`.
        """
        return from_files(functools.partial(cls, read_text("path", path)), [path], {}, kwargs)

    @classmethod
    def train(cls, source, vocab_size, special_tokens=("<pad>", "<s>", "</s>"), min_frequency=2, **kwargs):
        """The tokenizer of a byte-level BPE that is learnt from text, cut into words as GPT-2's.

        Args:
            source: path of a text file in UTF-8, or a list of paths; or an iterable of strings.
            vocab_size: the most tokens that are learnt, special tokens and the 256 bytes among them.
            special_tokens: the first tokens.
            min_frequency: how often a pair of pieces must come to be joined.
            **kwargs: options of the tokenizer.

        Raises:
            ImportError: the package is not there.
            ValueError: an empty source, a wrong encoding, a size without room for the bytes.
        """
        special_tokens = first_tokens(special_tokens)
        min_frequency = checks.integer_between("min_frequency", min_frequency, 0, 2**31 - 1)
        if checks.integer_between("vocab_size", vocab_size, 1, LARGEST_VOCABULARY) < 256 + len(special_tokens):
            raise ValueError(
                f"`vocab_size` must have room for 256 bytes and {len(special_tokens)} special tokens; received {vocab_size}."
            )
        learner = tokenizers.Tokenizer(tokenizers.models.BPE())
        learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        learner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special_tokens, show_progress=False,
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        )
        learner.train_from_iterator(lines(source), trainer)
        return cls(learner.to_str(), **kwargs)

    @property
    def continuing_prefix(self):
        """What the pieces within a word begin with, such as "##"; None or "" where they begin with nothing of their own."""
        return getattr(self._kernel.model, "continuing_subword_prefix", None)

    def _rows(self, texts):
        """The package itself finds special tokens: it knows which of them take the spaces beside them."""
        ids, lengths = tf.numpy_function(self._encode_batch, [texts], [tf.int32, tf.int64], stateful=False)
        ids.set_shape([None])
        lengths.set_shape([None])
        return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)

    def _encode_batch(self, texts):
        texts = [text.decode("utf-8", "replace") for text in texts]
        rows = [found.ids for found in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]
        return np.fromiter(itertools.chain.from_iterable(rows), "int32"), np.array(list(map(len, rows)), "int64")

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
    """The tokenizer of the package, which has what its definition says."""
    try:
        parts = parse_json(definition)
        kernel = tokenizers.Tokenizer.from_str(definition)
        for token in parts.get("added_tokens") or []:
            if kernel.token_to_id(token["content"]) != token["id"]:  # the package would pass over it
                raise ValueError(f"the added token {short_repr(token)} must not have the id of another one")
        kernel.encode("a word", add_special_tokens=False)
    except ImportError:
        raise
    except Exception as error:  # the package raises bare ones
        raise ValueError(
            f"`definition` must be the content of a `tokenizer.json`; received {short_repr(str(definition)[:40])}: {error}."
        ) from None
    return kernel


def escaping(kernel, parts, special):
    """A tokenizer with the same ids to which special tokens in a text are ordinary text; `parts` are the JSON of `kernel`."""
    kernel.encode_special_tokens = True  # and yet what looks whole words or pieces up may find them in its vocabulary
    model = parts["model"]
    if model["type"] == "BPE":  # its merges do not make special tokens
        return kernel
    pieces = dict(model["vocab"])  # or a list of pairs
    hidden = [token for token in special if token in pieces and token != model.get("unk_token")]
    if not hidden:
        return kernel
    nowhere = secrets.token_hex(16)  # it stands in no text
    renamed = {nowhere + piece if piece in hidden else piece: value for piece, value in pieces.items()}
    model = {**model, "vocab": renamed if isinstance(model["vocab"], dict) else list(renamed.items())}
    added = [token for token in parts["added_tokens"] if token["content"] not in hidden]
    others = {**parts, "model": model, "added_tokens": added, "post_processor": None}
    encoder = tokenizers.Tokenizer.from_str(json.dumps(others))
    encoder.encode_special_tokens = True
    return encoder
