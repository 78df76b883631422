"""Token dropout: the vectors of masked tokens are zeros, and those of the others make up for it, as in ESM."""

from keras import ops

from keras_txf.ops.masks import real_tokens
from keras_txf.ops.numbers import wide_dtype

TRAINED = 0.15 * 0.8  # share of masked tokens in the training of every ESM


def drop_masked(x, ids, masked_id, pad_id):
    """Zeros at masked tokens; at the others x times (1 - their share in training) / (1 - their share in the row).

    Args:
        x: float (B, T, D), the vectors of tokens.
        ids: int (B, T).
        masked_id: the token that hides another.
        pad_id: the token of padding, which does not count, or None.

    Returns:
        (B, T, D).

    Reference:
        [Language models of protein sequences](https://doi.org/10.1126/science.ade2574).
    """
    masked = ops.equal(ids, masked_id)
    real = real_tokens(ids, pad_id)
    masked_count, count = (
        ops.sum(ops.cast(each, wide_dtype(x.dtype)), axis=1, keepdims=True) for each in (masked, real)
    )
    left = 1 - masked_count / ops.maximum(count, 1.0)
    factor = (1 - TRAINED) / ops.where(left > 0, left, 1.0)  # no vector is left of a row that is masked throughout
    factor = ops.where(masked, 0.0, factor)
    return x * ops.expand_dims(ops.cast(factor, x.dtype), -1)
