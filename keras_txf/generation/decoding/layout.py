"""Layouts: the columns, masks and positions of the tokens of a prompt and of a step.

The sequences of a batch lie in L columns: prompts of P columns, padded on the left, and the tokens after them. A step
reads W tokens of each sequence. The W tokens are alternatives, such as the beams of a search: they share one position
of the sequence and lie in W columns. A model may put n vectors before the tokens. Its later layers then have n more
columns, which stand directly before the first real token of each row.

Legend: B batch, P prompt length, L columns, W width, n prefix length, C slots.
"""

import functools

from keras import ops

from keras_txf.layers.cache_slots import columns_in_slots, positions_of, prompt_mask, prompt_slots
from keras_txf.layers.caches import Cache
from keras_txf.ops.masks import first_real, padding_positions, put_slice, window_mask
from keras_txf.ops.tensors import at_least, insert_before


class Layout:
    """The base of the two layouts.

    Args:
        width: W.
    """

    def __init__(self, width):
        self.width, self._known, self._real = width, {}, {}

    def owns(self, mask):
        """Whether a Keras mask is one of the masks `real`: every part knows these, so no memory keeps them."""
        return mask is None or any(mask is known for known in self._real.values())

    def columns_of(self, prefix):
        """How many columns a prefix of n vectors takes: a multiple of W, so that the slots of W tokens never wrap."""
        return -(-prefix // self.width) * self.width

    def _behind(self, mask, first, prefix):
        """A mask (B, ..., L), extended by a prefix whose vectors stand before the column `first` of each row."""
        more = self.columns_of(prefix)
        columns = ops.arange(more + ops.shape(mask)[-1], dtype="int32")
        start = ops.reshape(first, (-1, *[1] * (len(mask.shape) - 1))) + (more - prefix)
        rest = ops.pad(mask, [(0, 0)] * (len(mask.shape) - 1) + [(more, 0)])
        inside = ops.logical_and(columns >= start, columns < start + prefix)
        return ops.logical_or(ops.logical_and(rest, columns >= start), inside)


class PromptLayout(Layout):
    """The tokens of a prompt.

    Args:
        real: bool (B, P), True at the real tokens.
        width: W of the steps after the prompt.
        is_last: whether the tensors have only the last column, which the layers after the last attention read.
    """

    is_prompt = True

    def __init__(self, real, width, is_last=False):
        super().__init__(width)
        self.real_tokens, self.is_last = real, is_last
        self.first = first_real(real)

    @functools.cached_property
    def positions(self):
        """(B, P): how many real tokens stand before each."""
        return padding_positions(self.real_tokens)

    def real(self, prefix):
        """bool (B, P), or with the columns of a prefix: always the same tensor, so that `owns` recognizes it."""
        if prefix not in self._real:
            self._real[prefix] = self._behind(self.real_tokens, self.first, prefix) if prefix else self.real_tokens
        return self._real[prefix]

    def insert(self, vectors, tokens):
        """Puts n vectors (B, n, ...) directly before the first real token of (B, P, ...)."""
        prefix = vectors.shape[1]
        return insert_before(vectors, tokens, self.first, self.columns_of(prefix) - prefix)

    def cache(self, memory, window, prefix, allowed, kind=Cache):
        """The `Cache` of a layer before any token; `allowed` is the caller's mask (B, columns), or None."""
        real = self.real(prefix)
        if allowed is not None:
            memory["mask"] = allowed
            real = ops.logical_and(real, allowed)
            return kind(*self._masks(window, prefix, kind, real), mask=real, width=self.width)
        key = window, prefix, kind
        if key not in self._known:  # layers with one window share a mask
            self._known[key] = self._masks(*key, real)
        return kind(*self._known[key], mask=real, width=self.width)

    def _masks(self, window, prefix, kind, keys):
        real = self.real(prefix)
        mask, positions = prompt_mask(real, keys, window)
        if not kind.keeps_all:
            allowed = kind.allows(positions[:, None, :, None], positions[:, None, None])
            slots = held_columns(kind, real, ops.shape(real)[1] - 1)
            return ops.logical_and(mask, allowed), positions, positions, slots
        slots = prompt_slots(window, self.width, real, ops.shape(real)[1])
        return mask, positions, positions, slots


def held_columns(kind, real, last):
    """The column that each slot holds once the column `last` is written, (B, C); -1 for none; `real` is bool (B, L)."""
    first = first_real(real)[:, None]
    held = kind.held(last - first)
    return ops.where(held >= 0, held + first, -1)


def move_slots(x, axis, slots, shift, last, is_ring):
    """A tensor with another number of slots on an axis, and its columns moved to the right, see `Part.move`.

    Args:
        is_ring: whether column c lies in slot c mod C, otherwise in slot c.
    """
    held, before = ops.arange(slots, dtype="int32"), ops.shape(x)[axis]
    held = (columns_in_slots(last, slots) if is_ring else held)[None] - shift[:, None]
    held = ops.mod(held, before) if is_ring else ops.clip(held, 0, before - 1)
    shape = [-1 if i == axis else 1 for i in range(1, len(x.shape))]
    return ops.take_along_axis(x, ops.reshape(held, (ops.shape(x)[0], *shape)), axis)


class StepLayout(Layout):
    """The tokens of a step.

    Args:
        mask: bool (B, W, L), the columns that each token may attend to.
        column: int scalar, the first column that the step writes.
        prompt_length: P, an integer or a scalar tensor; None if W is 1.
    """

    is_prompt = False

    def __init__(self, mask, column, prompt_length):
        super().__init__(mask.shape[1])
        self.mask, self.column, self.prompt_length = mask, column, prompt_length
        self.own = column + ops.arange(mask.shape[1], dtype="int32")

    @functools.cached_property
    def positions(self):
        """(B, T): how many real tokens stand before each."""
        return at_least(ops.sum(ops.cast(self.mask, "int32"), axis=-1) - 1, 0)

    @functools.cached_property
    def _tokens(self):
        return ops.ones_like(self.mask[..., 0], "bool")

    def real(self, prefix):
        """bool (B, T), True at the new tokens that are real."""
        self._real[0] = self._tokens
        return self._tokens

    @functools.cached_property
    def _rows(self):
        """bool (B, L): the real columns of each row."""
        real = ops.any(self.mask, axis=1)
        if self.width == 1:
            return real
        # The first alternative may not have been chosen: a row without a prompt counts from the prompt's end.
        return ops.logical_or(real, ops.arange(ops.shape(real)[1], dtype="int32") >= self.prompt_length)

    def insert(self, vectors, tokens):
        """The tokens: only the prompt has the vectors before the tokens."""
        return tokens

    @functools.cached_property
    def parents(self):
        """int (B, W): the index of the last step's token that precedes each token. After a prompt all are equal."""
        columns = self.column - self.width + ops.arange(self.width, dtype="int32")
        last = ops.take(self.mask, at_least(columns, 0), axis=2)
        return ops.argmax(ops.cast(last, "int32"), axis=2)

    def _after_prefix(self, prefix):
        """The mask (B, T, columns), the real columns (B, columns), the step's columns and P, all after a prefix."""
        if not prefix:
            return self.mask, self._rows, self.own, self.prompt_length
        more = self.columns_of(prefix)
        first = first_real(self._rows)
        masks = (self._behind(x, first, prefix) for x in (self.mask, self._rows))
        prompt_length = None if self.prompt_length is None else self.prompt_length + more
        return *masks, self.own + more, prompt_length

    def cache(self, memory, window, prefix, allowed, kind=Cache):
        """The `Cache` of a layer with the earlier tokens; `allowed` is the caller's mask (B, T), or None."""
        names = kind.names()
        states = {name: x for name, x in memory.items() if name not in (*names, "mask")}
        options = {"states": states, "width": self.width, "parents": self.parents if states else None}
        options |= self._mask_options(allowed)
        if not {*names} <= set(memory):
            return Cache(None, self.positions + prefix, **options)
        options["stored"] = {name: memory[name] for name in names}
        key = window, prefix, kind, ops.shape(memory[names[0]])[2]
        if allowed is not None:
            memory["mask"] = table = self._put_mask(memory["mask"], allowed, self.column + self.columns_of(prefix))
            return kind(*self._masks(*key, table), **options)
        if key[:3] not in self._known:
            self._known[key[:3]] = self._masks(*key)
        return kind(*self._known[key[:3]], **options)

    def _mask_options(self, allowed):
        """The options `mask` and `real` of a `Cache`: which new tokens a layer sees, and which are real; None: all."""
        return {"mask": allowed}

    def _put_mask(self, table, allowed, first):
        return put_slice(table, allowed, first, 1)

    def _masks(self, window, prefix, kind, slots, table=None):
        mask, rows, own, prompt_length = self._after_prefix(prefix)
        if table is not None:
            mask = ops.logical_and(mask, table[:, None])
        columns = ops.arange(slots, dtype="int32")
        if not kind.keeps_all:
            columns = held_columns(kind, rows, own[-1])
            mask = ops.take_along_axis(mask, at_least(columns, 0)[:, None], axis=2)
            mask = ops.logical_and(mask, (columns >= 0)[:, None])
        elif window is not None:
            columns = columns_in_slots(own[-1], slots)
            mask = ops.logical_and(ops.take(mask, at_least(columns, 0), axis=2), columns >= 0)
        steps, key_steps = self._steps(own, prompt_length), self._steps(columns, prompt_length)
        mask = ops.logical_or(mask, own[:, None] == ops.expand_dims(columns, -2))
        if window is not None:
            mask = ops.logical_and(mask, window_mask(steps, key_steps, window, causal=True))
        slots = self._written(window, own, columns)
        return mask[:, None], positions_of(rows, steps), positions_of(rows, key_steps), slots

    def _written(self, window, own, columns):
        """The slots of the new keys: the first slot, a scalar, or the index of the new key in each slot, int (B, C)."""
        if len(columns.shape) == 2:
            return ops.where(columns == own[0], 0, -1)
        return own[0] if window is None else ops.mod(own[0], ops.shape(columns)[0])

    def _steps(self, columns, prompt_length):
        """The numbers of columns, counted so that the alternatives of a step share one number."""
        if self.width == 1:
            return columns
        return ops.where(columns < prompt_length, columns, prompt_length + (columns - prompt_length) // self.width)


class OrderedLayout(StepLayout):
    """T consecutive tokens of each sequence, padding included: the next turn of a chat, or a draft.

    Args:
        real: bool (B, L), True at the real columns, also at the real new tokens.
        new: bool (B, T), True at the new tokens that are real.
        column: int scalar, the first column that the step writes.
        keeps: whether padding among the new tokens keeps the earlier tokens that its columns hold.
    """

    def __init__(self, real, new, column, keeps=False):
        own = column + ops.arange(new.shape[1], dtype="int32")
        columns = ops.arange(ops.shape(real)[1], dtype="int32")
        super().__init__(ops.logical_and(real[:, None], columns <= own[:, None]), column, column)
        self.width, self.keeps, self.columns, self._tokens = 1, keeps, real, new

    @property
    def _rows(self):
        return self.columns

    def _mask_options(self, allowed):
        real = self.real(0)
        return {"real": real, "mask": real if allowed is None else ops.logical_and(real, allowed)}

    def _put_mask(self, table, allowed, first):
        before = ops.take(table, first + ops.arange(ops.shape(allowed)[1], dtype="int32"), axis=1)
        return super()._put_mask(table, ops.where(self.real(0), allowed, before), first)

    def _written(self, window, own, columns):
        if window is None and not self.keeps and len(columns.shape) == 1:
            return own[0]
        index = columns - own[0]  # of the new token in each slot
        is_new = ops.logical_and(index >= 0, index < ops.shape(own)[0])
        index = ops.where(is_new, index, 0)
        if len(columns.shape) == 1:
            is_real = ops.take(self.real(0), index, axis=1)
        else:
            is_real = ops.take_along_axis(self.real(0), index, axis=1)
        return ops.where(ops.logical_and(is_new, is_real), index, -1)
