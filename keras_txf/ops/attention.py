"""The attention kernel, which all attention layers call, and the dropout of its weights.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim, V head dim of values.
"""

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from keras_txf.backend.compilers import fuses_long, has_kernel, takes_one_width
from keras_txf.backend.keras_private import seed_of_words
from keras_txf.backend.random import dropout
from keras_txf.ops.blockwise_attention import blockwise_attention
from keras_txf.ops.masks import HIDDEN, AttentionMask
from keras_txf.ops.positions import PositionBias
from keras_txf.ops.tensors import group_heads, swap_heads, ungroup_heads, widen


def attention(
    query,
    key,
    value,
    mask=None,
    bias=None,
    scale=None,
    logit_soft_cap=None,
    dropout=None,
    return_scores=False,
    zero_empty_rows=False,
    sinks=None,
):
    """softmax(scale · query · keyᵀ + bias) · value, over the keys that the mask allows.

    The backend's fused kernel runs if the options allow it: not for scores, a soft cap or active dropout, and never on
    TensorFlow, which has no such kernel. Without it long sequences go through `blockwise_attention`, unless the scores
    are returned. The softmax is at least float32 under every policy. A query without any visible key gets a finite
    average, never NaN; with `zero_empty_rows` it gets zeros, which costs a pass over the output.

    Args:
        query: (B, T, N, H).
        key: (B, S, K, H), where K divides N: each key-value head serves N / K query heads.
        value: (B, S, K, V), usually with V = H.
        mask: an `AttentionMask`, or bool, broadcastable to (B, N, T, S), True where a query may attend.
        bias: a `PositionBias`, or float, broadcastable to (B, N, T, S), added to the scaled logits.
        scale: factor on the logits, by default 1 / sqrt(H).
        logit_soft_cap: c bends the scaled logits to c · tanh(logits / c).
        dropout: a `WeightDropout`, applied to the attention weights, or None.
        return_scores: whether to return the weights, (B, N, T, S), before dropout, too.
        zero_empty_rows: whether a query without a key gets zeros, in the output and in the scores.
        sinks: float (N,), an extra logit for each head, whose attention weight multiplies no value; or None.

    Returns:
        (B, T, N, V), and the scores with `return_scores`.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.2.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = mask if isinstance(mask, AttentionMask) else AttentionMask(explicit=mask)
    in_blocks = _is_long(query, key) and not return_scores and (bias is None or getattr(bias, "in_blocks", False))
    plain = logit_soft_cap is None and dropout is None and sinks is None and not return_scores
    if in_blocks and not (plain and bias is None and fuses_long(query, key, mask.window, mask.has_pairs)):
        query = query * ops.cast(scale, query.dtype)
        dropout = None if dropout is None else dropout.in_blocks()
        heads = swap_heads(query), swap_heads(key), swap_heads(value)
        return swap_heads(blockwise_attention(*heads, mask, bias, logit_soft_cap, dropout, zero_empty_rows, sinks))
    bias = bias.whole() if isinstance(bias, PositionBias) else bias
    fused = plain and has_kernel(query)
    causal = fused and bias is None and mask.causal_alone  # PyTorch's kernel takes a bias, a mask or the hint
    mask = None if causal else mask.whole(ops.shape(query)[1], ops.shape(key)[1])
    if fused:
        output, scores = _fused(query, key, value, mask, bias, causal, scale), None
    else:
        key, value = swap_heads(key), swap_heads(value)
        logits = _logits(query * ops.cast(scale, query.dtype), key)
        logits = widen(logits)
        if logit_soft_cap is not None:
            logits = ops.tanh(logits / logit_soft_cap) * logit_soft_cap
        if bias is not None:
            logits = logits + ops.cast(bias, logits.dtype)
        if mask is not None:  # a sum has a cheaper gradient than a choice, and -1e30 swallows any logit
            logits = logits + ops.where(mask, 0.0, ops.cast(HIDDEN, logits.dtype))
        scores = ops.cast(softmax(logits) if sinks is None else _softmax_with_sinks(sinks, logits), query.dtype)
        output = _weigh(scores if dropout is None else dropout(scores), value)
    if zero_empty_rows and mask is not None:
        seen = ops.cast(ops.any(mask, axis=-1, keepdims=True), output.dtype)
        output = output * ops.transpose(seen, (0, 2, 1, 3))
        scores = scores * seen if return_scores else None
    return (output, scores) if return_scores else output


# The number of logits from which blocks take over: 1 GB, and a training step holds several such tensors. With twice as
# many (8,192 tokens, 8 heads of 64, float32, 2 cores) attention and its gradient take 1.5 s and 6.5 GB on TensorFlow as
# a whole, 2.1 s and 0.37 GB in blocks; on JAX 15.2 s and 12.9 GB as a whole, 8.6 s and 0.35 GB in blocks.
LONG = 2**28


def _is_long(query, key):
    """Whether the logits of known sizes are long; JAX infers shapes from symbolic lengths."""
    batch, sizes = query.shape[0], (query.shape[2], query.shape[1], key.shape[1])
    known = all(isinstance(size, int) for size in sizes)
    return known and math.prod(sizes) * (batch if isinstance(batch, int) else 1) >= LONG


def softmax(logits):
    """The softmax over the last axis, which may have a single entry."""
    if logits.shape[-1] == 1:  # Keras' softmax warns for a single key
        return ops.exp(ops.log_softmax(logits, axis=-1))
    return ops.softmax(logits, axis=-1)


def _softmax_with_sinks(sinks, logits):
    """The softmax over the logits (B, N, T, S) and the sink of each head (N,), without the weight of the sink."""
    sinks = ops.reshape(ops.cast(sinks, logits.dtype), (1, -1, 1, 1))
    sinks = ops.broadcast_to(sinks, (*ops.shape(logits)[:-1], 1))
    return ops.softmax(ops.concatenate([logits, sinks], axis=-1), axis=-1)[..., :-1]


def _logits(query, key):
    """(B, T, N, H) and (B, K, S, H) -> (B, N, T, S). Groups of heads share a product, no key is copied."""
    length, heads = ops.shape(query)[1], query.shape[2]
    query = group_heads(swap_heads(query), key.shape[1])
    logits = ops.matmul(query, ops.swapaxes(key, -1, -2))  # TensorFlow folds this swap into the product
    return ungroup_heads(logits, heads, length)


def _weigh(weights, value):
    """(B, N, T, S) and (B, K, S, V) -> (B, T, N, V)."""
    heads, length = weights.shape[1], ops.shape(weights)[2]
    output = ops.matmul(group_heads(weights, value.shape[1]), value)
    return swap_heads(ungroup_heads(output, heads, length))


def _fused(query, key, value, mask, bias, causal, scale):
    heads, kv_heads = query.shape[2], key.shape[2]
    if kv_heads == 1 and heads > 1:  # Keras repeats several key-value heads, but not a single one
        # Not `repeat`: Keras cannot infer its shape on PyTorch, and would build the model by computing it.
        key, value = ops.tile(key, (1, 1, heads, 1)), ops.tile(value, (1, 1, heads, 1))
    if bias is not None:
        bias, mask = _hide(ops.cast(bias, query.dtype), mask), None
    width, padding = value.shape[-1], query.shape[-1] - value.shape[-1]
    if padding and takes_one_width():
        query, key = (ops.pad(x, _last_axis(max(-padding, 0))) for x in (query, key))
        value = ops.pad(value, _last_axis(max(padding, 0)))
    output = ops.dot_product_attention(query, key, value, bias=bias, mask=mask, scale=scale, is_causal=causal)
    return output[..., :width]


def _last_axis(padding):
    return [(0, 0)] * 3 + [(0, padding)]


def _hide(bias, mask):
    half = keras.backend.standardize_dtype(bias.dtype) == "float16"
    return bias if mask is None else ops.where(mask, bias, ops.cast(-3e4 if half else HIDDEN, bias.dtype))


@dataclasses.dataclass
class WeightDropout:
    """Dropout of attention weights: of all weights at once, or block by block."""

    rate: float
    seed: Any  # a `keras.random.SeedGenerator`

    def __call__(self, weights):
        return dropout(weights, self.rate, self.seed)

    def in_blocks(self):
        """Returns a `BlockDropout`, a function of weights and the number of their block."""
        return BlockDropout(self.rate, self.seed.next())


@dataclasses.dataclass
class BlockDropout:
    """Dropout of a block of attention weights, which drops the same weights each time the block is computed."""

    rate: float
    words: Any  # the two integers of a seed

    def __call__(self, weights, number):
        return dropout(weights, self.rate, seed_of_words(_move(self.words, number)))


def _move(words, number):
    """Moves the first of a seed's two words by a multiple of 2³² divided by the golden ratio."""
    moved = words[0] + ops.cast(number + 1, words.dtype) * 1640531527
    return ops.stack([moved, words[1]])
