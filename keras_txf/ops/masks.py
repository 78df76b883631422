"""Combines causality, padding, windows and segments in one boolean mask. True means "may attend".

Legend: B batch, T query length, S key length, N heads.
"""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.ops.tensors import at_least

HIDDEN = -1e30  # added to hidden logits: finite, so that a fully hidden row has no NaN

ATTENTION_MASKS = (
    (2, "(query length, key length)"),
    (3, "(batch, query length, key length)"),
    (4, "(batch, heads, query length, key length)"),
)


@dataclasses.dataclass
class AttentionMask:
    """The conditions of `combine_masks`, for a mask of all queries and keys, or of a block of them."""

    causal: bool = False
    window: int | None = None
    key_padding: Any = None  # bool (B, S)
    query_segments: Any = None  # int (B, T)
    key_segments: Any = None  # int (B, S)
    explicit: Any = None  # bool (T, S), (B, T, S) or (B, N or 1, T, S)
    keys: int | None = None  # the number of keys before the padding of `padded`
    prefix: Any = None  # int (B,), number of first tokens that see each other both ways, if causal
    query_runs: Any = None  # int (B, T), the run of `number_runs` that sees itself both ways, if causal; 0: no run
    key_runs: Any = None  # int (B, S)

    @property
    def causal_alone(self):
        """Whether the mask hides later keys and nothing else."""
        others = self.window, self.key_padding, self.query_segments, self.explicit, self.prefix, self.query_runs
        return self.causal and all(other is None for other in others)

    @property
    def has_pairs(self):
        """Whether `whole` has an entry for each pair of query and key, not only for each key."""
        explicit = self.explicit is not None and self.explicit.shape[-2] != 1
        of_pairs = self.window, self.query_segments, self.prefix, self.query_runs
        hides_pairs = explicit or any(x is not None for x in of_pairs)
        return hides_pairs or (self.causal and self.key_padding is not None)

    def whole(self, queries, keys):
        """Returns the mask, bool, broadcastable to (B, N, T, S); None if nothing is masked."""
        return self._combine(ops.arange(queries, dtype="int32"), ops.arange(keys, dtype="int32"))

    def padded(self, queries, keys, real_keys):
        """Returns the mask with further queries and hidden further keys, up to whole blocks."""
        return dataclasses.replace(
            self,
            key_padding=pad_axis(self.key_padding, keys, 1),
            query_segments=pad_axis(self.query_segments, queries, 1),
            key_segments=pad_axis(self.key_segments, keys, 1),
            explicit=pad_axis(pad_axis(as_rank_four(self.explicit), keys, 3), queries, 2),
            query_runs=pad_axis(self.query_runs, queries, 1),
            key_runs=pad_axis(self.key_runs, keys, 1),
            keys=None if isinstance(keys, int) and real_keys == keys else real_keys,
        )

    def block(self, first_query, first_key, queries, keys):
        """Returns the mask of numbers of queries and keys from the first ones on; None if nothing is masked."""
        part = dataclasses.replace(
            self,
            key_padding=slice_axis(self.key_padding, first_key, keys, 1),
            query_segments=slice_axis(self.query_segments, first_query, queries, 1),
            key_segments=slice_axis(self.key_segments, first_key, keys, 1),
            explicit=slice_axis(slice_axis(self.explicit, first_key, keys, 3), first_query, queries, 2),
            query_runs=slice_axis(self.query_runs, first_query, queries, 1),
            key_runs=slice_axis(self.key_runs, first_key, keys, 1),
        )
        key_index = first_key + ops.arange(keys, dtype="int32")
        mask = part._combine(first_query + ops.arange(queries, dtype="int32"), key_index)
        if self.keys is None:
            return mask
        real = (key_index < self.keys)[None, None, None]
        return real if mask is None else ops.logical_and(mask, real)

    def visible_keys(self, first_query, last_query):
        """Returns the bounds of the keys that queries may see, from the first up to the last; None means no bound."""
        if self.query_runs is not None:
            return None, None
        first = None if self.window is None else first_query - self.window + 1
        if self.causal and self.prefix is None:
            return first, last_query
        return first, None if self.window is None else last_query + self.window - 1

    def seeing_queries(self, first_key, last_key):
        """Returns the bounds of the queries that may see keys, from the first up to the last; None means no bound."""
        if self.query_runs is not None:
            return None, None
        last = None if self.window is None else last_key + self.window - 1
        if self.causal and self.prefix is None:
            return first_key, last
        return None if self.window is None else first_key - self.window + 1, last

    def _combine(self, query_index, key_index):
        return combine_masks(
            query_index,
            key_index,
            self.causal,
            self.window,
            self.key_padding,
            self.query_segments,
            self.key_segments,
            self.explicit,
            self.prefix,
            self.query_runs,
            self.key_runs,
        )


def real_tokens(ids, pad_id):
    """Returns bool, True at tokens that are not padding; True everywhere if `pad_id` is None."""
    return ops.ones_like(ids, "bool") if pad_id is None else ops.not_equal(ids, pad_id)


def pad_axis(x, length, axis):
    """Pads an axis up to a length, as `pad_to`; None and an axis of length 1, which broadcasts, do not change."""
    if x is None or x.shape[axis] == 1:
        return x
    return pad_to(x, length, axis)


def pad_to(x, length, axis):
    """Adds zeros or False at the end of an axis, up to a length."""
    missing = length - ops.shape(x)[axis]
    if isinstance(missing, int) and not missing:
        return x
    padding = [(0, missing if index == axis else 0) for index in range(len(x.shape))]
    if keras.backend.standardize_dtype(x.dtype) != "bool":
        return ops.pad(x, padding)
    return ops.cast(ops.pad(ops.cast(x, "int32"), padding), "bool")


def slice_axis(x, first, length, axis):
    """Returns a slice of an axis from `first` on; None and an axis of length 1, which broadcasts, do not change."""
    if x is None or x.shape[axis] == 1:
        return x
    sizes = [-1 if size is None else size for size in x.shape]
    sizes[axis] = length
    return ops.slice(x, _start(first, axis, len(sizes)), sizes)


def put_slice(x, values, first, axis):
    """Returns x with new values in a slice of an axis from `first` on, in the dtype of x."""
    return ops.slice_update(x, _start(first, axis, len(x.shape)), ops.cast(values, x.dtype))


def _start(first, axis, rank):
    """Returns the start of a slice, all int32: with `jax_enable_x64` a plain 0 is int64, and JAX needs one type."""
    first = np.int32(first) if isinstance(first, int) else ops.cast(first, "int32")
    return [first if index == axis else np.int32(0) for index in range(rank)]


def combine_masks(
    query_index,
    key_index,
    causal=False,
    window=None,
    key_padding=None,
    query_segments=None,
    key_segments=None,
    explicit=None,
    prefix=None,
    query_runs=None,
    key_runs=None,
):
    """Returns the mask of the keys that each query may attend to.

    Query t may attend to key s where all of these hold:

        key_padding[b, s]                               the key is a real token (or, if causal, the query
                                                        itself, so that padding sees no later key)
        query_segments[b, t] == key_segments[b, s]      both belong to one packed sequence
        s <= t, or s and t < prefix[b]                  if causal, unless both belong to one run
        |t - s| < window                                if there is a window (1: itself alone), unless both
                                                        belong to one run
        explicit[b, n, t, s]                            the caller's mask

    Args:
        query_index: int (T,), positions of the queries. A decode step passes its offset here.
        key_index: int (S,), positions of the keys.
        causal: whether a query sees only itself and earlier keys.
        window: number of keys on either side that a query may see, including itself.
        key_padding: bool (B, S), True at real tokens.
        query_segments: int (B, T). Needs `key_segments`.
        key_segments: int (B, S).
        explicit: bool (T, S), (B, T, S) or (B, N or 1, T, S).
        prefix: int (B,), number of first tokens that see each other both ways, if causal.
        query_runs: int (B, T), from `number_runs`; tokens of one run see each other. Needs `key_runs`.
        key_runs: int (B, S).

    Returns:
        bool, broadcastable to (B, N, T, S); None if nothing is masked.
    """
    check_conditions(key_padding, query_segments, key_segments)
    conditions = []
    if causal:
        seen = causal_mask(query_index, key_index)[None, None]
        conditions.append(seen if prefix is None else ops.logical_or(seen, prefix_mask(query_index, key_index, prefix)))
    if window is not None:
        one_sided = causal and prefix is None
        conditions.append(window_mask(query_index, key_index, window, one_sided)[None, None])
    if query_runs is not None and conditions:
        conditions = [ops.logical_or(_all_of(conditions), same_run(query_runs, key_runs))]
    if key_padding is not None:
        real = ops.expand_dims(ops.cast(key_padding, "bool"), (1, 2))
        conditions.append(ops.logical_or(real, _distance(query_index, key_index) == 0) if causal else real)
    if query_segments is not None:
        same = ops.equal(ops.expand_dims(query_segments, 2), ops.expand_dims(key_segments, 1))
        conditions.append(same[:, None])
    if explicit is not None:
        conditions.append(as_rank_four(explicit))
    return _all_of(conditions) if conditions else None


def _all_of(conditions):
    return functools.reduce(ops.logical_and, conditions)


def check_conditions(key_padding, query_segments, key_segments):
    """Raises ValueError unless padding is a mask (B, S), and segments are integers (B, T) and (B, S)."""
    if key_padding is not None:
        checks.mask("mask", key_padding, (2, "(batch, length)"))
    if query_segments is not None:
        for segments in (query_segments, key_segments):
            checks.rank("segment_ids", segments, (2, "(batch, length)"))
            checks.integers("segment_ids", segments)


def causal_mask(query_index, key_index):
    """A query attends to itself and to earlier keys: int (T,) and int (S,) -> bool (T, S)."""
    return _distance(query_index, key_index) >= 0


def prefix_mask(query_index, key_index, prefix):
    """Queries and keys within a prefix: int (T,) or (B, T), (S,) or (B, S) and (B,) -> bool (B, 1, T, S)."""
    query, key = (ops.less(ops.reshape(x, (-1, ops.shape(x)[-1])), prefix[:, None]) for x in (query_index, key_index))
    return ops.logical_and(query[:, None, :, None], key[:, None, None, :])


def number_runs(mask):
    """Numbers the runs of consecutive True in each row, bool (B, T) -> int (B, T): 1, 2, ...; 0 at False."""
    inside = ops.cast(mask, "int32")
    before = ops.pad(inside, ((0, 0), (1, 0)))[:, :-1]
    return inside * ops.cumsum(inside * (1 - before), axis=1)


def same_run(query_runs, key_runs):
    """Queries and keys within one run: int (B, T) and (B, S), from `number_runs` -> bool (B, 1, T, S)."""
    query = query_runs[:, None, :, None]
    return ops.logical_and(query > 0, ops.equal(query, key_runs[:, None, None]))


def window_mask(query_index, key_index, window, causal):
    """A query attends to keys less than `window` away: int (T,) and int (S,) -> bool (T, S).

    With `causal` the window does not hide later keys, because a causal mask does.
    """
    distance = _distance(query_index, key_index)
    return (distance if causal else ops.abs(distance)) < window


def _distance(query_index, key_index):
    return ops.expand_dims(query_index, 1) - ops.expand_dims(key_index, 0)


def as_rank_four(mask):
    if mask is None:
        return None
    mask = ops.convert_to_tensor(mask)
    checks.mask("attention_mask", mask, *ATTENTION_MASKS)
    mask = ops.cast(mask, "bool")
    if len(mask.shape) == 2:
        return mask[None, None]
    return mask[:, None] if len(mask.shape) == 3 else mask


def first_real(real):
    """The first column of each row with a real token, int (B,), of bool (B, L); 0 in a row without real tokens."""
    return ops.cast(ops.argmax(ops.cast(real, "int32"), axis=1), "int32")


def padding_positions(mask):
    """Returns positions (B, T) that count real tokens only, so that left padding shifts nothing.

    Args:
        mask: bool (B, T), True at real tokens.
    """
    return at_least(ops.cumsum(ops.cast(mask, "int32"), axis=-1) - 1, 0)
