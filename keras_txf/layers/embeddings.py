"""PositionalEmbedding: the embedding of tokens and of their positions."""

import math
from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.positions import ENCODINGS, TABLES, WAVES, FixedTable
from keras_txf.layers.projections import Dropout
from keras_txf.layers.serialization import get_initializer, own_initializer, register
from keras_txf.ops.logit_factors import note_factors
from keras_txf.ops.masks import padding_positions
from keras_txf.ops.tensors import nan_unless, wide_dtype


@register
class PositionalEmbedding(Layer):
    """Token embedding plus positions, with the padding mask for the layers after it.

    Positions count real tokens only, so padding on the left does not shift them. They are computed
    in float32 or wider under every policy.

    Args:
        vocab_size: number V of tokens. None: the layer returns positions, to add to the tokens of another layer.
        dim: width of the output.
        position_encoding: "sinusoidal" (the paper's: sines at even, cosines at odd features), "sinusoidal_halves" (all
            sines, then all cosines: Marian), "sinusoidal_inclusive" (also halves, with 10,000 · 2π as the longest
            wavelength: Whisper), "sinusoidal_inclusive_from_2" (the same from position 2 on: M2M100), "learned",
            "fixed" (a table that is not trained: the paper's sinusoids, or the table of a file after `load`), or None
            if attention applies positions.
        max_length: number of positions of a table. With any `position_encoding` longer input raises ValueError. Inside
            a compiled function of unknown lengths the positions from `max_length` on are NaN instead.
        combine: "add", or "concat": the last `position_dim` features are the position's.
        position_dim: width of the positions under "concat"; default half of `dim`.
        token_dim: width of the table of tokens. One projection takes it to `dim`, another one back in reverse (OPT).
            Default `dim`, without projections.
        token_types: number of token types, each with a learned vector that is added (BERT's sentences A and B), or
            None.
        pad_id: the padding token. None: no token is padding, and there is no mask.
        scale: whether token embeddings are multiplied by sqrt(dim); or a number as the factor (Granite). Default: True
            with sinusoids, as in the paper; their amplitude of 1 would dominate small token embeddings.
        dropout: dropout rate of the output, as in the paper. None: no dropout in this layer; a builder then applies its
            own `dropout`.
        embeddings_initializer: initializer of the tables. Default: normal, with standard deviation 1 / sqrt(dim) if
            `scale` multiplies tokens, else 0.02 (BERT, GPT-2).

    Call arguments:
        inputs: int (B, T), token ids; with `reverse`, float (B, T, dim), hidden states.
        positions: int (T,) or (B, T), default 0, 1, 2, ... over the real tokens. With position_encoding=None the layer
            only compares them with `max_length`.
        token_type_ids: int (B, T), below `token_types`; default 0.
        reverse: whether to return logits (B, T, V), the hidden states times the transposed table.

    Returns:
        (B, T, dim), or logits.

    Raises:
        ValueError: an unknown `position_encoding`, a table of positions without `max_length`, `position_dim`
            without "concat", `token_dim` with "concat", input longer than `max_length`, ids outside the vocabulary (if
            the values are known: not inside a compiled function), `reverse` with "concat".

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), sections 3.4 and 3.5;
        [Using the Output Embedding](https://arxiv.org/abs/1608.05859) for tied logits.

    Example:

    >>> embedding = txf.layers.PositionalEmbedding(vocab_size=100, dim=32)
    >>> hidden = embedding(np.array([[5, 6, 7, 0]]))
    >>> embedding(hidden, reverse=True).shape
    (1, 4, 100)
    """

    weight_splits = {
        "token": "rows",
        "position": "whole",
        "token_type": "whole",
        "projection": "whole",
        "reverse_projection": "whole",
    }

    def __init__(
        self,
        vocab_size: int | None,
        dim: int,
        position_encoding: str | None = "sinusoidal",
        max_length: int | None = None,
        combine: str = "add",
        position_dim: int | None = None,
        token_dim: int | None = None,
        token_types: int | None = None,
        pad_id: int | None = 0,
        scale: bool | float | None = None,
        dropout: float | None = None,
        embeddings_initializer: Any = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size = checks.optional(checks.size, "vocab_size", vocab_size)
        self.dim = dim = checks.size("dim", dim)
        self.position_encoding = checks.one_of("position_encoding", position_encoding, (*ENCODINGS, None))
        self.max_length = max_length = checks.optional(checks.size, "max_length", max_length)
        self.combine = checks.one_of("combine", combine, ("add", "concat"))
        self.position_dim = position_dim = checks.optional(checks.size, "position_dim", position_dim)
        self.token_dim = token_dim = checks.optional(checks.size, "token_dim", token_dim)
        self.token_types = token_types = checks.optional(checks.size, "token_types", token_types)
        self.pad_id = checks.optional(checks.id_below, "pad_id", pad_id, vocab_size)
        self.scale = checks.optional(checks.switch_or_factor, "scale", scale)
        self.dropout = checks.optional(checks.rate, "dropout", dropout)
        self.embeddings_initializer = get_initializer("embeddings_initializer", embeddings_initializer)
        if self.dropout:
            self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        with_waves = vocab_size is not None and position_encoding in WAVES
        self.token_scale = with_waves if self.scale is None else self.scale
        self.autocast = False  # autocast would round ids of a float dtype
        checks.combinations(self, "PositionalEmbedding")
        if self.position_dim is not None and self.position_dim >= self.dim:
            raise ValueError(
                f"`position_dim` must leave room for the token in `dim`; received "
                f"position_dim={self.position_dim} and dim={self.dim}."
            )
        self._position_width = (position_dim or dim // 2) if combine == "concat" else dim
        token_width = dim - self._position_width if combine == "concat" else dim
        if not 0 < self._position_width <= dim or not token_width:
            raise ValueError(f"`dim` must hold the token and its position under combine='concat'; received dim={dim}.")
        if position_encoding in ("sinusoidal_inclusive_from_2", "sinusoidal_inclusive") and self._position_width < 4:
            raise ValueError(
                f"`dim` must have at least 4 features for the position under position_encoding='{position_encoding}'; "
                f"received {self._position_width}."
            )
        if vocab_size is not None:  # reversible for the tied logits, and because Keras can quantize it
            self.token = self._table(
                keras.layers.ReversibleEmbedding,
                vocab_size,
                token_dim or token_width,
                "token",
                reverse_dtype=self.compute_dtype,
            )
        if position_encoding == "fixed":
            self.position = FixedTable(max_length, self._position_width, dtype=self.dtype_policy, name="position")
        if position_encoding == "learned":
            self.position = self._table(keras.layers.Embedding, max_length, self._position_width, "position")
        if token_types is not None:
            self.token_type = self._table(keras.layers.Embedding, token_types, token_width, "token_type")

    def _table(self, cls, rows, width, name, **kwargs):
        default = keras.initializers.RandomNormal(stddev=1 / math.sqrt(self.dim) if self.token_scale else 0.02)
        initializer = own_initializer(self.embeddings_initializer or default, self, name)
        table = cls(rows, width, embeddings_initializer=initializer, dtype=self.dtype_policy, name=name, **kwargs)
        table.supports_masking = True  # Keras would warn of a mask on hidden states
        return table

    def build(self, inputs_shape):
        if self.vocab_size is not None:
            self.token.build()
        if self.position_encoding in TABLES:
            self.position.build()
        if self.token_types is not None:
            self.token_type.build()
        if self.token_dim is not None:
            for name, width, units in (
                ("projection", self.token_dim, self.dim),
                ("reverse_projection", self.dim, self.token_dim),
            ):
                projection = keras.layers.Dense(units, use_bias=False, dtype=self.dtype_policy, name=name)
                projection.build((None, None, width))
                setattr(self, name, projection)

    def call(self, inputs, positions=None, token_type_ids=None, reverse=False):
        self._check_call(inputs, positions, token_type_ids, reverse)
        if reverse:
            return self._logits(inputs)
        x = self._vectors(inputs, positions, token_type_ids)
        return self.dropout_layer(x) if self.dropout else x

    def _vectors(self, inputs, positions, token_type_ids):
        inputs = ops.cast(inputs, "int32")
        if self.vocab_size is None:
            vectors = ops.cast(self._position_vectors(inputs, positions), self.compute_dtype)
            return ops.broadcast_to(vectors, (*ops.shape(inputs), self.dim))
        x = self.token_vectors(inputs)
        if self.token_types is not None:
            types = ops.zeros((1,), "int32") if token_type_ids is None else ops.cast(token_type_ids, "int32")
            x = x + self.token_type(types)
        if self.position_encoding is None:
            return x
        vectors = ops.cast(self._position_vectors(inputs, positions), x.dtype)
        if self.combine == "add":
            return x + vectors
        vectors = ops.broadcast_to(vectors, (*ops.shape(inputs), self._position_width))
        return ops.concatenate([x, vectors], axis=-1)

    def token_vectors(self, ids):
        """The vectors (B, T, D) of tokens alone, without types and positions; a subclass may change them."""
        x = self.token(ids)
        if self.token_dim is not None:
            x = self.projection(x)
        if self.token_scale:
            x = x * (math.sqrt(self.dim) if self.token_scale is True else self.token_scale)
        return x

    def compute_output_spec(self, inputs, positions=None, token_type_ids=None, reverse=False):
        self._check_call(inputs, positions, token_type_ids, reverse)
        shape = (*inputs.shape[:-1], self.vocab_size) if reverse else (*inputs.shape, self.dim)
        return keras.KerasTensor(shape, self.compute_dtype)

    def _check_call(self, inputs, positions, token_type_ids, reverse):
        """Raises ValueError for an argument that would fail inside the backend or would not be used."""
        if reverse:
            if self.combine == "concat":
                raise ValueError("`reverse` needs combine='add': under 'concat' the table is narrower than `dim`.")
            if self.vocab_size is None:
                raise ValueError("`reverse` needs a table of tokens; received vocab_size=None.")
            if inputs.shape[-1] != self.dim:
                raise ValueError(
                    f"`inputs` must have dim={self.dim} as their last axis; received shape {tuple(inputs.shape)}."
                )
            return
        checks.rank("inputs", inputs, (2, "(batch, length) of token ids"))
        checks.token_ids("inputs", inputs, self.vocab_size)
        if positions is None:
            check_length(inputs, self.max_length)
        else:
            self._check_positions(inputs, positions)
        if token_type_ids is not None:
            if self.token_types is None:
                raise ValueError("`token_type_ids` was passed, but token_types=None: it would not be used.")
            checks.rank("token_type_ids", token_type_ids, (2, "(batch, length)"))
            checks.broadcasts("token_type_ids", token_type_ids, *inputs.shape)
            checks.token_ids("token_type_ids", token_type_ids, self.token_types)

    def _check_positions(self, inputs, positions):
        if self.position_encoding is None and self.max_length is None:
            raise ValueError("`positions` was passed, but position_encoding=None: it would not be used.")
        checks.positions(positions, *inputs.shape)
        values = None if self.max_length is None else checks.concrete(positions)
        if values is not None and values.size and not 0 <= values.min() <= values.max() < self.max_length:
            raise ValueError(
                f"`positions` must be from 0 to {self.max_length - 1}, below max_length; "
                f"received {values.min()} to {values.max()}."
            )

    def _logits(self, hidden):
        if self.token_dim is not None:
            hidden = self.reverse_projection(hidden)
        logits = self.token(hidden, reverse=True)
        if self.token.quantization_mode is None:
            table = current_value(self.token.embeddings)
            note_factors(logits, hidden, table, tied=True, dtype=self.compute_dtype)  # for the loss, if V is large
        return logits

    def _position_vectors(self, inputs, positions):
        """(T, width) or (B, T, width)."""
        if positions is not None:
            return self._vectors_at(ops.convert_to_tensor(positions), known=False)
        vectors = self._vectors_at(
            ops.arange(ops.shape(inputs)[1], dtype="int32"), known=checks.known_length(inputs) is not None
        )
        if self.pad_id is None:
            return vectors
        # Looking up a row of the table is cheaper than computing the row.
        return ops.take(vectors, padding_positions(inputs != self.pad_id), axis=0)

    def _vectors_at(self, positions, known):
        """The vectors of positions. `known`: `_check_call` has checked the positions, so all are below `max_length`."""
        if self.position_encoding in TABLES:
            vectors = self.position(positions)
        else:
            wide = wide_dtype(self.compute_dtype)
            vectors = WAVES[self.position_encoding](positions, self._position_width, dtype=wide)
        if known or self.max_length is None:
            return vectors
        # A compiled function cannot raise, and XLA would silently look up the last row.
        inside = ops.logical_and(positions >= 0, positions < self.max_length)
        return ops.where(ops.expand_dims(inside, -1), vectors, ops.expand_dims(nan_unless(inside, vectors.dtype), -1))

    def compute_mask(self, inputs, previous_mask=None):
        if len(inputs.shape) != 2:  # `reverse`: logits have the mask of the hidden states
            return previous_mask
        return None if self.pad_id is None else ops.not_equal(inputs, self.pad_id)


def check_length(inputs, max_length):
    """Raises ValueError if a sequence (B, T, ...) is longer than `max_length`, and both lengths are known."""
    length = checks.known_length(inputs)
    if None not in (length, max_length) and length > max_length:
        raise ValueError(f"`inputs` must not be longer than max_length={max_length}; received length {length}.")
