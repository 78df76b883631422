"""The divergence of two draws of dropout: KL(p ‖ q) + KL(q ‖ p) of their distributions over the vocabulary.

Logits hold the tokens of the first draw, then the tokens of the second draw: (2N, V).

Legend: N tokens in one draw, V vocabulary.
"""

from keras import ops


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
