"""Masked language modelling: the model predicts masked tokens.

Legend: C texts, L length in tokens.
"""

from typing import Any

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.characters import ByteTokenizer, CharacterTokenizer
from keras_txf.text.datasets import CHUNK, checked, checked_tokenizer, not_empty, one_by_one
from keras_txf.text.examples import token_ids
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import as_ragged
from keras_txf.text.sentence_piece import SentencePieceTokenizer
from keras_txf.text.tokenizer import Tokenizer
from keras_txf.text.word_piece import WordPieceTokenizer

# class -> whether a token begins a word
BEGINS_WORD = {
    WordPieceTokenizer: lambda token: not token.startswith("##"),
    SentencePieceTokenizer: lambda token: token.startswith("▁"),
    ByteTokenizer: lambda token: token in ("<0x20>", "<0x0A>", "<0x09>", "<0x0D>"),
    CharacterTokenizer: str.isspace,
}
# Characters at the beginning of words in a `tokenizer.json`, of SentencePiece and of byte-level BPE.
BLANKS = (("▁",), ("Ġ", "Ċ", "ĉ", "č"))


def masked_language_modelling(
    dataset: Any,
    tokenizer: Tokenizer,
    max_length: int | None = None,
    rate: float = 0.15,
    whole_words: bool = False,
    mask_token: str = "[MASK]",
    seed: int = 0,
) -> Any:
    """Makes examples of texts with masked tokens: `mask_tokens` of `token_ids`.

    To tokenize once and mask anew in each epoch, cache between the two:
    `mask_tokens(token_ids(texts, tokenizer).cache(), tokenizer)`.

    Args:
        dataset: `tf.data.Dataset` of texts, not batched; or a list of texts.
        tokenizer: a tokenizer, which adds its `start` and `end`.
        max_length: truncates longer texts; default the tokenizer's `length`, if it is a number.
        rate, whole_words, mask_token, seed: see `mask_tokens`.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), targets int32 (L,)), in the same order.

    Raises:
        ValueError: see `token_ids` and `mask_tokens`.

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(extra_tokens=["[MASK]"])
    >>> examples = txf.text.masked_language_modelling(["a dog", "a cat"], tokenizer, rate=0.5)
    >>> examples.padded_batch(2).element_spec[1].shape
    TensorShape([None, None])
    """
    ids = token_ids(dataset, tokenizer, max_length)
    return mask_tokens(ids, tokenizer, rate, whole_words, mask_token, seed)


def mask_tokens(
    dataset: Any,
    tokenizer: Tokenizer,
    rate: float = 0.15,
    whole_words: bool = False,
    mask_token: str = "[MASK]",
    seed: int = 0,
    at_least_one: bool = False,
) -> Any:
    """Chooses tokens of each row to predict: 80 % of them become the mask, 10 % any other token, 10 % stay.

    Special tokens are never chosen and never replace other tokens. Each pass over the data set chooses anew. The same
    seed gives the same passes in each run of a program. Cache before masking.

    A resumed training has the same masks as an uninterrupted training in two cases: with `repeat().skip(steps)` after
    masking, or with `repeat()` before masking and a `tf.train.Checkpoint` of the iterator. With `repeat()` after
    masking such a checkpoint is exact to the end of its epoch. Later epochs may have other masks, because tf.data reads
    ahead and forgets the number of the pass.

    Args:
        dataset: `tf.data.Dataset` of ids int (L,), one row each.
        tokenizer: the tokenizer of the ids.
        rate: the probability that a token, or a word, is chosen.
        whole_words: whether to choose all pieces of a word together. Words begin at pieces that the tokenizer marks,
            and after special tokens.
        mask_token: the special token of the mask.
        seed: int.
        at_least_one: whether to choose at least one token, or word, of each row.

    Returns:
        `tf.data.Dataset` of (ids int32 (L,), targets int32 (L,)). The targets are the chosen ids, and padding, which
        the loss ignores, at all other positions.

    Raises:
        ValueError: elements that are not rows of ids, a rate outside of [0, 1], a mask that is not a special token, a
            tokenizer without padding, or a tokenizer that does not mark the beginnings of words.

    Reference:
        [BERT](https://arxiv.org/abs/1810.04805).

    Example:

    >>> tokenizer = txf.text.ByteTokenizer(extra_tokens=["[MASK]"])
    >>> ids = tf.data.Dataset.from_tensors(tokenizer.tokenize("a dog"))
    >>> ((masked, targets),) = txf.text.mask_tokens(ids, tokenizer, rate=1.0)
    >>> targets.numpy().tolist()
    [100, 35, 103, 114, 106]
    """
    checked_tokenizer("tokenizer", tokenizer)
    rate = checks.fraction("rate", rate)
    spec = dataset.element_spec if isinstance(dataset, tf.data.Dataset) else dataset
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != 1 or not spec.dtype.is_integer:
        raise bad_argument("dataset", "be a tf.data.Dataset of ids (length,), one row each", spec)
    if tokenizer.pad_id is None:
        raise ValueError(
            "`tokenizer` must have a token of padding, the target of tokens that are not masked; received pad_id=None."
        )
    if not isinstance(mask_token, str) or mask_token not in tokenizer.special_tokens:
        raise bad_argument("mask_token", f"be a special token, of {sorted(tokenizer.special_tokens)}", mask_token)
    not_empty(dataset)
    checks.boolean("whole_words", whole_words)
    checks.boolean("at_least_one", at_least_one)
    mask = mask_function(tokenizer, rate, whole_words, tokenizer.token_to_id(mask_token), at_least_one)
    seeds = tf.data.Dataset.random(
        checks.integer_between("seed", seed, -(2**63), 2**63 - 1), rerandomize_each_iteration=True
    ).batch(2, drop_remainder=True)
    chunks = tf.data.Dataset.zip((dataset.ragged_batch(CHUNK), seeds))
    return one_by_one(chunks.map(mask, num_parallel_calls=tf.data.AUTOTUNE), dataset.cardinality())


def mask_function(tokenizer, rate, whole_words, mask_id, at_least_one):
    """Returns a function from rows (C, L) and a seed int64 (2,) to masked rows and targets."""
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size)]
    special = np.array([token in tokenizer.special_tokens for token in tokens])
    ordinary = np.flatnonzero(~special).astype("int32")
    begins = np.array(list(map(word_rule(tokenizer, tokens), tokens))) | special if whole_words else None

    def mask(rows, seed):
        rows = as_ragged(rows)
        ids, message = rows.flat_values, f"`dataset` must hold token ids from 0 to {len(tokens) - 1}; received"
        ids = tf.cast(checked(ids, (ids >= 0) & (ids < len(tokens)), message), tf.int32)
        is_special = tf.gather(special, ids)
        word = tf.range(tf.size(ids))
        if whole_words:
            first = tf.ragged.range(rows.row_lengths()).flat_values == 0
            after_special = tf.concat([[False], is_special], 0)[:-1]
            word = tf.cumsum(tf.cast(tf.gather(begins, ids) | first | after_special, tf.int32)) - 1
        draws, fate, other = tf.unstack(tf.random.stateless_uniform([3, tf.size(ids)], seed))
        draws = tf.where(is_special, 1.0, tf.gather(draws, word))
        chosen = draws < rate
        if at_least_one:
            least = tf.reduce_min(rows.with_flat_values(draws), axis=1)
            chosen |= draws == tf.repeat(least, rows.row_lengths())
        chosen &= ~is_special
        other = tf.gather(ordinary, tf.cast(other * len(ordinary), tf.int32))
        changed = tf.where(fate < 0.8, mask_id, tf.where(fate < 0.9, other, ids))
        answers = tf.where(chosen, changed, ids), tf.where(chosen, ids, tokenizer.pad_id)
        return tuple(rows.with_flat_values(values) for values in answers)

    return mask


def word_rule(tokenizer, tokens):
    for cls, rule in BEGINS_WORD.items():
        if isinstance(tokenizer, cls):
            return rule
    if isinstance(tokenizer, BytePairTokenizer):
        return byte_pair_rule(tokenizer, tokens)
    known = sorted(cls.__name__ for cls in (*BEGINS_WORD, BytePairTokenizer))
    raise ValueError(
        f"`whole_words` needs a tokenizer of one of the classes {known}; received {short_repr(tokenizer)}."
    )


def byte_pair_rule(tokenizer, tokens):
    """Returns the rule of a `tokenizer.json`, which may mark pieces within words, or at the beginning of words."""
    if tokenizer.continuing_prefix:
        return lambda token: not token.startswith(tokenizer.continuing_prefix)
    for marks in BLANKS:
        if any(token.startswith(marks) for token in tokens if token not in tokenizer.special_tokens):
            return lambda token: token.startswith(marks)
    raise ValueError(
        f"`whole_words` needs a tokenizer whose tokens show where words begin, by one of {BLANKS}; received "
        f"{short_repr(tokenizer)}, whose tokens have none."
    )
