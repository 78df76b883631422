"""MixtureOfExperts: several feed-forward networks and a router that selects some of them for each token."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import FeedForward, network_widths, set_network_options
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import own_initializer, register
from keras_txf.ops.masks import HIDDEN
from keras_txf.ops.tensors import batch_size, widen

SCORES = {"softmax": lambda logits: ops.softmax(logits, axis=-1), "sigmoid": ops.sigmoid}


@register
class MixtureOfExperts(Layer):
    """A feed-forward layer of E experts: a router selects the k experts with the highest scores for each token.

    The output is the sum of the selected experts, weighted by their scores, and of the shared experts, which all tokens
    use. Pass it as `feed_forward` to a block or a builder. All shapes are static, so that every backend compiles it:
    each expert computes every token, with the weight 0 if it is not selected. A layer therefore costs as much as
    E experts.

    Args:
        num_experts: number E of experts.
        top_k: number k of experts for a token.
        intermediate_dim: width F of an expert; default 4 times the width of the input.
        activation: any Keras activation, see `FeedForward`.
        gated: whether a second projection gates the first (SwiGLU with "silu", as in Mixtral and DeepSeek).
        num_shared_experts: number of experts that all tokens use. They are one `FeedForward` of width
            `num_shared_experts` times F.
        shared_intermediate_dim: another width of this `FeedForward`.
        shared_gate: whether the sigmoid of a projection of the token weights the shared experts (Qwen2-MoE).
        router_activation: the function from logits of the router to scores: "softmax" (Mixtral), or "sigmoid"
            (DeepSeek-V3).
        normalize: whether the scores of the selected experts are divided by their sum (Mixtral; not in Qwen1.5-MoE).
        load_balancing: weight of the loss that training adds, E · Σ_e f_e · P_e. f_e is the mean number of times that
            expert e is selected for a token, and P_e the mean softmax of the router. The minimum, k, means that all
            experts are selected equally often. None: no such loss.
        use_bias: whether experts have biases.
        kernel_initializer: initializer of the experts and the router.
        e_score_correction_bias: whether each expert has a number that is added to its score for the selection, not for
            the weights (DeepSeek-V3). The number is initially 0, and training does not change it.
        n_group: number of groups of consecutive experts: a token uses only experts of its best groups. None: no groups.
        topk_group: number of these best groups; default all.
        top_k_in_group: number of the highest scores of a group whose sum is the score of the group: 2 in DeepSeek-V3,
            1 in DeepSeek-V2.
        routed_scaling_factor: factor on the weights of the selected experts.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. The load-balancing loss counts only real tokens.

    Returns:
        (B, T, D).

    Raises:
        ValueError: `top_k` above `num_experts`, or above the experts of `topk_group` groups, a size that is not a
            positive integer, an unknown `router_activation`.

    Reference:
        [Outrageously Large Neural Networks](https://arxiv.org/abs/1701.06538);
        [Switch Transformers](https://arxiv.org/abs/2101.03961) for the loss;
        [Mixtral](https://arxiv.org/abs/2401.04088); [DeepSeek-V3](https://arxiv.org/abs/2412.19437) for the sigmoid and
        shared experts.

    Example:

    >>> experts = txf.layers.MixtureOfExperts(num_experts=4, top_k=2, intermediate_dim=24)
    >>> model = txf.models.decoder_generator(100, num_layers=2, dim=32, num_heads=4, feed_forward=[None, experts])
    >>> model.generate([[5, 6, 7]], max_new_tokens=4).shape
    (1, 7)
    """

    weight_splits = {
        "router": "columns",
        "e_score_correction_bias": "whole",
        "shared_gate": "whole",
        **dict.fromkeys(
            (f"{name}_{part}" for name in ("gate", "intermediate", "output") for part in ("kernel", "bias")), "experts"
        ),
    }

    def __init__(
        self,
        num_experts: int,
        top_k: int = 2,
        intermediate_dim: int | None = None,
        activation: Any = "silu",
        gated: bool = True,
        num_shared_experts: int = 0,
        router_activation: str = "softmax",
        normalize: bool = True,
        load_balancing: float | None = 0.01,
        use_bias: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        shared_intermediate_dim: int | None = None,
        shared_gate: bool = False,
        e_score_correction_bias: bool = False,
        n_group: int | None = None,
        topk_group: int | None = None,
        top_k_in_group: int = 2,
        routed_scaling_factor: float = 1.0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_experts = checks.size("num_experts", num_experts)
        self.top_k = checks.integer_between("top_k", top_k, 1, self.num_experts)
        set_network_options(
            self,
            intermediate_dim,
            activation,
            gated,
            use_bias,
            "glorot_uniform" if kernel_initializer is None else kernel_initializer,
        )
        self.num_shared_experts = num_shared_experts
        if not (isinstance(num_shared_experts, int) and num_shared_experts == 0):
            checks.size("num_shared_experts", num_shared_experts)
        self.router_activation = checks.one_of("router_activation", router_activation, SCORES)
        self.normalize = checks.boolean("normalize", normalize)
        self.load_balancing = checks.optional(checks.positive_number, "load_balancing", load_balancing)
        self.shared_intermediate_dim = checks.optional(checks.size, "shared_intermediate_dim", shared_intermediate_dim)
        self.shared_gate = checks.boolean("shared_gate", shared_gate)
        self.e_score_correction_bias = checks.boolean("e_score_correction_bias", e_score_correction_bias)
        self.routed_scaling_factor = checks.positive_number("routed_scaling_factor", routed_scaling_factor)
        self._set_groups(n_group, topk_group, top_k_in_group)

    def _set_groups(self, n_group, topk_group, top_k_in_group):
        self.n_group = checks.optional(checks.size, "n_group", n_group)
        self.topk_group = checks.optional(checks.size, "topk_group", topk_group)
        self.top_k_in_group = checks.size("top_k_in_group", top_k_in_group)
        checks.combinations(self, "MixtureOfExperts")
        if self.n_group is None:
            return
        checks.divides("n_group", self.n_group, "num_experts", self.num_experts)
        if topk_group is not None:
            checks.integer_between("topk_group", topk_group, 1, self.n_group)
        size = self.num_experts // self.n_group
        if top_k_in_group > size:
            raise ValueError(
                f"`top_k_in_group` must be at most {size}, the experts of a group "
                f"(num_experts={self.num_experts}, n_group={self.n_group}); received {top_k_in_group}."
            )
        checks.integer_between("top_k", self.top_k, 1, size * (topk_group or n_group))

    def build(self, inputs_shape):
        dim, width = network_widths(self, inputs_shape)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: dim})
        router = own_initializer(self.kernel_initializer, self, "router")
        self.router = self.add_weight(name="router", shape=(dim, self.num_experts), initializer=router, autocast=False)
        if self.e_score_correction_bias:
            self.correction_bias = self.add_weight(
                name="e_score_correction_bias", shape=(self.num_experts,), initializer="zeros", trainable=False,
                autocast=False,
            )  # fmt: skip
        if self.gated:
            self.gate, self.gate_bias = self._experts("gate", dim, width)
        self.intermediate, self.intermediate_bias = self._experts("intermediate", dim, width)
        self.output_kernel, self.output_bias = self._experts("output", width, dim)
        if isinstance(self.activation_function, keras.layers.Layer):
            self.activation_function.build((*inputs_shape[:-1], self.num_experts, width))
        if self.num_shared_experts:
            self.shared_experts = FeedForward(
                self.shared_intermediate_dim or self.num_shared_experts * width, self.activation, self.gated,
                use_bias=self.use_bias,
                kernel_initializer=own_initializer(self.kernel_initializer, self, "shared_experts"),
                dtype=self.dtype_policy, name="shared_experts",
            )  # fmt: skip
            self.shared_experts.build(inputs_shape)
        if self.shared_gate:
            self.shared_gate_dense = make_projection(self, "shared_gate", 1, inputs_shape, use_bias=False)

    def _experts(self, name, height, width):
        """The kernels (E, height, width) of one projection, each initialized separately, and its biases (E, width)."""
        initializers = [own_initializer(self.kernel_initializer, self, f"{name}_{i}") for i in range(self.num_experts)]

        def draw(shape, dtype=None):
            return ops.stack([initializer(shape[1:], dtype=dtype) for initializer in initializers])

        kernel = self.add_weight(name=f"{name}_kernel", shape=(self.num_experts, height, width), initializer=draw)
        bias = None
        if self.use_bias:
            bias = self.add_weight(name=f"{name}_bias", shape=(self.num_experts, width), initializer="zeros")
        return kernel, bias

    def call(self, inputs, mask=None, training=None):
        weights, chosen, logits = self._route(inputs)
        if training and self.load_balancing:
            self.add_loss(self.load_balancing * self._imbalance(chosen, logits, mask))
        x = ops.einsum("btef,efd->bted", self._inside(inputs), self.output_kernel)
        if self.output_bias is not None:
            x = x + self.output_bias
        # LiteRT lacks the einsum "bted,bte->btd".
        outputs = ops.squeeze(ops.matmul(ops.expand_dims(ops.cast(weights, x.dtype), -2), x), -2)
        return outputs + self._shared(inputs) if self.num_shared_experts else outputs

    def compute_output_spec(self, inputs, mask=None, training=None):
        if isinstance(self.activation_function, keras.layers.Layer):
            wide = (*inputs.shape[:-1], self.num_experts, self.intermediate.shape[-1])
            self.activation_function(keras.KerasTensor(wide, self.compute_dtype))
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def _inside(self, inputs):
        """The hidden layers of the experts, (B, T, E, F)."""
        x = _project(inputs, self.intermediate, self.intermediate_bias)
        if not self.gated:
            return self.activation_function(x)
        gate = _project(inputs, self.gate, self.gate_bias)
        return self.apply_gate(gate, x)

    def apply_gate(self, gate, x):
        """The product of both projections (B, T, E, F); a subclass may compute another function."""
        return self.activation_function(gate) * x

    def router_logits(self, inputs):
        """The scores of experts before the softmax or sigmoid, (B, T, E)."""
        return ops.matmul(widen(inputs), widen(self.router))

    def _shared(self, inputs):
        outputs = self.shared_experts(inputs)
        return outputs * ops.sigmoid(self.shared_gate_dense(inputs)) if self.shared_gate else outputs

    def _route(self, inputs):
        """The router's weights, choices (0 or 1) and logits for each token and expert, all wide (B, T, E)."""
        logits = self.router_logits(inputs)
        scores = SCORES[self.router_activation](logits)
        _, best = ops.top_k(self._preferences(scores), self.top_k)
        chosen = ops.sum(ops.one_hot(best, self.num_experts, dtype=scores.dtype), axis=-2)
        weights = scores * chosen
        if self.normalize:
            weights = self.normalized(weights)
        return weights * self.routed_scaling_factor, chosen, logits

    def normalized(self, weights):
        """The weights (B, T, E) divided by their sum; a subclass may protect the division in another way."""
        return weights / ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1e-20)

    def _preferences(self, scores):
        """The scores for the selection (B, T, E), corrected, and `HIDDEN` outside the best groups."""
        if self.e_score_correction_bias:
            scores = scores + ops.cast(self.correction_bias, scores.dtype)
        if self.n_group is None:
            return scores
        shape = batch_size(scores), ops.shape(scores)[1]
        groups = ops.reshape(scores, (*shape, self.n_group, self.num_experts // self.n_group))
        best, _ = ops.top_k(groups, self.top_k_in_group)
        _, best = ops.top_k(ops.sum(best, axis=-1), self.topk_group or self.n_group)
        chosen = ops.sum(ops.one_hot(best, self.n_group, dtype=scores.dtype), axis=-2)
        groups = ops.where(ops.expand_dims(chosen > 0, -1), groups, HIDDEN)
        return ops.reshape(groups, (*shape, self.num_experts))

    def _imbalance(self, chosen, logits, mask):
        """E · Σ_e f_e · P_e over the real tokens."""
        real = ops.ones_like(chosen[..., :1]) if mask is None else ops.expand_dims(ops.cast(mask, chosen.dtype), -1)
        count = ops.maximum(ops.sum(real), 1.0)
        share = ops.sum(chosen * real, axis=(0, 1)) / count
        probability = ops.sum(ops.softmax(logits, axis=-1) * real, axis=(0, 1)) / count
        return self.num_experts * ops.sum(share * probability)

    def weights_of_experts(self):
        """The weights with one slice for each expert."""
        names = ("gate", "gate_bias", "intermediate", "intermediate_bias", "output_kernel", "output_bias")
        return [weight for name in names if (weight := getattr(self, name, None)) is not None]


def _project(x, kernel, bias):
    """(B, T, D) by each expert -> (B, T, E, F)."""
    x = ops.einsum("btd,edf->btef", x, kernel)
    return x if bias is None else x + bias
