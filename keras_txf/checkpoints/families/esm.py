"""ESM: pre-norm encoders of proteins, with rotary or learned positions."""

from keras import ops

from keras_txf import checks, models
from keras_txf.backend.tensors import current_value
from keras_txf.checkpoints.families.bert import BODY, BUFFERS, TWO_LAYERS, tasks
from keras_txf.checkpoints.family import POOLER, Family, Task, sizes
from keras_txf.checkpoints.weight_map import Tensor, skip
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register
from keras_txf.ops import rotary as mathematics
from keras_txf.ops.masks import real_tokens
from keras_txf.ops.tensors import wide_dtype

TABLE = {
    **BODY,
    "rotary/frequencies": "rotary_embeddings.inv_freq",
    "encoder_embedding_norm": "embeddings.layer_norm",
    "encoder_{i}/attention_norm": "encoder.layer.{i}.attention.LayerNorm",
    "encoder_{i}/feed_forward_norm": "encoder.layer.{i}.LayerNorm",
    "encoder_norm": "encoder.emb_layer_norm_after",
}
# Names of the frequencies in other versions of transformers: in each block, or under a pattern.
FREQUENCIES = [f"encoder.layer.{i}.attention.self.rotary_embeddings.inv_freq" for i in ("*", *range(128))]


def first_position(c):
    """Returns the first position, which follows the padding token's id."""
    pad = c.pad_id(None)
    if pad is None:
        raise ValueError("config.json must have an id for `pad_token_id`; received null or no such key.")
    return pad + 1


def options(c):
    c.only("hidden_act", "gelu")
    c.only("is_folding_model", False)
    c.only("esmfold_config", None)
    c.only("hidden_dropout_prob", 0.0)  # the blocks' rate, not the embedding's; no published file has another value
    c.only("position_embedding_type", "absolute", "rotary")
    rotary = c("position_embedding_type", "absolute") == "rotary"
    dim, heads, length = c("hidden_size"), c("num_attention_heads"), c("max_position_embeddings", 1026)
    base, hides = c("rope_theta", 10000.0), c("token_dropout", False)
    return {
        **sizes(c),
        "intermediate_dim": c("intermediate_size"),
        "activation": "gelu",
        "norm_placement": "pre",
        "norm_epsilon": c("layer_norm_eps", 1e-12),
        "dropout": 0.0,
        "attention_dropout": c("attention_probs_dropout_prob", 0.1),
        "position": StoredRotary(dim // heads, base, name="rotary") if rotary else None,
        "position_encoding": None if rotary else "learned",
        "max_length": length if rotary else length - first_position(c),
        "pad_id": first_position(c) - 1,
        "masked_id": c("mask_token_id") if hides else None,
        "scale_embedding": False,
        "embedding_norm": bool(c("emb_layer_norm_before", None)),
    }


def table(c):
    return {**TABLE, "embedding/position": Tensor(BODY["embedding/position"], other=skip(first_position(c)))}


HEAD = {
    "head": "lm_head.dense",
    "head_norm": "lm_head.layer_norm",
    "logits": "lm_head.decoder",
    "logit_adjustment/bias": "lm_head.bias",
}
FAMILIES = {
    "esm": Family(
        options,
        table,
        tasks(
            "Esm",
            Task("EsmForMaskedLM", models.masked_language_model, HEAD),
            TWO_LAYERS,
            lambda c: {"pooling": "first", "head": "tanh"},
            lambda c: {},
        ),
        "esm.",
        (*BUFFERS, r"embeddings\.position_embeddings\.weight"),  # files of rotary models hold them too
        (POOLER, r"contact_head\.regression\.(weight|bias)"),
        dict.fromkeys(FREQUENCIES, "rotary_embeddings.inv_freq"),
        ("classifier_dropout", "vocab_list"),
    )
}


@register
class TokenDropoutEmbedding(PositionalEmbedding):
    """An embedding that sets the vectors of masked tokens to zero, and scales the other vectors to compensate.

    Args:
        masked_id: the token that hides other tokens.
        options: options of `PositionalEmbedding`.
    """

    def __init__(self, vocab_size, dim, masked_id=None, **options):
        super().__init__(vocab_size, dim, **options)
        self.masked_id = checks.optional(checks.id_below, "masked_id", masked_id, vocab_size)

    def token_vectors(self, ids):
        x = super().token_vectors(ids)
        return x if self.masked_id is None else drop_masked(x, ids, self.masked_id, self.pad_id)


TRAINED = 0.15 * 0.8  # share of masked tokens in the training of every ESM


def drop_masked(x, ids, masked_id, pad_id):
    """Sets x to zero at masked tokens, and scales the rest by (1 - share in training) / (1 - share in the row).

    Both shares are the masked tokens' shares of all tokens.

    Args:
        x: float (B, T, D), the vectors of tokens.
        ids: int (B, T).
        masked_id: the token that hides other tokens.
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
    factor = (1 - TRAINED) / ops.where(left > 0, left, 1.0)  # 1.0 for a row in which every token is masked
    factor = ops.where(masked, 0.0, factor)
    return x * ops.expand_dims(ops.cast(factor, x.dtype), -1)


@register
class StoredRotary(Layer):
    """Rotary positions whose frequencies are weights that training does not change.

    Files of ESM hold the frequencies of their training, some rounded to half precision, which no base gives.

    Args:
        head_dim: width H of a head, even.
        base: base of the initial wavelengths.

    Reference:
        [RoFormer](https://arxiv.org/abs/2104.09864).
    """

    weight_splits = {"frequencies": "whole"}

    names_own_weights = True  # see `build_named`

    def __init__(self, head_dim, base=10000.0, **kwargs):
        super().__init__(**kwargs)
        self.head_dim = checks.size("head_dim", head_dim)
        if head_dim % 2:
            raise ValueError(f"`head_dim` must be even for rotary positions, which turn pairs; received {head_dim}.")
        self.base = checks.positive_number("base", base)

    def build(self, *shapes):
        wide = wide_dtype(self.variable_dtype)
        values, _ = mathematics.rotary_frequencies(self.head_dim, self.base, None)
        self.frequencies = self.add_weight(
            name="frequencies",
            shape=(self.head_dim // 2,),
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(values.astype(wide), dtype),
            dtype=wide,
            trainable=False,
            autocast=False,
        )

    def rotate(self, x, positions):
        return mathematics.rotate(x, positions, current_value(self.frequencies))

    def bias(self, query_positions, key_positions):
        return None
