"""DisentangledPositions: attention of content to positions, and of positions to content.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim, P buckets, D model dim.
"""

from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.multi_head import norm_heads
from keras_txf.layers.norms import make_norm
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.positions import key_distance
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import register
from keras_txf.ops.positions import disentangled_buckets
from keras_txf.ops.tensors import batch_size


@register
class DisentangledPositions(Layer):
    """DeBERTa's relative positions: each distance has a learned vector, which queries and keys attend to.

    The logit of a query and a key is the sum of three products, scaled by 1 / sqrt(3 H): of query and key, of the query
    and the vector of their distance as a key, and of that vector as a query and the key. Pass one such layer as
    `position` to a builder, or the same one to several blocks: they share the vectors, as in DeBERTa. Memory grows with
    N · T · (S + P): no query and key have a vector of their own there.

    Args:
        dim: width D of the vectors; the width of the attention's inputs with `share_projections`.
        max_distance: a longer distance has the vector of this one.
        num_buckets: number P of vectors for earlier and later keys together, a multiple of 4. From P / 4 tokens on
            distances share vectors, in steps that grow logarithmically. Default 2 * `max_distance`: no distance shares
            its vector with another.
        content_to_position: whether queries attend to the vectors.
        position_to_content: whether the vectors attend to keys. With one of the two the scale is 1 / sqrt(2 H).
        share_projections: whether the vectors go through the attention's own projections of queries and keys
            (DeBERTa v2 and v3). With False each attention has two more, `position_query` and `position_key` (v1).
        norm: whether the vectors go through a layer norm (v2 and v3).
        norm_epsilon: of that norm.
        dropout: rate on the vectors, in training.

    Call arguments:
        query_positions, key_positions: int (T,) and (S,), or (B, T) and (B, S).

    A call returns the vectors themselves, to look at them. Attention does not call the layer: it multiplies by the P
    vectors, then looks up the products.

    Returns:
        (B or 1, T, S, D), the vector of each query and key.

    Raises:
        ValueError: `num_buckets` is no multiple of 4, a `max_distance` within the distances that have a vector of their
            own, no term at all, `dim` other than that of the inputs.

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), section 3.1; [DeBERTaV3](https://arxiv.org/abs/2111.09543).

    Example:

    >>> positions = txf.layers.DisentangledPositions(32, max_distance=64, num_buckets=16, share_projections=True)
    >>> block = txf.layers.EncoderBlock(num_heads=4, position=positions)
    >>> block(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    names_own_weights = True  # see `build_named`

    def __init__(
        self,
        dim: int,
        max_distance: int = 512,
        num_buckets: int | None = None,
        content_to_position: bool = True,
        position_to_content: bool = True,
        share_projections: bool = False,
        norm: bool = False,
        norm_epsilon: float = 1e-7,
        dropout: float = 0.0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.dim = checks.size("dim", dim)
        self.max_distance = checks.size("max_distance", max_distance)
        self.num_buckets = checks.optional(checks.size, "num_buckets", num_buckets)
        if num_buckets is not None and (num_buckets % 4 or max_distance <= num_buckets // 4 + 1):
            raise ValueError(
                "`num_buckets` must be a multiple of 4, of which a quarter is below max_distance - 1; received "
                f"num_buckets={num_buckets} and max_distance={max_distance}."
            )
        self.content_to_position = checks.boolean("content_to_position", content_to_position)
        self.position_to_content = checks.boolean("position_to_content", position_to_content)
        if not content_to_position and not position_to_content:
            raise ValueError(
                "One of `content_to_position` and `position_to_content` must be True; received False for both."
            )
        self.share_projections = checks.boolean("share_projections", share_projections)
        self.norm = checks.boolean("norm", norm)
        self.norm_epsilon = checks.positive_number("norm_epsilon", norm_epsilon)
        self.dropout = checks.rate("dropout", dropout)

    def build(self, *shapes):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_buckets or 2 * self.max_distance, self.dim),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")
        self.norm_layer = None
        if self.norm:
            self.norm_layer = make_norm("layer", self.norm_epsilon, self.dtype_policy, "norm")
            self.norm_layer.build(self.embeddings.shape)

    @property
    def added_terms(self):
        """The number of products that are added to that of query and key."""
        return self.content_to_position + self.position_to_content

    def rotate(self, x, positions):
        return x

    def bias(self, query_positions, key_positions):
        return None

    def build_for(self, attention, inputs_shape):
        """Makes the projections of an attention for the vectors, or checks that its own ones fit."""
        if self.share_projections:
            if inputs_shape[-1] != self.dim:
                raise ValueError(
                    f"`position` must have the width of the inputs with share_projections=True, {inputs_shape[-1]}; "
                    f"received dim={self.dim}."
                )
            return
        shape = (None, self.dim)
        if self.content_to_position:
            attention.position_key = make_projection(
                attention, "position_key", attention.key.units, shape, attention.key_bias
            )
        if self.position_to_content:
            attention.position_query = make_projection(attention, "position_query", attention.query.units, shape)

    def bias_of_content(self, attention, query, key, query_positions, key_positions, training=False):
        """What positions add to the scaled logits, (B, N, T, S).

        Args:
            attention: the `MultiHeadSelfAttention` of the queries and keys.
            query, key: (B, T, N, H) and (B, S, K, H).
            query_positions, key_positions: int (T,) and (S,), or (B, T) and (B, S).
        """
        vectors = self._vectors(training)[None]
        position_key = position_query = None
        if self.content_to_position:
            project = attention.key if self.share_projections else attention.position_key
            position_key = norm_heads(attention, "key_norm", project(vectors), key.shape[2])[0]
        if self.position_to_content:
            project = attention.query if self.share_projections else attention.position_query
            position_query = norm_heads(attention, "query_norm", project(vectors), query.shape[2])[0]
        buckets = self._buckets(query_positions, key_positions)
        scale = ops.cast(attention.logit_scale(), query.dtype)
        return disentangled_bias(query * scale, key * scale, position_query, position_key, buckets)

    def call(self, query_positions, key_positions, training=None):
        return ops.take(self._vectors(training), self._buckets(query_positions, key_positions), axis=0)

    def _vectors(self, training):
        """The vectors (P, D) after their norm and dropout."""
        vectors = current_value(self.embeddings)
        if self.norm_layer is not None:
            vectors = self.norm_layer(vectors)
        return self.dropout_layer(vectors, training=training)

    def _buckets(self, query_positions, key_positions):
        """int (B or 1, T, S)."""
        far = self.max_distance
        distance = ops.clip(-key_distance(query_positions, key_positions), -far, far)
        table = ops.convert_to_tensor(disentangled_buckets(far, self.num_buckets), "int32")
        return ops.take(table, distance + far, axis=0)


def disentangled_bias(query, key, position_query, position_key, buckets):
    """query · position_keyᵀ and position_query · keyᵀ, each at the bucket of its query and key.

    Einsum has the heads as its only batch here. A `matmul` that broadcasts the batch gives wrong numbers on a CPU with
    TensorFlow 2.21, for the shapes (B, 1, T, H) and (1, 1, H, P).

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H).
        position_query: (P, N, H), or None for no such term.
        position_key: (P, K, H), or None for no such term.
        buckets: int (B or 1, T, S), the bucket of each query and key.

    Returns:
        (B, N, T, S).

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), equation 4.
    """
    terms, kv_heads, length = [], key.shape[2], ops.shape(key)[1]
    if position_key is not None:
        products = ops.einsum("btkgh,pkh->bkgtp", _in_groups(query, kv_heads), position_key)
        rows = ops.arange(ops.shape(query)[1], dtype="int32")[:, None]
        terms.append(_look_up(products, rows * position_key.shape[0] + buckets))
    if position_query is not None:
        products = ops.einsum("pkgh,bskh->bkgps", _in_groups(position_query, kv_heads), key)
        terms.append(_look_up(products, buckets * length + ops.arange(length, dtype="int32")))
    return sum(terms[1:], terms[0])


def _in_groups(x, kv_heads):
    """(..., N, H) -> (..., K, N/K, H)."""
    return ops.reshape(x, (*ops.shape(x)[:-2], kv_heads, x.shape[-2] // kv_heads, x.shape[-1]))


def _look_up(products, places):
    """The products (B, K, N/K, any, any) at flat places, int (B or 1, T, S) -> (B, N, T, S)."""
    shape, heads = ops.shape(products), products.shape[1] * products.shape[2]
    products = ops.reshape(products, (batch_size(products), heads, shape[3] * shape[4]))
    if places.shape[0] == 1:  # one table of places for all rows takes no memory for each of them
        return ops.take(products, places[0], axis=2)
    queries, keys = ops.shape(places)[1:]
    places = ops.reshape(places, (batch_size(places), 1, queries * keys))
    found = ops.take_along_axis(products, places, axis=2)
    return ops.reshape(found, (batch_size(found), heads, queries, keys))
