"""The pieces of a SentencePiece model file and their ids. TensorFlow's kernels read the rest of the file.

The file is a protocol buffer, `sentencepiece_model.proto` of https://github.com/google/sentencepiece.
"""

import re
import typing

import numpy as np

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import tf

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6  # types of pieces
PIECES, NORMALIZER, DENORMALIZER = 1, 3, 5  # fields of the model

# A later field overrides an earlier field. Appended to a model, these set `normalizer_spec.add_dummy_prefix`; the last
# also sets `remove_extra_whitespaces` to False.
WITH_PREFIX, WITHOUT_PREFIX, AS_IT_IS = b"\x1a\x02\x18\x01", b"\x1a\x02\x18\x00", b"\x1a\x04\x18\x00\x20\x00"
CODE = "(?s)^(>>.*?<<)"  # of a language, at the start of a text


class Model(typing.NamedTuple):
    pieces: list  # of str
    unk_token: str
    control: list  # of str, control symbols such as `</s>`
    adds_prefix: bool  # whether the model adds a space before the first word
    removes_spaces: bool  # whether the model removes spaces at the ends, and extra spaces between words
    scores: list  # of float, of the pieces
    user_defined: list  # of str, symbols that are one piece in any text
    rules: bytes  # rules of the normalisation of characters, perhaps empty


def read_model(content):
    """Returns the `Model` of the bytes of a file. Raises ValueError for other bytes."""
    pieces, scores, normalizer = [], [], {}
    try:
        for number, value in fields(content):
            if number == PIECES:
                piece = dict(fields(value))
                pieces.append((str(piece[1], "utf-8"), piece.get(3)))
                scores.append(piece.get(2, b"\0\0\0\0"))
            elif number in (NORMALIZER, DENORMALIZER):
                rules = dict(fields(value))
                check_characters(rules.get(2, b""))
                normalizer.update(rules if number == NORMALIZER else {})
        scores = np.frombuffer(b"".join(scores), "<f4").tolist()
        if not np.isfinite(scores).all():
            raise ValueError
    except (IndexError, KeyError, TypeError, ValueError):  # the bytes are not the fields of a model
        pieces = []
    unknown = [piece for piece, type_ in pieces if type_ == UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(
            f"`model` must be a SentencePiece model; received {len(content)} other bytes: {short_repr(content[:20])}..."
        )
    control, user_defined = (
        [piece for piece, type_ in pieces if type_ == wanted] for wanted in (CONTROL, USER_DEFINED)
    )
    return Model(
        [piece for piece, _ in pieces],
        unknown[0],
        control,
        adds_prefix=bool(normalizer.get(3, 1)),
        removes_spaces=bool(normalizer.get(4, 1)),
        scores=scores,
        user_defined=user_defined,
        rules=normalizer.get(2, b""),
    )


def check_characters(rules):
    """Raises ValueError if TensorFlow's kernels would read beyond the memory of these normalisation rules.

    Rules are the size of a double array of `darts-clone`, the array, and the texts to which its values point.
    """
    if not rules:
        return
    size = int.from_bytes(rules[:4], "little")
    units, texts = np.frombuffer(rules[4 : 4 + size], "<u4").astype("int64"), rules[4 + size :]
    if not size or size % 1024 or 4 * len(units) != size or not texts.endswith(b"\0"):
        raise ValueError
    texts.decode()  # raises if a normalised text is not UTF-8
    indices = np.flatnonzero(units < 1 << 31)  # the other units are values
    nodes = units[indices]
    children = indices ^ (nodes >> 10 << ((nodes & 1 << 9) >> 6))
    if (children >= len(units)).any():  # the children of all next bytes lie in one block of 256
        raise ValueError
    values = units[children[nodes & 1 << 8 > 0]] & (1 << 31) - 1
    starts = [0, *(np.flatnonzero(np.frombuffer(texts, "uint8") == 0)[:-1] + 1)]
    if set(values.tolist()) != set(starts):  # a text without a value: the array lacks a part
        raise ValueError


def fields(message):
    """Yields the numbers and values of a message's fields. A value is an int, or the bytes of another type."""
    position = 0
    while position < len(message):
        key, position = variable_integer(message, position)
        if key & 7 == 0:
            value, position = variable_integer(message, position)
        else:
            size, position = (SIZES[key & 7], position) if key & 7 in SIZES else variable_integer(message, position)
            value, position = message[position : position + size], position + size
            if key & 7 not in (*SIZES, 2) or position > len(message):
                raise ValueError
        yield key >> 3, value


SIZES = {1: 8, 5: 4}  # bytes of the types of fields of a fixed size


def variable_integer(message, position):
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        if shift > 63:
            raise ValueError  # reading a long integer would take long
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


class PieceTable:
    """The ids of the pieces of a model in a vocabulary.

    Args:
        model: `Model` of the file.
        vocabulary: `Vocabulary`.
        special_tokens: the special tokens, which no piece becomes.
    """

    def __init__(self, model, vocabulary, special_tokens):
        unknown = vocabulary.index.get(model.unk_token)
        self.tokens, self.unk_token = vocabulary.tokens, model.unk_token
        self.of_pieces = [vocabulary.index.get(piece, unknown) for piece in model.pieces]
        self.unknown_piece = model.pieces.index(model.unk_token)
        self.codes = [token for token in vocabulary.tokens if token.startswith(">>") and token.endswith("<<")]
        # An unknown piece is a run of characters that are not pieces. The vocabulary may have it, from another model.
        characters = {piece for piece in model.pieces if len(piece) == 1}
        self.known_runs = [x for x in vocabulary.tokens if x not in special_tokens and not characters & {*x}]
        self.ids_of = {token: vocabulary.index[token] for token in (*self.codes, *self.known_runs)}

    def ids(self, make_kernel, texts):
        """Converts texts (R,) to ids, int32 RaggedTensor (R, L); `make_kernel` makes a kernel of the model."""
        codes = tf.where(tf.strings.regex_full_match(texts, CODE + ".*"), texts, "")
        codes = tf.strings.regex_replace(codes, CODE + ".*$", r"\1")
        texts = tf.strings.regex_replace(texts, CODE, "")
        pieces = make_kernel().tokenize(texts)
        ids = tf.gather(tf.constant(self.of_pieces, "int32"), pieces.values)
        if self.known_runs:
            where = tf.where(pieces.values == self.unknown_piece)
            strings = make_kernel(out_type=tf.string).tokenize(texts).values
            ids = tf.tensor_scatter_nd_update(ids, where, self._look_up(tf.gather_nd(strings, where), self.known_runs))
        has_code = tf.cast(codes != "", tf.int64)
        first = self._look_up(tf.boolean_mask(codes, has_code > 0), self.codes)
        first = tf.RaggedTensor.from_row_lengths(first, has_code, validate=False)
        return tf.concat([first, pieces.with_values(ids)], axis=1)

    def _look_up(self, strings, tokens):
        """Returns the ids of strings (U,) among `tokens`, and the id of the unknown token for other strings."""
        unknown = self.of_pieces[self.unknown_piece]
        same = strings[:, None] == tf.constant([*tokens, ""])
        ids = tf.constant([*(self.ids_of[token] for token in tokens), unknown], "int32")
        return tf.where(tf.reduce_any(same, axis=1), tf.gather(ids, tf.argmax(same, axis=1)), unknown)

    def text(self, rows, special_tokens):
        """Converts ids, RaggedTensor (R, L), to texts (R,); special tokens stand between blanks."""
        strings = [token.replace("▁", " ") for token in self.tokens]
        for token, id in special_tokens.items():
            strings[id] = " ⁇ " if token == self.unk_token else f"{token} "
        texts = tf.strings.reduce_join(tf.gather(tf.constant(strings), rows), axis=-1)
        shown = "|".join(re.escape(token) for token in special_tokens if token != self.unk_token)
        texts = tf.strings.regex_replace(texts, f"({shown})  ", r"\1 ") if shown else texts
        return tf.strings.regex_replace(texts, r"^\s+|\s+$", "")
