"""One boolean mask from positions, padding, window and segments. True means "may attend".

Legend: B batch, T query length, S key length, N heads.
"""

from keras import ops

from keras_txf import checks

ATTENTION_MASKS = (
    (2, "(query length, key length)"),
    (3, "(batch, query length, key length)"),
    (4, "(batch, heads, query length, key length)"),
)


def combine_masks(
    query_index,
    key_index,
    causal=False,
    window=None,
    key_padding=None,
    query_segments=None,
    key_segments=None,
    explicit=None,
):
    """The keys that each query may attend to.

    Query t may attend to key s where all of these hold:

        key_padding[b, s]                               the key is a real token (or, if causal, the
                                                        query itself, lest padding see what is later)
        query_segments[b, t] == key_segments[b, s]      both belong to one packed sequence
        s <= t                                          if causal
        |t - s| < window                                if there is a window (1: itself alone)
        explicit[b, n, t, s]                            the caller's own mask

    Args:
        query_index: int (T,), where the queries stand. A decode step passes its offset here.
        key_index: int (S,), where the keys stand.
        causal: whether a query sees itself and what came before only.
        window: number of keys on either side that a query may see, itself included.
        key_padding: bool (B, S), True at real tokens.
        query_segments: int (B, T). Needs `key_segments`.
        key_segments: int (B, S).
        explicit: bool (T, S), (B, T, S) or (B, N or 1, T, S).

    Returns:
        bool, broadcastable to (B, N, T, S), or None where nothing is masked.
    """
    conditions = []
    if causal:
        conditions.append(causal_mask(query_index, key_index)[None, None])
    if window is not None:
        conditions.append(window_mask(query_index, key_index, window, causal)[None, None])
    if key_padding is not None:
        checks.mask("mask", key_padding, (2, "(batch, length)"))
        real = ops.expand_dims(ops.cast(key_padding, "bool"), (1, 2))
        conditions.append(ops.logical_or(real, _distance(query_index, key_index) == 0) if causal else real)
    if query_segments is not None:
        checks.rank("segment_ids", query_segments, (2, "(batch, length)"))
        checks.rank("segment_ids", key_segments, (2, "(batch, length)"))
        checks.integers("segment_ids", query_segments)
        checks.integers("segment_ids", key_segments)
        same = ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))
        conditions.append(same[:, None])
    if explicit is not None:
        conditions.append(_as_rank_four(explicit))
    if not conditions:
        return None
    mask = conditions[0]
    for condition in conditions[1:]:
        mask = ops.logical_and(mask, condition)
    return mask


def causal_mask(query_index, key_index):
    """A query attends to itself and to earlier keys: int (T,) and int (S,) -> bool (T, S)."""
    return _distance(query_index, key_index) >= 0


def window_mask(query_index, key_index, window, causal):
    """A query attends to keys less than `window` away: int (T,) and int (S,) -> bool (T, S).

    With `causal` the window has no bound on later keys, which a causal mask hides.
    """
    distance = _distance(query_index, key_index)
    return (distance if causal else ops.abs(distance)) < window


def _distance(query_index, key_index):
    return ops.expand_dims(query_index, 1) - ops.expand_dims(key_index, 0)


def _as_rank_four(mask):
    mask = ops.convert_to_tensor(mask)
    checks.mask("attention_mask", mask, *ATTENTION_MASKS)
    mask = ops.cast(mask, "bool")
    if len(mask.shape) == 2:
        return mask[None, None]
    return mask[:, None] if len(mask.shape) == 3 else mask


def padding_positions(mask):
    """Positions (B, T) that count real tokens only, so that left padding shifts nothing.

    Args:
        mask: bool (B, T), True at real tokens.
    """
    return ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=-1) - 1, 0)
