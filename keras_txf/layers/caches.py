"""Cache: the memory of a layer that mixes positions, for decoding.

The sequences of a batch have L columns and are padded on the left, so all rows write the same columns. A step reads W
tokens of each sequence: one token, or W alternatives with the same position, such as the beams of a search. After a
prompt of P columns the tokens of step n are in the columns P + n W, ..., P + n W + W - 1.

A cache has C slots, and column c is in slot c mod C. Without a window C is L; a window needs W slots for each of its
tokens.

Legend: B batch, P prompt length, L columns, W width, T new tokens (P or W), C slots, S context length, K key-value
    heads, H head dim.
"""

from typing import Any, Self

from keras import ops

from keras_txf import checks
from keras_txf.layers.cache_slots import prompt_mask, prompt_slots, put_columns
from keras_txf.ops.masks import as_rank_four, first_real, number_runs, prefix_mask, same_run
from keras_txf.ops.tensors import at_least, at_most, nan_unless, swap_heads, take_columns


class Cache:
    """The memory of a layer for earlier tokens, and the positions of the new tokens.

    A layer decodes if its `call` has an argument `cache`. `generate` then passes a `Cache`; training passes None.

    Attention reads `positions` from the cache, replaces its keys and values by `cache.update(key, value)`, and attends
    where `cache.attention_mask` is True. A layer that attends to a context has arguments `context` and `cache`, and a
    method `project_context(context)` that returns keys and values. With a cache it calls `cache.read()` instead.

    A recurrence begins with `cache.read_state(name, initial)`, and passes its last state to `cache.write_state(name,
    state)`. A step of a beam search reads W alternatives (B, W, D), each with its own state. `cache.split(inputs)`
    makes them rows (B W, 1, D), on which the recurrence runs, and `cache.join` reverses this. For a prompt and for a
    single token both return their argument. A convolution calls `look_back` for the inputs before the new inputs.

    Attributes:
        attention_mask: bool (B, 1, T, keys), True where a new token may attend; None: everywhere.
        positions: int (B, T), positions of the new tokens in their sequences; None in the cache of a context.
        key_positions: int (B, keys), positions of the keys; None in the cache of a context.
        mask: bool (B, T), True at the new tokens that are real; None: all new tokens are real.

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
        self._real = real  # bool (B, T), if padding separates the earlier tokens from the new tokens

    # A subclass overrides the following names to store keys and values in another form, or fewer of them.

    parts = ("",)  # suffixes of the names of the tensors that `pack` returns; the prefixes are "key" and "value"

    def pack(self, x: Any) -> tuple[Any, ...]:
        """Keys or values (B, K, T, H) in the form of the cache: tensors (B, K, T, ...), one for each of `parts`."""
        return (x,)

    def unpack(self, *parts: Any) -> Any:
        """The reverse of `pack`: keys or values (B, K, C, H)."""
        return parts[0]

    @classmethod
    def names(cls) -> list[str]:
        """The names of all tensors in the cache."""
        return [kind + part for kind in ("key", "value") for part in cls.parts]

    keeps_all = True  # False: `held` selects the tokens in the cache

    @classmethod
    def slot_count(cls) -> int:
        """The number C of slots of a cache that does not keep all tokens."""
        raise NotImplementedError

    @classmethod
    def held(cls, last: Any) -> Any:
        """The token in each slot after token `last`, int (B, 1), is written: int (B, C), -1 for an empty slot."""
        raise NotImplementedError

    @classmethod
    def allows(cls, positions: Any, key_positions: Any) -> Any:
        """Whether tokens at `positions` may attend to keys at `key_positions`, bool."""
        raise NotImplementedError

    @property
    def key(self) -> Any:
        """The keys in the cache, (B, K, C, H), or None."""
        return self.stored.get("key")

    @property
    def value(self) -> Any:
        """The values in the cache, (B, K, C, H), or None."""
        return self.stored.get("value")

    @classmethod
    def of_prompt(cls, attention_mask: Any, length: int, window: int | None = None, width: int = 1) -> Self:
        """Makes the cache for a call of an attention layer on a prompt.

        Args:
            attention_mask: bool (B, L), True at the real tokens of the prompt.
            length: number P of columns of the prompt.
            window: window of the attention, or None.
            width: number W of tokens of each sequence in the later steps.
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
        """Writes keys and values of the new tokens, (B, T, K, H). Returns all keys and values, (B, keys, K, H)."""
        if not self._is_new:
            raise ValueError(
                "`update` must be called once for each call of the layer: a cache holds one pair of keys and values."
            )
        self._is_new = False
        for kind, x in (("key", key), ("value", value)):
            names = [kind + part for part in self.parts]
            if not self.stored.keys() >= {*names}:  # a prompt: its columns become the cache
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
        keys, values = self.read()  # on PyTorch Keras infers float32 for bfloat16 outputs of a layer
        return ops.cast(keys, key.dtype), ops.cast(values, value.dtype)

    def read(self) -> tuple[Any, Any]:
        """The keys and values in the cache, (B, keys, K, H)."""
        key, value = (self.unpack(*(self.stored[kind + part] for part in self.parts)) for kind in ("key", "value"))
        return swap_heads(key), swap_heads(value)

    def pairs(
        self,
        attention_mask: Any,
        attention_bias: Any,
        prefix_length: Any,
        window: int | None,
        bidirectional_mask: Any = None,
    ) -> tuple[Any, Any]:
        """Returns the mask and the bias for new tokens and keys, from tensors for all positions; before `update`.

        Args:
            attention_mask: bool, up to (B or 1, N or 1, L, L), or None.
            attention_bias: float (B or 1, N or 1, L, L), or None.
            prefix_length: int (B,), or None.
            window: window of the attention, or None.
            bidirectional_mask: bool (B, T) of the new tokens, or None.

        The bias is NaN at a token from position L on, and at a token after the prompt but within the prefix or a run of
        the bidirectional mask.
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
            biases.append(self._nan_unless(ops.greater_equal(self.positions, prefix_length[:, None])))
        if bidirectional_mask is not None and self.mask is not None:
            bidirectional_mask = ops.logical_and(bidirectional_mask, self.mask)
        if bidirectional_mask is not None and self._of_prompt:
            runs = number_runs(bidirectional_mask)
            mask = ops.logical_or(mask, same_run(runs, runs))
        elif bidirectional_mask is not None:
            biases.append(self._nan_unless(ops.logical_not(bidirectional_mask)))
        if attention_mask is not None:
            table = as_rank_four(attention_mask)
            mask = ops.logical_and(mask, self._of_positions(table))
            biases.append(self._nan_unless(self.positions < ops.shape(table)[-2]))
        return mask, sum(biases) if biases else None

    def _of_positions(self, table):
        """The entries (B, heads, T, keys) of a table (B or 1, heads, L, L)."""
        for axis, positions in ((2, self.positions), (3, self.key_positions)):
            positions = at_most(positions, ops.shape(table)[axis] - 1)
            if table.shape[0] == 1:
                table = ops.moveaxis(ops.take(table[0], positions, axis=axis - 1), axis - 1, 0)
            else:
                shape = list(ops.shape(table))
                shape[axis] = ops.shape(positions)[1]
                positions = positions[:, None, :, None] if axis == 2 else positions[:, None, None]
                table = ops.take_along_axis(table, ops.broadcast_to(positions, shape), axis=axis)
        return table

    def _nan_unless(self, valid, dtype="float32"):
        return nan_unless(valid, dtype)[:, None, :, None]

    def read_state(self, name: str, initial: Any) -> Any:
        """Returns the state before the new tokens, (rows of `split`, ...); for a prompt `initial`, (B, ...)."""
        if self._states is None:
            return initial
        states = self._states[name]
        if self._width > 1:
            parents = ops.reshape(self._parents, (-1, self._width, *[1] * (len(states.shape) - 2)))
            states = ops.take_along_axis(states, parents, axis=1)
        return ops.reshape(states, (-1, *states.shape[2:]))

    def write_state(self, name: str, state: Any) -> None:
        """Stores the state after the new tokens, (rows of `split`, ...), for the next step."""
        if self._states is None:  # the state of a prompt, for each of the alternatives of the first step
            self.new_states[name] = ops.repeat(state[:, None], self._width, axis=1)
        else:
            self.new_states[name] = ops.reshape(state, (-1, self._width, *state.shape[1:]))

    def look_back(self, name: str, inputs: Any, length: int) -> Any:
        """Returns the rows of `split` (rows, T, D) after the last `length` earlier inputs, or zeros.

        The cache stores the last `length` inputs under this name: the caller does not call `write_state`.
        """
        x = inputs
        if self.mask is not None:
            x = ops.where(self.split(self.mask)[..., None], x, ops.zeros_like(x))
        before = self.read_state(name, ops.repeat(ops.zeros_like(x[:, :1]), length, axis=1))
        x = ops.concatenate([before, x], axis=1)
        if self._real is None:
            self.write_state(name, x[:, ops.shape(x)[1] - length :])
            return x
        # Move the earlier inputs to the columns right before the first real token; padding may follow the last one.
        tokens, is_real = self._real.shape[1], ops.cast(self._real, "int32")
        first = ops.where(ops.any(self._real, axis=1), first_real(self._real), tokens)[:, None]
        index = ops.arange(length + tokens, dtype="int32")[None] - first
        index = ops.where(index < 0, length, ops.where(index < length, index, index + first))
        x = ops.take_along_axis(x, index[..., None], axis=1)
        last = ops.arange(length, dtype="int32") + first + ops.sum(is_real, axis=1, keepdims=True)
        self.write_state(name, ops.take_along_axis(x, last[..., None], axis=1))
        return x

    def split(self, inputs: Any) -> Any:
        """Returns the tokens of a step (B, W, ...) as rows (B W, 1, ...)."""
        if self._states is None or self._width == 1:
            return inputs
        return ops.reshape(inputs, (-1, 1, *inputs.shape[2:]))

    def repeat(self, context: Any) -> Any:
        """Repeats a tensor (B, ...) that the alternatives of a step share, for each row of `split`."""
        return context if self._states is None or self._width == 1 else ops.repeat(context, self._width, axis=0)

    def join(self, outputs: Any) -> Any:
        """Returns the rows of `split` (B W, 1, ...) as tokens of a step (B, W, ...)."""
        if self._states is None or self._width == 1:
            return outputs
        return ops.reshape(outputs, (-1, self._width, *outputs.shape[2:]))
