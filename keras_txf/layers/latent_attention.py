"""LatentAttention: self-attention whose keys and values come from one small vector of each token.

Legend: B batch, T query length, S key length, D model dim, N heads, R rank of keys and values, C content features of a
    head, P rotary features, V value features of a head.
"""

import math
from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.multi_head import attend, check_absent_with_cache, check_masks, split_heads, token_positions
from keras_txf.layers.norms import make_norm
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import Dropout, make_projection
from keras_txf.layers.rotary import Rotary
from keras_txf.layers.serialization import get_initializer, register, revive
from keras_txf.ops.masks import AttentionMask, check_conditions
from keras_txf.ops.rotary import yarn_logit_factor


@register
class LatentAttention(Layer):
    """Multi-head latent attention (DeepSeek V2 and V3): a cache of R + P numbers a token, whatever the number of heads.

    Pass it as `attention` to a block or a builder, or use it alone. A token is projected to a vector of R features and
    to one rotary key of P features. A norm and a second projection turn the vector into keys (N, C) and values (N, V);
    all heads share the rotary key, which is appended to theirs. The cache holds the vectors after their norm and the
    rotated keys, and each call projects all vectors of the cache again.

    Args:
        num_heads: number N of heads.
        kv_lora_rank: width R of the vector from which keys and values are projected.
        qk_nope_head_dim: number C of features of a head without rotation.
        qk_rope_head_dim: number P of features of a head that are rotated by the position, even.
        v_head_dim: width V of the values of a head; default C.
        q_lora_rank: width of a normalised vector from which queries are projected; None: from the inputs.
        causal: whether a token attends only to itself and earlier tokens.
        position: a `Rotary`; default `Rotary(interleaved=True)`.
        scale: factor on the logits; default 1 / sqrt(C + P), times the square of YaRN's factor for `mscale_all_dim`
            where the scaling of `position` has it.
        dropout: dropout rate of the attention weights.
        use_bias: whether the projections to the small vectors and the output projection have a bias. The other
            projections have no bias.
        norm_epsilon: epsilon of the RMS norms of the small vectors.
        kernel_initializer: initializer of the projections.

    Call arguments:
        inputs: float (B, T, D).
        mask, attention_mask, segment_ids, positions, cache, return_attention_scores: see `MultiHeadSelfAttention`.

    Returns:
        (B, T, D), and the scores (B, N, T, T) if asked for.

    Raises:
        ValueError: a size that is not a positive integer, a `position` other than a `Rotary`, a mask of another rank.

    Reference:
        [DeepSeek-V2](https://arxiv.org/abs/2405.04434), section 2.1;
        [DeepSeek-V3](https://arxiv.org/abs/2412.19437), section 2.1.1.

    Example:

    >>> latent = txf.layers.LatentAttention(4, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, causal=True)
    >>> model = txf.models.decoder_generator(100, num_layers=2, dim=32, attention=latent)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4).shape
    (1, 7)
    """

    weight_splits = {
        "query": "columns",
        "query_down": "whole",
        "query_up": "columns",
        "key_value_down": "whole",
        "key_value_up": "columns",
        "output": "rows",
    }

    logit_soft_cap = sink_logits = None  # options of `attend` that this layer does not have

    def __init__(
        self,
        num_heads: int,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int | None = None,
        q_lora_rank: int | None = None,
        causal: bool = False,
        position: Any = None,
        scale: float | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        norm_epsilon: float = 1e-6,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.kv_lora_rank = checks.size("kv_lora_rank", kv_lora_rank)
        self.qk_nope_head_dim = checks.size("qk_nope_head_dim", qk_nope_head_dim)
        self.qk_rope_head_dim = checks.size("qk_rope_head_dim", qk_rope_head_dim)
        self.v_head_dim = checks.optional(checks.size, "v_head_dim", v_head_dim)
        self.q_lora_rank = checks.optional(checks.size, "q_lora_rank", q_lora_rank)
        self.causal = checks.boolean("causal", causal)
        self.position = revive(position)
        if not isinstance(self.position, (Rotary, type(None))):
            raise ValueError(f"`position` must be None or a Rotary; received {short_repr(self.position)}.")
        self.position_layer = self.position
        if self.position is None:
            self.position_layer = Rotary(interleaved=True, dtype=self.dtype_policy, name="position")
        self.position_layer.check_heads(None, self.qk_rope_head_dim, "qk_rope_head_dim")
        self.scale = checks.optional(checks.positive_number, "scale", scale)
        self.dropout = checks.rate("dropout", dropout)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.norm_epsilon = checks.positive_number("norm_epsilon", norm_epsilon)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                f"`inputs` must have shape (batch, length, dim) of a known dim; received shape {tuple(inputs_shape)}."
            )
        heads, content, rotary = self.num_heads, self.qk_nope_head_dim, self.qk_rope_head_dim
        rank, width = self.kv_lora_rank, self.v_head_dim or content
        if self.q_lora_rank is None:
            self.query = make_projection(self, "query", heads * (content + rotary), inputs_shape, False)
        else:
            self.query_down = make_projection(self, "query_down", self.q_lora_rank, inputs_shape)
            self.query_norm, shape = self._norm("query_norm", self.q_lora_rank)
            self.query_up = make_projection(self, "query_up", heads * (content + rotary), shape, False)
        self.key_value_down = make_projection(self, "key_value_down", rank + rotary, inputs_shape)
        self.key_value_norm, shape = self._norm("key_value_norm", rank)
        self.key_value_up = make_projection(self, "key_value_up", heads * (content + width), shape, False)
        self.output_dense = make_projection(self, "output", inputs_shape[-1], (None, None, heads * width))
        self.dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def _norm(self, name, width):
        norm, shape = make_norm("rms", self.norm_epsilon, self.dtype_policy, name), (None, None, width)
        norm.build(shape)
        return norm, shape

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        if cache is None:
            padding = inputs_mask if mask is None else mask
            self._check_call(inputs, padding, attention_mask, segment_ids)
            allowed = AttentionMask(self.causal, None, padding, segment_ids, segment_ids, attention_mask)
            query, vector, rotary_key = self._project(inputs, token_positions(inputs, positions))
        else:
            check_absent_with_cache(attention_mask=attention_mask, segment_ids=segment_ids)
            allowed = cache.attention_mask
            query, vector, rotary_key = self._project(inputs, token_positions(inputs, positions, cache))
            vector, rotary_key = cache.update(vector, rotary_key)
        key, value = self._keys_and_values(vector, rotary_key)
        zero_empty_rows = attention_mask is not None
        return attend(
            self, query, key, value, allowed, zero_empty_rows=zero_empty_rows,
            return_attention_scores=return_attention_scores, training=training, scale=self.logit_scale(),
        )  # fmt: skip

    def compute_output_spec(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        self._check_call(inputs, inputs_mask if mask is None else mask, attention_mask, segment_ids)
        if positions is not None:
            checks.positions(positions, *inputs.shape[:2])
        self.key_value_down(inputs)  # raises ValueError for another width than in `build`
        (batch, length, _), dtype = inputs.shape, self.compute_dtype
        output = keras.KerasTensor(inputs.shape, dtype)
        scores = keras.KerasTensor((batch, self.num_heads, length, length), dtype)
        return (output, scores) if return_attention_scores else output

    def _check_call(self, inputs, padding, attention_mask, segment_ids):
        check_masks(self, inputs, inputs, attention_mask, mask=padding, segment_ids=segment_ids)
        check_conditions(padding, segment_ids, segment_ids)

    def logit_scale(self):
        """The factor on the logits."""
        if self.scale is not None:
            return self.scale
        return yarn_logit_factor(self.position_layer.scaling) / math.sqrt(self.qk_nope_head_dim + self.qk_rope_head_dim)

    def cache_spec(self, inputs_shape):
        """The shape of the output of a call with a cache, and (heads, width) of the two cached tensors."""
        return inputs_shape, (1, self.kv_lora_rank), (1, self.qk_rope_head_dim)

    def _project(self, inputs, positions):
        """Queries (B, T, N, C + P), vectors (B, T, 1, R) after their norm, rotated keys (B, T, 1, P)."""
        if self.q_lora_rank is None:
            query = self.query(inputs)
        else:
            query = self.query_up(self.query_norm(self.query_down(inputs)))
        query = split_heads(query, self.num_heads)
        content, rotary = query[..., : self.qk_nope_head_dim], query[..., self.qk_nope_head_dim :]
        query = ops.concatenate([content, self.position_layer.rotate(rotary, positions)], axis=-1)
        both = self.key_value_down(inputs)
        vector, rotary_key = both[..., : self.kv_lora_rank], both[..., self.kv_lora_rank :]
        rotary_key = self.position_layer.rotate(rotary_key[:, :, None], positions)
        return query, self.key_value_norm(vector)[:, :, None], rotary_key

    def _keys_and_values(self, vector, rotary_key):
        """(B, S, 1, R) and (B, S, 1, P) -> keys (B, S, N, C + P) and values (B, S, N, V)."""
        heads = split_heads(self.key_value_up(vector[:, :, 0]), self.num_heads)
        content, value = heads[..., : self.qk_nope_head_dim], heads[..., self.qk_nope_head_dim :]
        rotary_key = ops.tile(rotary_key, (1, 1, self.num_heads, 1))
        return ops.concatenate([content, rotary_key], axis=-1), value
