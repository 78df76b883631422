"""Pieces of a SentencePiece model whose ids another vocabulary gives, such as Marian's.

Legend: R texts, L tokens, U unknown pieces.
"""

import re

from keras_txf.text.lazy_imports import tf

CODE = "(?s)^(>>.*?<<)"  # of a language, at the beginning of a text


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
        # An unknown piece is a run of characters that are no pieces; the vocabulary may know it for another model.
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
        """The ids of strings (U,) among some tokens; that of the unknown token for others."""
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
