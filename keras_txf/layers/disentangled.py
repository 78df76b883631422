"""DisentangledPositions: attention between contents and relative positions.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim, P buckets, D model dim.
"""

from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.multi_head import norm_heads
from keras_txf.layers.norms import make_norm
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.positions import key_distance
from keras_txf.layers.projections import Dropout, make_projection
from keras_txf.layers.serialization import register
from keras_txf.ops.positions import disentangled_buckets
from keras_txf.ops.tensors import batch_size


@register
class DisentangledPositions(Layer):
    """DeBERTa's relative positions: a learned vector for each distance, to which queries and keys attend.

    The logit of a query and a key is the sum of three products, scaled by 1 / sqrt(3 H): query times key, query times
    the vector of their distance (projected as a key), and this vector (projected as a query) times key. Pass one such
    layer as `position` to a builder or to several blocks: they share the vectors, as in DeBERTa. Memory grows with
    N · T · (S + P), since no vector is stored for a pair of query and key.

    Args:
        dim: width D of the vectors; the width of the attention's inputs with `share_projections`.
        max_distance: the longest distance with its own vector; longer distances have the same vector.
        num_buckets: number P of vectors for earlier and later keys together, a multiple of 4. From P / 4 tokens on
            distances share vectors, in steps that grow logarithmically. Default 2 * `max_distance`: no distance shares
            its vector with another.
        content_to_position: whether queries attend to the vectors.
        position_to_content: whether the vectors attend to keys. With only one of these two options the scale is
            1 / sqrt(2 H).
        share_projections: whether the attention's projections of queries and keys also project the vectors (DeBERTa v2
            and v3). With False each attention has the projections `position_query` and `position_key` (v1).
        norm: whether a layer norm normalises the vectors (v2 and v3).
        norm_epsilon: epsilon of this norm.
        dropout: dropout rate of the vectors.

    Call arguments:
        query_positions, key_positions: int (T,) and (S,), or (B, T) and (B, S).

    A call of the layer returns the vectors, for inspection. Attention does not call the layer: it multiplies by the P
    vectors, and then looks up the products.

    Returns:
        (B or 1, T, S, D), the vector of each query and key.

    Raises:
        ValueError: `num_buckets` is not a multiple of 4, `max_distance` is not longer than the distances with their own
            vectors, both options of terms are False, `dim` is not the width of the inputs with `share_projections`.

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), section 3.1; [DeBERTaV3](https://arxiv.org/abs/2111.09543).

    Example:

    >>> positions = txf.layers.DisentangledPositions(32, max_distance=64, num_buckets=16, share_projections=True)
    >>> block = txf.layers.EncoderBlock(num_heads=4, position=positions)
    >>> block(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    weight_splits = {"embeddings": "whole"}

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
                "`num_buckets` must be a multiple of 4 with num_buckets / 4 < max_distance - 1; received "
                f"num_buckets={num_buckets} and max_distance={max_distance}."
            )
        self.content_to_position = checks.boolean("content_to_position", content_to_position)
        self.position_to_content = checks.boolean("position_to_content", position_to_content)
        if not content_to_position and not position_to_content:
            raise ValueError("`content_to_position` or `position_to_content` must be True; received False for both.")
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
        """The number of products in addition to query times key."""
        return self.content_to_position + self.position_to_content

    def rotate(self, x, positions):
        return x

    def bias(self, query_positions, key_positions):
        return None

    def build_for(self, attention, inputs_shape):
        """Makes an attention's projections of the vectors, or checks that its shared projections fit."""
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
        """The terms of positions in the scaled logits, (B, N, T, S).

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
        """The embeddings (P, D) of the relative positions, after the norm and dropout."""
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

    The einsum has the heads as its only batch axis. A `matmul` that broadcasts the batch gives wrong numbers on a CPU
    with TensorFlow 2.21, for the shapes (B, 1, T, H) and (1, 1, H, P).

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H).
        position_query: (P, N, H); None leaves out its term.
        position_key: (P, K, H); None leaves out its term.
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


def _look_up(products, indices):
    """The products (B, K, N/K, any, any) at flat indices, int (B or 1, T, S) -> (B, N, T, S)."""
    shape, heads = ops.shape(products), products.shape[1] * products.shape[2]
    products = ops.reshape(products, (batch_size(products), heads, shape[3] * shape[4]))
    if indices.shape[0] == 1:  # the rows share the indices, which saves memory
        return ops.take(products, indices[0], axis=2)
    queries, keys = ops.shape(indices)[1:]
    indices = ops.reshape(indices, (batch_size(indices), 1, queries * keys))
    terms = ops.take_along_axis(products, indices, axis=2)
    return ops.reshape(terms, (batch_size(terms), heads, queries, keys))
