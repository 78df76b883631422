"""Records the matrix products of a model and the tensors kept for the gradient, while Keras infers shapes.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

import dataclasses
import math
import re

import keras
import numpy as np
from keras import ops

from keras_txf.backend.keras_private import own_trainable_by_nature, remat_mode
from keras_txf.backend.observed_operations import attention_multiply_adds, observe
from keras_txf.layers import DecoderBlock, EncoderBlock, FeedForward, MixtureOfExperts, multi_head
from keras_txf.ops.masks import AttentionMask

NORMS = (
    keras.layers.LayerNormalization, keras.layers.RMSNormalization, keras.layers.BatchNormalization,
    keras.layers.GroupNormalization, keras.layers.UnitNormalization,
)  # fmt: skip


@dataclasses.dataclass
class Product:
    """A matrix product, or the two of an attention.

    Args:
        multiply_adds: multiply-adds of the forward pass.
        bytes: bytes of operands and results.
        passes: the work of a training step as a multiple of the forward pass: the product itself, a product for the
            gradient of each operand that needs a gradient, and the product again if it is recomputed.
        share: the share of the experts of a `MixtureOfExperts` that a token chooses; 1 for other products.
        is_attention: whether these are the products of an attention.
        hidden: multiply-adds of pairs that a causal mask or a window hides.
    """

    multiply_adds: int
    bytes: int
    passes: int
    share: float = 1.0
    is_attention: bool = False
    hidden: int = 0


def record(model, shapes, other_shapes, rematerialize, fused_attention):
    """Runs a model on symbols and records its products and the tensors that it keeps.

    Args:
        model: a functional model.
        shapes: the shape of each input, by name.
        other_shapes: the same with another batch size: tensors of the same size in both hold weights or constants.
        rematerialize, fused_attention: see `cost`.

    Returns:
        A list of `Product`; a dict of the bytes that are kept, by the number of the recomputed region, None outside;
        and the outputs, symbolic.
    """
    runs = []
    for sizes in (shapes, other_shapes):
        run = _Run(model, rematerialize, fused_attention)
        runs.append((run, run.follow(sizes)))
    (run, outputs), (other, _) = runs
    trainable = {tuple(sorted(variable.shape)) for variable in model.trainable_variables}
    products = [
        _product(entry, [a.shape != b.shape for a, b in zip(entry.operands, twin.operands)], trainable)
        for entry, twin in zip(run.products, other.products, strict=True)
    ]
    kept = {}
    for (tensor, copies, region), (twin, *_) in zip(run.kept, other.kept, strict=True):
        if tensor.shape != twin.shape:
            kept[region] = kept.get(region, 0) + copies * tensor.bytes
    return products, kept, outputs


def _product(entry, varies, trainable):
    """The `Product` of an entry.

    Args:
        varies: for each operand, whether it depends on the rows of the batch.
        trainable: set of the shapes of trainable weights, each sorted.
    """
    needs_gradient = [
        x.reached if depends else x.trains(trainable) for x, depends in zip(entry.operands, varies, strict=True)
    ]
    if entry.hidden is None:
        gradients = sum(needs_gradient)
    else:  # four products of half the size: for the queries, the keys, the values, and the scores
        query, key, value = needs_gradient
        gradients = (query + key + value + (query or key)) / 2
    return Product(
        multiply_adds=entry.multiply_adds * entry.times,
        bytes=entry.bytes * entry.times,
        passes=1 + gradients + (entry.region is not None),
        share=entry.share if len(entry.operands[-1].shape) == 3 and not varies[-1] else 1.0,
        is_attention=entry.hidden is not None,
        hidden=entry.hidden or 0,
    )


class _Tensor:
    """A tensor, or a shape alone; `reached` is whether the tensor depends on trainable weights."""

    def __init__(self, tensor, dtype=None, reached=True):
        self.tensor, self.shape = tensor, tuple(getattr(tensor, "shape", tensor))
        self.reached = reached
        self.bytes = math.prod(self.shape) * size_of(dtype or tensor.dtype)

    def trains(self, shapes):
        """Whether this is a trainable weight. A weight that was cast or transposed is recognized by its shape."""
        if isinstance(self.tensor, keras.Variable):
            return self.tensor.trainable
        return tuple(sorted(self.shape)) in shapes


@dataclasses.dataclass
class _Entry:
    """A product as recorded."""

    multiply_adds: int
    operands: list
    bytes: int
    region: int | None
    times: int
    share: float
    hidden: int | None = None  # masked pairs of an attention layer


class _Run:
    """One pass through the model's graph."""

    def __init__(self, model, rematerialize, fused_attention):
        self.model, self.rematerialize, self.fused_attention = model, rematerialize, fused_attention

    def follow(self, shapes):
        symbols = {x.name: keras.KerasTensor(shapes[x.name], x.dtype) for x in self.model.inputs if x.name in shapes}
        names = keras.tree.map_structure(lambda x: x.name, self.model.input)

        def call(*tensors):
            self.begin()
            by_name = dict(zip(symbols, tensors))
            return self.model(keras.tree.map_structure(by_name.get, names))

        stand_in = (multi_head, "attention", self.attention)
        return keras.tree.flatten(observe(self.model, call, symbols.values(), self, [stand_in]))

    def begin(self):
        """Forgets everything: on PyTorch shapes are inferred a second time if the first attempt fails."""
        self.products, self.kept, self.known = [], [], set()
        # Whether a trainable weight came before; the tensors that depend on none, kept so that no other gets their id.
        self.reached, self.unreached = False, {}
        self.region, self.regions = None, 0
        self.share, self.gated, self.times = 1.0, False, 1

    def on_product(self, multiply_adds, operands, result, hidden=None, more_bytes=0):
        compute = _name(result.dtype)
        seen = [_Tensor(x, compute if isinstance(x, keras.Variable) else None, self.is_reached(x)) for x in operands]
        moved = sum(x.bytes for x in (*seen, _Tensor(result))) + more_bytes
        self.products.append(_Entry(multiply_adds, seen, moved, self.region, self.times, self.share, hidden))
        for operand in operands:
            self.keep(operand)
            self.reached = self.reached or (isinstance(operand, keras.Variable) and operand.trainable)

    def is_reached(self, tensor):
        return self.reached and id(tensor) not in self.unreached

    def on_activation(self, x):
        self.keep(x)
        if self.gated:  # the product needs its two factors: the activation, and what it multiplies
            self.note(x, _name(x.dtype), copies=2)

    def keep(self, tensor, dtype=None):
        """Records a tensor that the gradient needs, once. Weights and integers are not recorded."""
        if isinstance(tensor, keras.Variable) or not _is_float(tensor) or (id(tensor), dtype) in self.known:
            return
        self.known.add((id(tensor), dtype))
        self.note(tensor, dtype)

    def note(self, tensor, dtype=None, copies=1):
        self.kept.append((_Tensor(tensor, dtype), copies * self.times, self.region))

    def on_layer(self, layer, call, *args, **kwargs):
        outside = self.region, self.share, self.gated
        unreached = [x for x in _floats((args, kwargs)) if not self.is_reached(x)]
        self.unreached.update((id(x), x) for x in unreached)
        if self.region is None and self.is_computed_again(layer):
            for tensor in keras.tree.flatten((args, kwargs)):
                self.keep(tensor)
            self.regions += 1
            self.region = self.regions
        if isinstance(layer, (FeedForward, MixtureOfExperts)):
            self.gated = layer.gated
        if isinstance(layer, MixtureOfExperts):
            self.share = layer.top_k / layer.num_experts
        if isinstance(layer, NORMS):
            self.keep(args[0])
        outputs = call(*args, **kwargs)
        if isinstance(layer, keras.layers.Dropout) and layer.rate:
            self.keep(outputs, "bool")
        self.region, self.share, self.gated = outside
        if unreached and not layer.trainable_variables and not any(map(self.is_reached, _floats((args, kwargs)))):
            self.unreached.update((id(x), x) for x in _floats(outputs))
        self.reached = self.reached or any(variable.trainable for variable in own_trainable_by_nature(layer))
        return outputs

    def is_computed_again(self, layer):
        if self.rematerialize is None:
            scope = remat_mode(layer)
            return scope is not None and (scope.mode == "full" or layer.name in (scope.layer_names or ()))
        return self.rematerialize and isinstance(layer, (EncoderBlock, DecoderBlock))

    def on_loop(self, length, step):
        """A step of a loop that runs `length` times."""
        self.times *= length
        step()
        self.times //= length

    def attention(self, query, key, value, mask=None, return_scores=False, **_):
        """Replaces `ops.attention.attention`, whose choice of a kernel or blocks depends on device and size."""
        output, scores = query * 1, (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        if value.shape[-1] != query.shape[-1]:
            output = query[..., :1] * ops.ones(value.shape[-1:], query.dtype)
        work, pairs = attention_multiply_adds(query, key, value), query.shape[1] * key.shape[1]
        hidden = work * (pairs - _visible_pairs(mask, query.shape[1], key.shape[1])) // pairs
        score_bytes = 0 if self.fused_attention else 2 * math.prod(scores) * size_of(query.dtype)
        self.on_product(work, (query, key, value), output, hidden, score_bytes)
        self.keep(output)
        if self.fused_attention:
            self.note(scores[:-1], "float32")  # the logarithm of the sum of exponentials
        else:
            self.note(scores, query.dtype)
        return (output, ops.zeros(scores, output.dtype)) if return_scores else output


def _visible_pairs(mask, queries, keys):
    """The number of pairs of queries and keys that a causal mask and a window leave."""
    if not isinstance(mask, AttentionMask):
        return queries * keys
    positions = np.arange(queries)
    first, last = mask.visible_keys(positions, positions + 1)
    first = np.clip(0 if first is None else first, 0, keys)
    last = np.clip(keys if last is None else last, 0, keys)
    return int(np.sum(np.broadcast_to(np.maximum(last - first, 0), (queries,))))


def size_of(dtype):
    """Bytes of a number."""
    bits = re.search(r"\d+", _name(dtype))  # "bool" has none
    return max(1, int(bits[0]) // 8) if bits else 1


def _name(dtype):
    return keras.backend.standardize_dtype(dtype)


def _is_float(x):
    return hasattr(x, "dtype") and hasattr(x, "shape") and keras.backend.is_float_dtype(_name(x.dtype))


def _floats(nested):
    return [x for x in keras.tree.flatten(nested) if _is_float(x)]
