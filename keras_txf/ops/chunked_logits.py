"""Cross-entropy and argmax over logits, with only a few rows of logits in memory at a time.

The gradient of a chunk is computed together with its loss, as in Liger, so that no product is computed twice.

A loss may add the divergence of two draws of dropout, KL(p ‖ q) + KL(q ‖ p) of their distributions over the vocabulary.
Logits then hold the tokens of the first draw, then the tokens of the second draw: (2N, V).

Legend: N tokens, C tokens in a chunk, D model dim, V vocabulary.

Reference:
    [Liger Kernel](https://arxiv.org/abs/2410.10989), section 3.2.
"""

import keras
from keras import ops

from keras_txf.backend.compilers import records_gradients, sequential_loop
from keras_txf.ops.logit_factors import adjust_logits
from keras_txf.ops.masks import pad_to, put_slice, slice_axis
from keras_txf.ops.tensors import LOWEST, nan_unless

# The number of logits in a chunk, 128 MB of float32. Each chunk adds to the gradient of the whole table, so smaller
# chunks cost time: 5.6 s with 2**24, 5.0 with 2**25, 4.7 with 2**26, whose peak was up to 1,470 MB instead of 1,170
# (a step of V = 128,256 in benchmarks/large_vocabulary.py, TensorFlow, 2 cores).
CHUNK_SIZE = 2**25
PART_SIZE = 2**24  # numbers in a part of that gradient, which is summed at a time, 64 MB of float32


def weighted_cross_entropy(factors, targets, weights, label_smoothing=0.0, strength=None, chunk_size=None):
    """Computes the sum of weight times loss over tokens, with gradients for all of its inputs.

    The loss of a token is its cross-entropy. With a `strength` the tokens are two draws of dropout, the first half and
    the second half. The loss of each token then also has strength / 4 times the divergence of its two draws.

    Args:
        factors: `LogitFactors`.
        targets: int (N,); a target outside [0, V) gives NaN.
        weights: float32 (N,); a token of weight 0 does not count, even if its logits are NaN.
        label_smoothing: share of the target's probability that is spread over all V tokens.
        strength: factor on the divergence; None for tokens of one draw.
        chunk_size: numbers in a chunk; default `CHUNK_SIZE`.

    Returns:
        A scalar, float32.
    """
    chunks = _Chunks(factors, chunk_size, draws=1 if strength is None else 2)
    options = {"targets": targets, "label_smoothing": label_smoothing, "strength": strength}
    biases = [] if factors.bias is None else [ops.cast(factors.bias, "float32")]
    inputs = [chunks.hidden, chunks.table, ops.cast(weights, "float32"), *biases]
    with_gradient = records_gradients()

    @ops.custom_gradient
    def function(hidden, table, weights, bias=None):
        total, *gradients = chunks.total(hidden, table, weights, bias, with_gradient, **options)

        def gradient(*arguments, upstream=None):  # PyTorch's autograd passes the inputs, and `upstream` by name
            upstream = arguments[0] if upstream is None else upstream
            return tuple(ops.cast(found * upstream, x.dtype) for found, x in zip(gradients, inputs))

        return total, gradient

    return function(*inputs)


def cross_entropies(factors, targets, label_smoothing=0.0, chunk_size=None):
    """Computes the cross-entropy (N,) of each token, float32, without a gradient, from targets (N,)."""

    def one_chunk(logits, targets):
        return _losses(logits, targets, label_smoothing, ops.logsumexp(logits, axis=1))[0]

    return _Chunks(factors, chunk_size).map(one_chunk, targets, "float32")


def best_tokens(factors, chunk_size=None):
    """Finds the token (N,) with the largest logit at each position, int32."""
    return _Chunks(factors, chunk_size).map(lambda logits: ops.cast(ops.argmax(logits, axis=1), "int32"), None, "int32")


class _Chunks:
    """Chunks of tokens, all of one length; the last one is padded. A chunk holds both draws of its tokens."""

    def __init__(self, factors, chunk_size, draws=1):
        self.factors = factors
        self.hidden = ops.reshape(ops.cast(factors.hidden, factors.dtype), (-1, factors.hidden.shape[-1]))
        self.table = ops.cast(factors.table, factors.dtype)
        self.draws = draws
        self.length = ops.shape(self.hidden)[0] // draws
        most = max(1, (chunk_size or CHUNK_SIZE) // factors.vocab_size // draws)
        self.count = _at_least_one(-(-self.length // most))
        self.rows = -(-self.length // self.count)

    def total(self, hidden, table, weights, bias, with_gradient, targets, label_smoothing, strength):
        """Returns the sum, and its gradients of hidden, table, weights and bias."""
        hidden, targets, weights = self._pad(hidden), self._pad(targets), self._pad(weights)
        letters = self.factors.letters
        parts = self._parts() if with_gradient else ()
        # The loss is scaled after these products. Before that, a sum over tokens may overflow float16.
        half = keras.backend.standardize_dtype(table.dtype) == "float16"
        of_product = "float32" if half else table.dtype
        wide_table = ops.cast(table, of_product)

        def one_chunk(i, state):
            losses, of_hidden, of_table, of_bias = state
            rows, target, weight = self._chunk(hidden, i), self._chunk(targets, i), self._chunk(weights, i)
            logits, slope = self._logits(rows, table, bias)
            found, gradients = _losses_and_gradients(logits, target, weight, label_smoothing, with_gradient)
            if strength is not None:
                apart, more = _apart(logits, weight, with_gradient)
                found = found + strength / 4 * apart
                gradients = gradients + strength / 4 * more if with_gradient else None
            losses = self._put(losses, found, i)
            if not with_gradient:
                return losses, of_hidden, of_table, of_bias
            gradients = gradients if slope is None else gradients * slope
            of_bias = of_bias if bias is None else of_bias + ops.sum(gradients, axis=0)
            gradients = gradients if self.factors.scale is None else gradients * self.factors.scale
            gradients, rows = ops.cast(gradients, of_product), ops.cast(rows, of_product)
            of_hidden = self._put(of_hidden, ops.einsum(f"nv,{letters}->nd", gradients, wide_table), i)
            products = (ops.einsum(f"nv,nd->{letters}", gradients[:, part], rows) for part in parts)
            of_table = tuple(old + ops.cast(more, "float32") for old, more in zip(of_table, products))
            return losses, of_hidden, of_table, of_bias

        nothing = ops.zeros((), "float32")
        start = (
            ops.zeros_like(weights),
            ops.zeros_like(hidden, dtype="float32") if with_gradient else nothing,
            tuple(ops.zeros_like(self._part(table, part), dtype="float32") for part in parts),
            nothing if bias is None else ops.zeros_like(bias),
        )
        losses, of_hidden, of_table, of_bias = sequential_loop(0, self.count, one_chunk, start)
        total = ops.sum(ops.where(weights == 0, 0.0, weights * losses))
        if not with_gradient:
            return (total,)
        of_table = ops.concatenate(of_table, axis=letters.index("v"))
        return total, self._unpad(of_hidden), of_table, self._unpad(losses), of_bias

    def map(self, function, targets, dtype):
        """Returns function(logits of a chunk), or function(logits, targets), for all tokens, (N,)."""
        hidden = self._pad(self.hidden)
        targets = [] if targets is None else [self._pad(targets)]

        def one_chunk(i, results):
            logits, _ = self._logits(self._chunk(hidden, i), self.table, self.factors.bias)
            return self._put(results, function(logits, *(self._chunk(x, i) for x in targets)), i)

        start = ops.zeros_like(hidden[..., 0], dtype=dtype)
        return self._unpad(sequential_loop(0, self.count, one_chunk, start))

    def _logits(self, rows, table, bias):
        """Returns logits (C, V), float32 but rounded as in the model, and the derivative of the soft cap or None."""
        factors = self.factors
        # Keras turns "nd,vd->nv" into a product with a transpose, which takes 1.2 times as long on TensorFlow.
        logits = ops.einsum(f"{factors.letters},nd->nv", table, rows)
        adjusted = adjust_logits(logits, factors.scale, bias, factors.soft_cap)
        slope = None if factors.soft_cap is None else 1 - ops.square(adjusted / factors.soft_cap)
        return ops.cast(ops.cast(adjusted, logits.dtype), "float32"), slope

    def _parts(self):
        """Returns slices of the vocabulary: the sum of whole gradients of the table needs memory for three tables."""
        vocab_size = self.factors.vocab_size
        size = max(1, PART_SIZE // self.hidden.shape[1])
        return [slice(first, min(first + size, vocab_size)) for first in range(0, vocab_size, size)]

    def _part(self, table, part):
        return table[part] if self.factors.tied else table[:, part]

    def _pad(self, x):
        """(draws · N, ...) -> (draws, all rows of the chunks, ...)."""
        return pad_to(ops.reshape(x, (self.draws, self.length, *x.shape[1:])), self.count * self.rows, 1)

    def _unpad(self, x):
        x = x[:, : self.length]
        return ops.reshape(x, (self.draws * self.length, *x.shape[2:]))

    def _chunk(self, x, number):
        """Returns the rows of one chunk: the first draw, then the second."""
        return ops.reshape(slice_axis(x, number * self.rows, self.rows, 1), (self.draws * self.rows, *x.shape[2:]))

    def _put(self, x, chunk, number):
        chunk = ops.reshape(chunk, (self.draws, self.rows, *x.shape[2:]))
        return put_slice(x, chunk, number * self.rows, 1)


def _losses_and_gradients(logits, targets, weights, label_smoothing, with_gradient):
    """The cross-entropies (C,), and the gradient (C, V) of their weighted sum or None."""
    top = ops.max(logits, axis=1, keepdims=True, initial=LOWEST)  # a replica may have no rows
    exponentials = ops.exp(logits - top)
    total = ops.sum(exponentials, axis=1)
    losses, own = _losses(logits, targets, label_smoothing, top[:, 0] + ops.log(total))
    if not with_gradient:
        return losses, None
    valid, share = _valid(targets, logits), label_smoothing / logits.shape[1]
    targets, weights = ops.where(valid, targets, 0), ops.where(valid, weights, nan_unless(valid))
    gradients = exponentials * (weights / total)[:, None]  # in place on TensorFlow
    gradients = gradients - (share * weights)[:, None] if share else gradients
    own = ops.exp(own - top[:, 0]) / total
    indices = ops.stack([ops.arange(ops.shape(targets)[0], dtype="int32"), targets], axis=1)
    return losses, ops.scatter_update(gradients, indices, (own - share - (1 - label_smoothing)) * weights)


def _apart(logits, weights, with_gradient):
    """The divergence of the two draws at each of both (C,), and the gradient (C, V) of their weighted sum or None."""
    if not with_gradient:
        return twice(divergences(logits)), None
    apart, gradients = divergences_with_gradients(logits)
    first, second = halves(weights)
    return twice(apart), gradients * twice(first + second)[:, None]


def _losses(logits, targets, label_smoothing, logsumexp):
    """The cross-entropies (C,), and the logits of the targets."""
    valid = _valid(targets, logits)
    own = ops.take_along_axis(logits, ops.where(valid, targets, 0)[:, None], axis=1)[:, 0]
    losses = logsumexp - (1 - label_smoothing) * own
    if label_smoothing:
        losses = losses - label_smoothing * ops.mean(logits, axis=1)
    return ops.where(valid, losses, nan_unless(valid)), own


def _valid(targets, logits):
    return ops.logical_and(targets >= 0, targets < logits.shape[1])


def _at_least_one(count):
    return max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)


def halves(x):
    """Splits the first axis, of length 2N, in two."""
    half = ops.shape(x)[0] // 2
    return x[:half], x[half:]


def twice(x):
    """Repeats values (N,) for both draws: (2N,)."""
    return ops.concatenate([x, x])


def divergences(logits):
    """Computes the divergence (N,) of each token from logits (2N, V) of float32."""
    first, second = halves(ops.softmax(logits, axis=1))
    return ops.sum((first - second) * _difference(logits), axis=1)


def divergences_with_gradients(logits):
    """Computes the divergences (N,), and the gradient (2N, V) of each with respect to its two rows of logits.

    With p, q of logits a, b the gradient of a is p (a - b - Σ p (a - b)) + p - q. For b the two swap.
    """
    first, second = halves(ops.softmax(logits, axis=1))
    difference, change = _difference(logits), first - second

    def of_draw(probabilities, sign):
        mean = ops.sum(probabilities * difference, axis=1, keepdims=True)
        return sign * (probabilities * (difference - mean) + change)

    gradients = ops.concatenate([of_draw(first, 1.0), of_draw(second, -1.0)])
    return ops.sum(change * difference, axis=1), gradients


def _difference(logits):
    """The difference of the log-probabilities up to a constant, which cancels in a sum over p - q."""
    first, second = halves(logits)
    return ops.where(first == second, 0.0, first - second)  # both may be -inf
