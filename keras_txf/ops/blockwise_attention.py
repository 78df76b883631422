"""Attention in blocks of queries and keys: its memory grows with the length, not with the square of the length.

A block of logits is computed, used and forgotten. The forward pass keeps a running maximum and a running sum for the
softmax of each query; the backward pass computes each block again from them.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim, V head dim of values, C length of
    a block.

Reference:
    [FlashAttention-2](https://arxiv.org/abs/2307.08691), algorithms 1 and 2.
"""

import copy
import dataclasses
import math

import keras
from keras import ops

from keras_txf.backend.compilers import sequential_loop
from keras_txf.backend.keras_private import computing_in
from keras_txf.ops.masks import HIDDEN, AttentionMask, pad_to, put_slice, slice_axis
from keras_txf.ops.tensors import group_heads, ungroup_heads, wide_dtype

# The number of logits in a block, 32 MB of float32. For each block TensorFlow copies the gradient of all queries, so
# smaller blocks cost time there.
_BLOCK_SIZE = 2**23


def blockwise_attention(
    query,
    key,
    value,
    mask=None,
    bias=None,
    logit_soft_cap=None,
    dropout=None,
    zero_empty_rows=False,
    sinks=None,
    block_lengths=None,
):
    """Computes softmax(query · keyᵀ + bias) · value over the keys that the mask allows, block by block.

    Args:
        query: (B, N, T, H), scaled.
        key: (B, K, S, H).
        value: (B, K, S, V).
        mask: an `AttentionMask`, or None.
        bias: a `PositionBias`, or None.
        logit_soft_cap: c bends the logits to c · tanh(logits / c), before the bias.
        dropout: function of weights (B, N, C, C) and the number of their block, or None.
        zero_empty_rows: whether a query without a key gets zeros.
        sinks: float (N,), an extra logit for each head, whose attention weight multiplies no value; or None.
        block_lengths: C of the queries and of the keys; None chooses by size.

    Returns:
        (B, N, T, V).
    """
    lengths = ops.shape(query)[2], ops.shape(key)[2]
    mask = AttentionMask() if mask is None else mask
    rows, columns = block_lengths or _block_lengths(query, mask.window)
    wide = wide_dtype(query.dtype)
    all_blocks = _Blocks(lengths, rows, columns, mask, bias, logit_soft_cap, dropout, zero_empty_rows, wide)
    keys = all_blocks.column_blocks * columns
    inputs = [pad_to(query, all_blocks.row_blocks * rows, 2), pad_to(key, keys, 2), pad_to(value, keys, 2)]
    inputs += [] if sinks is None else [ops.reshape(ops.cast(sinks, wide), (1, -1, 1, 1))]
    inputs += [] if bias is None or bias.weights is None else [bias.weights]
    # Under `rematerialize` JAX computes a function again from its arguments: all tensors must be arguments.
    constants = all_blocks.constants()

    @ops.custom_gradient
    def function(query, key, value, *others):
        others, given = others[: len(inputs) - 3], others[len(inputs) - 3 :]
        blocks = all_blocks.with_constants(given)
        sink = None if sinks is None else others[0]
        weights = others[-1] if len(others) > (sinks is not None) else None
        output, log_total = blocks.forward(query, key, value, sink, weights)

        def gradient(*arguments, upstream=None):  # PyTorch's autograd passes the inputs, and `upstream` by name
            upstream = arguments[0] if upstream is None else upstream
            with computing_in(wide):  # the gradient is computed after the call of the layer
                gradients = blocks.backward(query, key, value, sink, weights, output, log_total, upstream)
            gradients = [ops.cast(x, original.dtype) for x, original in zip(gradients, inputs)]
            return (*gradients, *[None] * len(constants))

        return output, gradient

    return function(*inputs, *constants)[:, :, : lengths[0]]


def _block_lengths(query, window):
    """One length for queries and keys: a power of two, such that a block of all heads has at most `_BLOCK_SIZE`."""
    area = _BLOCK_SIZE // ((query.shape[0] or 1) * query.shape[1])
    length = 2 ** max(6, int(math.log2(area)) // 2) if area else 64
    if window is not None:  # much wider blocks would compute mostly hidden logits
        length = min(length, max(128, 2 ** math.ceil(math.log2(window))))
    return length, length


class _Blocks:
    """The two passes over the blocks. Queries, keys and values are padded to whole blocks."""

    def __init__(self, lengths, rows, columns, mask, bias, logit_soft_cap, dropout, zero_empty_rows, wide):
        self.rows, self.columns = rows, columns
        self.row_blocks, self.column_blocks = -(-lengths[0] // rows), -(-lengths[1] // columns)
        self.mask = mask.padded(self.row_blocks * rows, self.column_blocks * columns, lengths[1])
        self.bias = None if bias is None else bias.padded(self.row_blocks * rows, self.column_blocks * columns)
        self.logit_soft_cap, self.dropout = logit_soft_cap, dropout
        self.zero_empty_rows, self.wide = zero_empty_rows, wide

    def constants(self):
        """Returns the tensors without a gradient: tensors of the mask, the bias and the dropout."""
        return [getattr(getattr(self, part), field) for part, field in self._constant_fields()]

    def with_constants(self, tensors):
        """Returns a copy with other tensors instead of `constants()`."""
        blocks = copy.copy(self)
        blocks.mask, blocks.bias, blocks.dropout = map(copy.copy, (self.mask, self.bias, self.dropout))
        for (part, field), tensor in zip(self._constant_fields(), tensors, strict=True):
            setattr(getattr(blocks, part), field, tensor)
        return blocks

    def _constant_fields(self):
        parts = [name for name in ("mask", "bias", "dropout") if dataclasses.is_dataclass(getattr(self, name))]
        fields = [(name, field.name) for name in parts for field in dataclasses.fields(getattr(self, name))]
        return [(name, field) for name, field in fields if ops.is_tensor(getattr(getattr(self, name), field))]

    def forward(self, query, key, value, sink, weights):
        """Returns the output, and the logarithm of the sum of exponentials of each query's logits, (B, N, T, 1)."""
        key = ops.swapaxes(key, -1, -2)  # once: a product with a transpose takes 1.5 times as long on TensorFlow
        half = keras.backend.standardize_dtype(value.dtype) == "float16"
        of_product = self.wide if half else value.dtype  # the sum of 2,048 values of 32 overflows float16

        def one_row(i, state):
            rows = _block(query, i, self.rows)

            def one_block(j, state):
                top, total, output = state
                logits, _ = self._logits(rows, _block(key, j, self.columns, axis=3), i, j, weights)
                new_top = ops.maximum(top, ops.max(logits, axis=-1, keepdims=True))
                shrink, exponentials = ops.exp(top - new_top), ops.exp(logits - new_top)
                total = total * shrink + ops.sum(exponentials, axis=-1, keepdims=True)
                if self.dropout is not None:
                    exponentials = self.dropout(exponentials, self._number(i, j))
                values = ops.cast(_block(value, j, self.columns), of_product)
                product = _multiply(ops.cast(exponentials, of_product), values)
                return new_top, total, output * shrink + ops.cast(product, self.wide)

            nothing = ops.zeros_like(rows[..., :1], dtype=self.wide)
            start = nothing - 3e38, nothing, nothing + ops.zeros(value.shape[-1:], self.wide)
            if sink is not None:
                start = nothing + sink, nothing + 1, start[2]
            top, total, output = sequential_loop(*self._columns_of(i), one_block, start)
            # The largest logit adds 1 to `total`, which is 0 only if no block of keys lies in the window.
            output, seen = output / ops.maximum(total, 1), top > HIDDEN / 2
            if self.zero_empty_rows:
                output = output * ops.cast(seen, output.dtype)
            # A query without a visible key has no gradient: all its exponentials become 0.
            log_total = ops.where(seen, top + ops.log(ops.maximum(total, 1)), -HIDDEN)
            found = zip(state, (output, log_total))
            return tuple(_replace(old, new, i, self.rows) for old, new in found)

        nothing = ops.zeros_like(query[..., :1], dtype=self.wide)
        start = ops.cast(nothing + ops.zeros(value.shape[-1:], self.wide), query.dtype), nothing
        return sequential_loop(0, self.row_blocks, one_row, start)

    def backward(self, query, key, value, sink, weights, output, log_total, upstream):
        """Returns the gradients of query, key and value, and of sink and weights unless they are None, wide."""
        share = ops.sum(ops.cast(upstream, self.wide) * ops.cast(output, self.wide), axis=-1, keepdims=True)

        def one_column(j, state):
            columns = _block(key, j, self.columns)
            values = _block(value, j, self.columns)
            columns_t, values_t = ops.swapaxes(columns, -1, -2), ops.swapaxes(values, -1, -2)

            def one_block(i, state):
                queries, keys, of_values, of_weights = state
                rows, given = _block(query, i, self.rows), _block(upstream, i, self.rows)
                logits, slope = self._logits(rows, columns_t, i, j, weights)
                scores = ops.exp(logits - _block(log_total, i, self.rows))
                of_scores = ops.cast(_multiply(given, values_t), self.wide)
                dropped = scores
                if self.dropout is not None:
                    kept = self.dropout(ops.ones_like(scores), self._number(i, j))
                    dropped, of_scores = scores * kept, of_scores * kept
                more = _sum_over_rows(ops.cast(dropped, given.dtype), given, value.shape[1])
                of_values = of_values + ops.cast(more, self.wide)
                of_logits = scores * (of_scores - _block(share, i, self.rows))
                if weights is not None:
                    of_weights = of_weights + self.bias.gradient(of_logits, i * self.rows, j * self.columns)
                of_logits = ops.cast(of_logits if slope is None else of_logits * slope, query.dtype)
                keys = keys + ops.cast(_sum_over_rows(of_logits, rows, key.shape[1]), self.wide)
                more = _block(queries, i, self.rows) + ops.cast(_multiply(of_logits, columns), self.wide)
                return _replace(queries, more, i, self.rows), keys, of_values, of_weights

            queries, keys, of_values, of_weights = state
            nothing = [ops.zeros_like(x, dtype=self.wide) for x in (columns, values)]
            start = queries, *nothing, of_weights
            queries, *found, of_weights = sequential_loop(*self._rows_of(j), one_block, start)
            keys, of_values = (_replace(old, new, j, self.columns) for old, new in zip((keys, of_values), found))
            return queries, keys, of_values, of_weights

        start = [ops.zeros_like(x, dtype=self.wide) for x in (query, key, value)]
        start.append(ops.zeros((), self.wide) if weights is None else ops.zeros_like(weights, dtype=self.wide))
        *gradients, of_weights = sequential_loop(0, self.column_blocks, one_column, tuple(start))
        if sink is not None:
            gradients.append(-ops.sum(ops.exp(sink - log_total) * share, axis=(0, 2, 3), keepdims=True))
        return gradients if weights is None else [*gradients, of_weights]

    def _logits(self, rows, columns_t, i, j, weights):
        """The logits (B, N, C, C) of a block, wide, and the derivative of the soft cap or None."""
        logits, slope = ops.cast(_multiply(rows, columns_t), self.wide), None
        if self.logit_soft_cap is not None:
            bent = ops.tanh(logits / self.logit_soft_cap)
            logits, slope = bent * self.logit_soft_cap, 1 - ops.square(bent)
        starts = i * self.rows, j * self.columns
        bias = None if self.bias is None else self.bias.block(weights, *starts, self.rows, self.columns)
        logits = logits if bias is None else logits + ops.cast(bias, self.wide)
        mask = self.mask.block(*starts, self.rows, self.columns)
        return (logits if mask is None else logits + ops.where(mask, 0.0, ops.cast(HIDDEN, self.wide))), slope

    def _number(self, i, j):
        return i * self.column_blocks + j

    def _columns_of(self, i):
        """Returns the first block of keys that block i of the queries may see, and the last one plus 1."""
        first, last = self.mask.visible_keys(i * self.rows, (i + 1) * self.rows)
        return _range(first, last, self.columns, self.column_blocks)

    def _rows_of(self, j):
        """Returns the first block of queries that may see block j of the keys, and the last one plus 1."""
        first, last = self.mask.seeing_queries(j * self.columns, (j + 1) * self.columns)
        return _range(first, last, self.rows, self.row_blocks)


def _range(first, last, length, count):
    """Returns the range of blocks of a length that hold the indices from `first` up to `last`; None means no bound."""
    first = 0 if first is None else _larger(first, 0) // length
    return first, count if last is None else -_larger(-((last + length - 1) // length), -count)


def _larger(x, y):
    if isinstance(x, int) and isinstance(y, int):
        return max(x, y)
    return ops.maximum(x, y)


def _block(x, number, length, axis=2):
    """Block `number` of an axis of (B, N, T, any)."""
    return slice_axis(x, number * length, length, axis)


def _replace(x, block, number, length):
    return put_slice(x, block, number * length, 2)


def _multiply(rows, columns):
    """The product of (B, N, C, any) with (B, K, any, any). Groups of heads share it."""
    heads, length = rows.shape[1], rows.shape[2]
    return ungroup_heads(ops.matmul(group_heads(rows, columns.shape[1]), columns), heads, length)


def _sum_over_rows(weights, rows, kv_heads):
    """weightsᵀ · rows: (B, N, C, C) and (B, N, C, H) -> (B, K, C, H)."""
    return ops.matmul(ops.swapaxes(group_heads(weights, kv_heads), -1, -2), group_heads(rows, kv_heads))
