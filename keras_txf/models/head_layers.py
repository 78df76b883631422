"""The layers of heads, between an encoder and its logits.

Legend: B batch, T length, D width, C classes.
"""

import keras

from keras_txf import checks
from keras_txf.layers import Pooling
from keras_txf.layers.activations import get_activation
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.projections import Projection
from keras_txf.models import stack


def next_sentence_logits(x, dim, dtype):
    """(B, T, D) -> (B, 2), from the first token.

    A dense layer with tanh stands between, as in BERT.
    """
    x = Pooling("first", dtype=dtype, name="pooling")(x)
    x = Projection(dim, dtype=dtype, name="pooler")(x)
    x = keras.layers.Activation("tanh", dtype=dtype, name="pooler_activation")(x)
    return Projection(2, dtype=dtype, name="next_sentence_logits")(x)


def head_transform(x, width, activation, bias, norm, block, dtype):
    """Dense, activation and perhaps a norm of the blocks' kind."""
    checks.boolean("head_bias", bias)
    activation = get_activation("head_activation", activation)
    x = Projection(width, use_bias=bias, dtype=dtype, name="head")(x)
    x = keras.layers.Activation(activation, dtype=dtype, name="head_activation")(x)
    if not norm:
        return x
    return stack.like_norm(block, "head_norm", dtype)(x)


def class_logits(x, num_classes, width, head, block, dtype, pool=None):
    """The logits of classes, (B, C), or (B, T, C) where x is (B, T, D) and `pool` is None.

    Args:
        x: (B, D) or (B, T, D).
        num_classes: number C.
        width: of a dense layer before the logits.
        head: `ClassHeadOptions` or `SequenceHeadOptions`; without `head_activation` there is no such layer.
        block: a block, whose kind of norm that layer has.
        dtype: dtype policy of all layers.
        pool: layer between the dense layer and the logits, or None.
    """
    activation, bias, norm, dropout = (head[f"head_{name}"] for name in ("activation", "bias", "norm", "dropout"))
    if activation is not None:
        x = head_transform(x, width, activation, bias, checks.boolean("head_norm", norm), block, dtype)
    elif checks.boolean("head_norm", norm) or not checks.boolean("head_bias", bias):
        raise ValueError("`head_norm` and `head_bias` need `head_activation`, which makes the layer that has them.")
    if pool is not None:
        x = pool(x)
    if checks.rate("head_dropout", dropout):
        x = Dropout(dropout, dtype=dtype, name="head_dropout")(x)
    return Projection(num_classes, use_bias=head.get("logit_bias", True), dtype=dtype, name="logits")(x)
