"""Cache: what decoding adds to a layer that mixes positions.

The sequences of a batch lie side by side in L columns, padded on the left, so that all rows write the same columns. A
step reads W tokens of each sequence: one, or W alternatives, such as the beams of a search, which share one position of
the sequence. After a prompt of P columns the tokens of step n lie in columns P + n W, ..., P + n W + W - 1.

A cache has C slots, and column c lies in slot c mod C. Without a window C is L; a window needs W slots for each of its
tokens.

Legend: B batch, P prompt length, L columns, W width, T new tokens (P or W), C slots, S context length, K key-value
    heads, H head dim.
"""

from typing import Any, Self

from keras import ops

from keras_txf import checks
from keras_txf.layers.cache_slots import first_real, prompt_mask, prompt_slots, put_columns, take_columns
from keras_txf.ops.masks import as_rank_four, prefix_mask
from keras_txf.ops.tensors import at_least, at_most, nan_unless, swap_heads


class Cache:
    """What a layer remembers of the tokens that it has read, and where the new tokens stand among them.

    A layer decodes if its `call` takes a `cache`. `generate` then passes a `Cache`; training passes None.

    Attention takes `positions` from the cache, replaces its keys and values by `cache.update(key, value)`, and attends
    where `cache.attention_mask` allows. A layer that attends to a context takes `context` and `cache`, has a method
    `project_context(context)` that returns keys and values, and calls `cache.read()` instead of it.

    A recurrence begins with `cache.read_state(name, initial)`, and gives its last state to `cache.write_state(name,
    state)`. A step of a beam search reads W alternatives (B, W, D), each of which has its own state:
    `cache.split(inputs)` makes rows of them, (B W, 1, D), on which the recurrence runs, and `cache.join` takes them
    back. For a prompt and for a single token both return what they are given. A convolution asks `look_back` for the
    inputs before the new ones.

    Attributes:
        attention_mask: bool (B, 1, T, keys), True where a new token may attend; None: everywhere.
        positions: int (B, T), positions of the new tokens in their sequences; None in the cache of a context.
        key_positions: int (B, keys), positions of the keys; None in the cache of a context.
        mask: bool (B, T), True at the new tokens that are real; None: all are.

    Example:

    >>> cache = txf.layers.Cache.of_prompt(np.ones((2, 5), bool), length=5)
    >>> layer = txf.layers.MultiHeadSelfAttention(num_heads=4, causal=True)
    >>> outputs = layer(keras.random.normal((2, 5, 32)), cache=cache)
    >>> cache.key.shape
    (2, 4, 5, 8)
    """

    def __init__(
        self,
        attention_mask: Any,
        positions: Any = None,
        key_positions: Any = None,
        slots: Any = None,
        stored: dict[str, Any] | None = None,
        mask: Any = None,
        states: dict[str, Any] | None = None,
        width: int = 1,
        parents: Any = None,
        real: Any = None,
    ):
        self.attention_mask, self.positions, self.key_positions = attention_mask, positions, key_positions
        self.stored = stored or {}  # (B, K, C, ...): XLA updates them in place, and multiplies them without a copy
        self.mask, self.new_states = mask, {}
        self._slots, self._is_new, self._of_prompt = slots, True, not self.stored
        self._states, self._width, self._parents = states, width, parents  # (B, W, ...) by name; int (B, W)
        self._real = real  # bool (B, T) where padding stands between what was read and the new tokens

    # How keys and values are kept, and which of them: what another kind of cache replaces.

    parts = ("",)  # the names of the tensors that `pack` returns, after "key" and "value"

    def pack(self, x: Any) -> tuple[Any, ...]:
        """Keys or values (B, K, T, H) as they are kept: tensors (B, K, T, ...), one for each of `parts`."""
        return (x,)

    def unpack(self, *parts: Any) -> Any:
        """The reverse of `pack`: keys or values (B, K, C, H)."""
        return parts[0]

    @classmethod
    def names(cls) -> list[str]:
        """The names of all tensors that are kept."""
        return [kind + part for kind in ("key", "value") for part in cls.parts]

    keeps_all = True  # False: `held` says which tokens are kept

    @classmethod
    def slot_count(cls) -> int:
        """C, of a cache that does not keep all tokens."""
        raise NotImplementedError

    @classmethod
    def held(cls, last: Any) -> Any:
        """Which token of its row each slot holds once token `last`, int (B, 1), is written: int (B, C), -1 for none."""
        raise NotImplementedError

    @classmethod
    def allows(cls, positions: Any, key_positions: Any) -> Any:
        """Whether the tokens at `positions` still hold earlier ones when they are read: bool."""
        raise NotImplementedError

    @property
    def key(self) -> Any:
        """The keys that are kept, (B, K, C, H), or None."""
        return self.stored.get("key")

    @property
    def value(self) -> Any:
        """The values that are kept, (B, K, C, H), or None."""
        return self.stored.get("value")

    @classmethod
    def of_prompt(cls, attention_mask: Any, length: int, window: int | None = None, width: int = 1) -> Self:
        """Makes the cache with which an attention layer reads a prompt.

        Args:
            attention_mask: bool (B, L), True at the real tokens of the prompt.
            length: the number P of the prompt's columns.
            window: of the attention, or None.
            width: how many tokens of each sequence the steps after it read.
        """
        attention_mask = checks.tensor("attention_mask", attention_mask)
        checks.mask("attention_mask", attention_mask, (2, "(batch, columns)"))
        checks.integer_between("length", length, 1, attention_mask.shape[1])
        checks.optional(checks.size, "window", window)
        checks.size("width", width)
        real = attention_mask[:, :length]
        mask, positions = prompt_mask(real, real, window)
        return cls(
            mask, positions, positions, prompt_slots(window, width, attention_mask, length), mask=real, width=width
        )

    def update(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Writes the new tokens' keys and values (B, T, K, H); returns those to attend to, (B, keys, K, H)."""
        if not self._is_new:
            raise ValueError(
                "`update` must be called once for each call of the layer: a cache holds one pair of keys and values."
            )
        self._is_new = False
        for kind, x in (("key", key), ("value", value)):
            names = [kind + part for part in self.parts]
            if not self.stored.keys() >= {*names}:  # a prompt attends to itself, and its columns become the cache
                new = self.pack(swap_heads(take_columns(x, at_least(self._slots, 0))))
            else:
                new = self.pack(swap_heads(x))
                new = [put_columns(self.stored[name], part, self._slots) for name, part in zip(names, new, strict=True)]
            if len(new) != len(names):
                raise ValueError(
                    f"`parts` of {type(self).__name__} must name the tensors that `pack` returns; received "
                    f"{self.parts} for {len(new)} of them."
                )
            self.stored = {**self.stored, **dict(zip(names, new))}
        if self._of_prompt:
            return key, value
        keys, values = self.read()  # on PyTorch Keras infers float32 for what a layer computes in bfloat16
        return ops.cast(keys, key.dtype), ops.cast(values, value.dtype)

    def read(self) -> tuple[Any, Any]:
        """Keys and values as they are, (B, keys, K, H)."""
        key, value = (self.unpack(*(self.stored[kind + part] for part in self.parts)) for kind in ("key", "value"))
        return swap_heads(key), swap_heads(value)

    def pairs(
        self, attention_mask: Any, attention_bias: Any, prefix_length: Any, window: int | None
    ) -> tuple[Any, Any]:
        """Returns the mask and the bias of new tokens and keys, out of those of all positions, before `update`.

        Args:
            attention_mask: bool, up to (B or 1, N or 1, L, L), or None.
            attention_bias: float (B or 1, N or 1, L, L), or None.
            prefix_length: int (B,), or None.
            window: of the attention, or None.

        The bias is NaN at a token beyond L, and at a token after the prompt that would belong to the prefix.
        """
        mask, biases = self.attention_mask, []
        if attention_bias is not None:
            bias = self._of_positions(attention_bias)
            biases += [bias, self._nan_unless(self.positions < ops.shape(attention_bias)[-2], bias.dtype)]
        if prefix_length is not None and self._of_prompt:
            both = ops.logical_and(
                self.mask[:, None, None], prefix_mask(self.positions, self.key_positions, prefix_length)
            )
            if window is not None:
                distance = self.positions[:, None, :, None] - self.key_positions[:, None, None]
                both = ops.logical_and(both, ops.abs(distance) < window)
            mask = ops.logical_or(mask, both)
        elif prefix_length is not None:
            biases.append(self._nan_unless(self.positions >= prefix_length[:, None]))
        if attention_mask is not None:
            table = as_rank_four(attention_mask)
            mask = ops.logical_and(mask, self._of_positions(table))
            biases.append(self._nan_unless(self.positions < ops.shape(table)[-2]))
        return mask, sum(biases) if biases else None

    def _of_positions(self, table):
        """(B, heads, T, keys), out of a table (B or 1, heads, L, L)."""
        for axis, positions in ((2, self.positions), (3, self.key_positions)):
            places = at_most(positions, ops.shape(table)[axis] - 1)
            if table.shape[0] == 1:
                table = ops.moveaxis(ops.take(table[0], places, axis=axis - 1), axis - 1, 0)
            else:
                shape = list(ops.shape(table))
                shape[axis] = ops.shape(places)[1]
                places = places[:, None, :, None] if axis == 2 else places[:, None, None]
                table = ops.take_along_axis(table, ops.broadcast_to(places, shape), axis=axis)
        return table

    def _nan_unless(self, valid, dtype="float32"):
        return nan_unless(valid, dtype)[:, None, :, None]

    def read_state(self, name: str, initial: Any) -> Any:
        """Returns the state before the new tokens, (rows of `split`, ...): that of a prompt is `initial`, (B, ...)."""
        if self._states is None:
            return initial
        states = self._states[name]
        if self._width > 1:
            parents = ops.reshape(self._parents, (-1, self._width, *[1] * (len(states.shape) - 2)))
            states = ops.take_along_axis(states, parents, axis=1)
        return ops.reshape(states, (-1, *states.shape[2:]))

    def write_state(self, name: str, state: Any) -> None:
        """Keeps the state after the new tokens, (rows of `split`, ...), for the tokens after them."""
        if self._states is None:  # a prompt's, for each of the alternatives that follow
            self.new_states[name] = ops.repeat(state[:, None], self._width, axis=1)
        else:
            self.new_states[name] = ops.reshape(state, (-1, self._width, *state.shape[1:]))

    def look_back(self, name: str, inputs: Any, length: int) -> Any:
        """Returns the rows of `split` (rows, T, D) with the `length` before them, zeros before the first token.

        The last `length` are kept by this name: a `write_state` of its own is not needed.
        """
        x = inputs
        if self.mask is not None:
            x = ops.where(self.split(self.mask)[..., None], x, ops.zeros_like(x))
        before = self.read_state(name, ops.repeat(ops.zeros_like(x[:, :1]), length, axis=1))
        x = ops.concatenate([before, x], axis=1)
        if self._real is None:
            self.write_state(name, x[:, ops.shape(x)[1] - length :])
            return x
        # What was read stands right before the first real token, and padding may follow the last.
        tokens, is_real = self._real.shape[1], ops.cast(self._real, "int32")
        first = ops.where(ops.any(self._real, axis=1), first_real(self._real), tokens)[:, None]
        place = ops.arange(length + tokens, dtype="int32")[None] - first
        place = ops.where(place < 0, length, ops.where(place < length, place, place + first))
        x = ops.take_along_axis(x, place[..., None], axis=1)
        last = ops.arange(length, dtype="int32") + first + ops.sum(is_real, axis=1, keepdims=True)
        self.write_state(name, ops.take_along_axis(x, last[..., None], axis=1))
        return x

    def split(self, inputs: Any) -> Any:
        """Returns the tokens of a step (B, W, ...) as rows (B W, 1, ...)."""
        if self._states is None or self._width == 1:
            return inputs
        return ops.reshape(inputs, (-1, 1, *inputs.shape[2:]))

    def repeat(self, context: Any) -> Any:
        """Returns what the alternatives of a step share, (B, ...), once for each row of `split`."""
        return context if self._states is None or self._width == 1 else ops.repeat(context, self._width, axis=0)

    def join(self, outputs: Any) -> Any:
        """Returns the rows of `split` (B W, 1, ...) as tokens of a step (B, W, ...)."""
        if self._states is None or self._width == 1:
            return outputs
        return ops.reshape(outputs, (-1, self._width, *outputs.shape[2:]))
