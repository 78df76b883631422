"""Caches that use less memory: keys and values in 8 bits, and only the first and the last tokens."""

import functools
from typing import Any, ClassVar

from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.cache_slots import columns_in_slots
from keras_txf.layers.caches import Cache


class Int8Cache(Cache):
    """Keys and values in 8 bits, with a scale for each head and token: `generate(..., cache="int8")`.

    Within a prompt, attention uses the keys and values before rounding.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4, cache="int8").shape
    (1, 7)
    """

    parts = ("", "_scale")

    def pack(self, x: Any) -> tuple[Any, Any]:
        """Integers int8 (B, K, T, H) and scales (B, K, T, 1)."""
        scale = ops.max(ops.abs(x), axis=-1, keepdims=True) / 127
        scale = ops.where(scale > 0, scale, ops.ones_like(scale))
        return ops.cast(ops.round(x / scale), "int8"), scale

    def unpack(self, *parts: Any) -> Any:
        """Keys or values (B, K, C, H)."""
        return ops.cast(parts[0], parts[1].dtype) * parts[1]


class SinkCache(Cache):
    """Keeps the first and the last tokens: `generate(..., cache=SinkCache.of_size(sinks=4, window=252))`.

    A token attends to the first `sinks` tokens of its text and to the last `window` tokens, itself included. The memory
    does not grow with the text. The first tokens are attention sinks: heads attend to them if no other token matters,
    and a model with full attention fails without them. Positions are those of the whole text. A layer with its own
    window keeps its window.

    Reference:
        [Efficient Streaming Language Models with Attention Sinks](https://arxiv.org/abs/2309.17453).

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4, position="rotary")
    >>> cache = txf.layers.SinkCache.of_size(sinks=2, window=6)
    >>> model.generate([[5, 6, 7]], max_new_tokens=20, cache=cache).shape
    (1, 23)
    """

    sinks: ClassVar[int] = 4
    window: ClassVar[int] = 252
    keeps_all = False

    @classmethod
    def of_size(cls, sinks: int, window: int) -> type["SinkCache"]:
        """The cache class of this size. The same size returns the same class, so that `generate` compiles once."""
        return _of_size(cls, checks.count("sinks", sinks), checks.size("window", window))

    @classmethod
    def slot_count(cls) -> int:
        """C: the sinks and the window."""
        return cls.sinks + cls.window

    @classmethod
    def held(cls, last: Any) -> Any:
        """The sinks, then a ring buffer of the tokens after the sinks."""
        first = ops.arange(cls.sinks, dtype="int32") + ops.zeros_like(last)
        ring = columns_in_slots(last - cls.sinks, cls.window)
        held = ops.concatenate([first, ops.where(ring >= 0, ring + cls.sinks, -1)], axis=1)
        return ops.where(held <= last, held, -1)

    @classmethod
    def allows(cls, positions: Any, key_positions: Any) -> Any:
        """Whether a key is one of the sinks, or in the window."""
        return ops.logical_or(key_positions < cls.sinks, positions - key_positions < cls.window)


@functools.cache
def _of_size(kind, sinks, window):
    return type(kind.__name__, (kind,), {"sinks": sinks, "window": window})


def cache_kind(cache):
    """Returns the cache class of an option `cache`: None, "int8" or a subclass of `Cache`."""
    if cache is None:
        return Cache
    if isinstance(cache, str) and cache == "int8":
        return Int8Cache
    if not isinstance(cache, type) or not issubclass(cache, Cache):
        raise ValueError(
            f'`cache` must be None, "int8" or a subclass of txf.layers.Cache; received {short_repr(cache)}.'
        )
    return cache
