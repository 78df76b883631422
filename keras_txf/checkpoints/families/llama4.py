"""The text model of Llama 4: chunked attention, some blocks without positions, and experts with weighted inputs."""

import functools

from keras import ops

from keras_txf import checks
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.llama import BODY, family
from keras_txf.checkpoints.families.mixtures import PART, experts, with_moe_layers
from keras_txf.checkpoints.families.rotary import positions
from keras_txf.checkpoints.weight_map import TRANSPOSED, Tensor, stacked
from keras_txf.checks import short_repr
from keras_txf.layers import MixtureOfExperts, MultiHeadSelfAttention, Rotary
from keras_txf.layers.serialization import register
from keras_txf.ops.masks import HIDDEN
from keras_txf.ops.tensors import wide_dtype, widen

MODULE, GATED = "layers.{i}.feed_forward", {"gate": "gate_proj", "intermediate": "up_proj", "output": "down_proj"}
LLAMA4 = {
    **BODY,
    **{f"{PART}{ours}": f"{MODULE}.{theirs}" for ours, theirs in GATED.items()},
    **{f"{PART}shared_experts/{ours}": f"{MODULE}.shared_expert.{theirs}" for ours, theirs in GATED.items()},
    f"{PART}router": Tensor(f"{MODULE}.router.weight", other=TRANSPOSED),
    **stacked(f"{MODULE}.experts.gate_up_proj", [f"{PART}gate_kernel", f"{PART}intermediate_kernel"]),
    f"{PART}output_kernel": f"{MODULE}.experts.down_proj",
}


@register
class ChunkedRotary(Rotary):
    """Rotary positions of interleaved pairs, with a norm after the rotation, and attention within chunks of the text.

    Args:
        options, named: options of `Rotary`.
        chunk: number of tokens of a chunk: a token attends only to its own chunk; None: to all tokens.
        norm_epsilon: epsilon of an RMS norm without weights of rotated queries and keys; None: no norm.
    """

    is_absolute = True

    def __init__(self, *options, chunk=None, norm_epsilon=None, **named):
        super().__init__(*options, **named)
        self.chunk = checks.optional(checks.size, "chunk", chunk)
        self.norm_epsilon = checks.optional(checks.positive_number, "norm_epsilon", norm_epsilon)

    def rotate(self, x, positions):
        x = super().rotate(x, positions)
        if self.norm_epsilon is None:
            return x
        wide = widen(x)
        wide = wide * ops.rsqrt(ops.mean(ops.square(wide), axis=-1, keepdims=True) + self.norm_epsilon)
        return ops.cast(wide, x.dtype)

    def bias(self, query_positions, key_positions):
        """0 within a chunk, `HIDDEN` elsewhere, (B or 1, 1, T, S)."""
        if self.chunk is None:
            return None
        query, key = (x if len(x.shape) == 2 else x[None] for x in (query_positions, key_positions))
        same = query[:, None, :, None] // self.chunk == key[:, None, None, :] // self.chunk
        return ops.cast(ops.logical_not(same), wide_dtype(self.compute_dtype)) * HIDDEN


@register
class TunedAttention(MultiHeadSelfAttention):
    """Attention without positions, whose queries grow with the position: times 1 + scale · log(1 + floor(n / floor)).

    n is the number of tokens of the text up to the query, which is included.

    Args:
        sizes, options: options of `MultiHeadSelfAttention`.
        floor_scale, tuning_scale: the numbers floor and scale.
    """

    is_absolute = True

    def __init__(self, *sizes, floor_scale=8192, tuning_scale=0.1, **options):
        super().__init__(*sizes, **options)
        self.floor_scale = checks.size("floor_scale", floor_scale)
        self.tuning_scale = checks.positive_number("tuning_scale", tuning_scale)

    def _project(self, inputs, positions):
        query, key, value = super()._project(inputs, positions)
        steps = ops.cast((positions + 1) // self.floor_scale, wide_dtype(self.compute_dtype))
        factors = 1.0 + self.tuning_scale * ops.log1p(steps)  # (T,) or (B, T)
        return ops.cast(query * factors[..., None, None], query.dtype), key, value


@register
class WeightedInputs(MixtureOfExperts):
    """Experts whose inputs, not outputs, have the weights of the router: sum of f_e(w_e x). They have no biases."""

    def call(self, inputs, mask=None, training=None):
        weights, chosen, logits = self._route(inputs)
        if training and self.load_balancing:
            self.add_loss(self.load_balancing * self._imbalance(chosen, logits, mask))
        weights = ops.expand_dims(ops.cast(weights, self.compute_dtype), -1)
        gate, x = (ops.einsum("btd,edf->btef", inputs, kernel) * weights for kernel in (self.gate, self.intermediate))
        outputs = ops.einsum("btef,efd->btd", self.apply_gate(gate, x), self.output_kernel)
        return outputs + self._shared(inputs)


def llama4(c):
    c.only("router_jitter_noise", 0.0)
    found = llama.options(c, 500000.0)
    number, width = found["num_layers"], c("intermediate_size_mlp", 16384)
    layer = experts(
        c, c("num_local_experts", 16), c("intermediate_size"), normalize=False, make=WeightedInputs,
        router_activation="sigmoid", num_shared_experts=1,
    )  # fmt: skip
    step, sparse = c("interleave_moe_layer_step", 1), c("moe_layers", None)
    sparse = range(step - 1, number, step) if sparse is None else sparse
    options = {name: value for name, value in found.items() if name not in OF_ATTENTION}
    return {
        **with_moe_layers(
            {**options, "intermediate_dim": width}, [layer if i in sparse else None for i in range(number)]
        ),
        "attention": attentions(c, found),
    }


def attentions(c, found):
    """Returns the attention of each block: with rotary positions, in chunks, or without positions."""
    number, every = found["num_layers"], c("no_rope_layer_interval", 4)
    rotates = c("no_rope_layers", None) or [(i + 1) % every != 0 for i in range(number)]
    chunk, epsilon = c("attention_chunk_size", 8192), found["norm_epsilon"] if c("use_qk_norm", True) else None
    kinds = [CHUNKED if used and chunk is not None else FULL for used in rotates]
    kinds = c.each("layer_types", number, kinds)
    if any(kind not in ([CHUNKED, FULL] if used else [FULL]) for kind, used in zip(kinds, rotates)):
        raise ValueError(
            "config.json must have `layer_types` of 'full_attention' and 'chunked_attention', the latter for blocks "
            f"with positions alone; received {short_repr(kinds)}."
        )
    [rotary] = positions(c, [FULL], {FULL: c("rope_theta", 500000.0)}, interleaved=True)
    same = {name: value for name, value in rotary.get_config().items() if name not in ("name", "dtype")}
    options = dict(
        num_heads=found["num_heads"], num_key_value_heads=found["num_key_value_heads"], head_dim=found["head_dim"],
        dropout=found["attention_dropout"], use_bias=c("attention_bias", False), causal=True, name="attention",
    )  # fmt: skip
    tuned = {"floor_scale": c("floor_scale", 8192), "tuning_scale": c("attn_scale", 0.1)}
    make = functools.partial(TunedAttention, **tuned) if c("attn_temperature_tuning", True) else MultiHeadSelfAttention
    of_kinds = {
        kind: ChunkedRotary(chunk=size, norm_epsilon=epsilon, name=f"rotary_{kind}", **same)
        for kind, size in ((CHUNKED, chunk), (FULL, None))
    }
    layers = {kind: MultiHeadSelfAttention(position=position, **options) for kind, position in of_kinds.items()}
    return [layers[kind] if used else make(**options) for kind, used in zip(kinds, rotates)]


CHUNKED, FULL = "chunked_attention", "full_attention"
OF_ATTENTION = ("num_heads", "num_key_value_heads", "head_dim", "position", "attention_dropout")
NEUTRAL = ("output_router_logits", "router_aux_loss_coef")  # the class has no loss of routers
FAMILIES = {"llama4_text": family("Llama4", llama4, LLAMA4, NEUTRAL, "Llama4Text", sequences=False, tokens=None)}
