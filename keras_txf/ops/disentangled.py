"""The logits that disentangled positions add.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim, P buckets.
"""

from keras import ops

from keras_txf.ops.heads import batch_size


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
