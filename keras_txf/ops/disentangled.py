"""The logits that disentangled positions add.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim, P buckets.
"""

from keras import ops

from keras_txf.ops.attention import head_products
from keras_txf.ops.heads import batch_size, swap_heads


def disentangled_bias(query, key, position_query, position_key, buckets):
    """query · position_keyᵀ and position_query · keyᵀ, each at the bucket of its query and key.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H).
        position_query: (1, P, N, H), or None for no such term.
        position_key: (1, P, K, H), or None for no such term.
        buckets: int (B or 1, T, S), the bucket of each query and key.

    Returns:
        (B, N, T, S).

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), equation 4.
    """
    terms = []
    if position_key is not None:
        products = head_products(query, swap_heads(position_key))  # (B, N, T, P)
        rows = ops.arange(ops.shape(products)[2])[:, None]
        terms.append(_look_up(products, rows * products.shape[3] + buckets))
    if position_query is not None:
        products = head_products(position_query, swap_heads(key))  # (B, N, P, S)
        length = ops.shape(products)[3]
        terms.append(_look_up(products, buckets * length + ops.arange(length)))
    return sum(terms[1:], terms[0])


def _look_up(products, places):
    """The products (B, N, any, any) at flat places, int (B or 1, T, S) -> (B, N, T, S)."""
    shape = ops.shape(products)
    products = ops.reshape(products, (batch_size(products), products.shape[1], shape[2] * shape[3]))
    if places.shape[0] == 1:  # one table of places for all rows takes no memory for each of them
        return ops.take(products, places[0], axis=2)
    queries, keys = ops.shape(places)[1:]
    places = ops.reshape(places, (batch_size(places), 1, queries * keys))
    found = ops.take_along_axis(products, places, axis=2)
    return ops.reshape(found, (batch_size(found), products.shape[1], queries, keys))
