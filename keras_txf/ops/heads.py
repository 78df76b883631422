"""The axes of heads: swapped with the length, and in groups that share keys and values.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

from keras import ops


def swap_heads(x):
    """(B, S, K, H) <-> (B, K, S, H)."""
    return ops.transpose(x, (0, 2, 1, 3))


def batch_size(x):
    """The batch size for a reshape: the static one, for a reshape to -1 fails where the length is 0; otherwise -1.

    A batch size that is read from the tensor breaks the conversion to ONNX.
    """
    return -1 if x.shape[0] is None else x.shape[0]


def group_heads(x, kv_heads):
    """(B, N, T, any) -> (B, K, N/K · T, any): the heads that share a key-value head lie one after the other."""
    heads = x.shape[1]
    if heads == kv_heads:
        return x
    return ops.reshape(x, (batch_size(x), kv_heads, heads // kv_heads * ops.shape(x)[2], ops.shape(x)[3]))


def ungroup_heads(x, heads, length):
    """(B, K, N/K · T, any) -> (B, N, T, any)."""
    if x.shape[1] == heads:
        return x
    return ops.reshape(x, (batch_size(x), heads, length, ops.shape(x)[-1]))
