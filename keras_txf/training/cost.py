"""The cost of a training step of a model: arithmetic, memory and traffic, counted from the work of its layers.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import keras

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional, optional_inputs
from keras_txf.backend.keras_private import flatten_layers, without_values
from keras_txf.checks import short_repr
from keras_txf.layers import MixtureOfExperts
from keras_txf.training.cost_record import record, size_of


@dataclasses.dataclass(frozen=True)
class Cost:
    """The counts of `cost`. `str` of this object is a table.

    Args:
        batch_size: rows of the batch; all counts except the counts of weights are for the whole batch.
        parameters: numbers in all weights.
        trainable_parameters: numbers in the trainable weights.
        active_parameters: `parameters` without the experts that a token does not choose.
        forward_flops: FLOPs of all matrix products of a forward pass; a multiplication and an addition are 2 FLOPs.
        attention_flops: the part of `forward_flops` for scores and weighted values, over all T x S pairs.
        hidden_flops: the part of `attention_flops` that a causal mask or a window hides. A kernel in blocks does not
            compute most of it.
        active_flops: `forward_flops` without the experts that a token does not choose.
        training_flops: FLOPs of all matrix products of a forward and a backward pass, recomputation included.
        weight_bytes, gradient_bytes: bytes as stored. Only trainable weights have a gradient.
        optimizer_bytes: bytes of Adam's two moments.
        activation_bytes: bytes that the forward pass keeps for the gradient; the peak, if blocks are recomputed.
        logit_bytes: bytes of the model's outputs, and of a float32 copy for the loss.
        product_bytes: operands and results of the matrix products of a training step, each read or written once.
        update_bytes: bytes that Adam reads (weight, gradient, two moments) and writes (weight, two moments).
    """

    batch_size: int
    parameters: int
    trainable_parameters: int
    active_parameters: int
    forward_flops: int
    attention_flops: int
    hidden_flops: int
    active_flops: int
    training_flops: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    logit_bytes: int
    product_bytes: int
    update_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Weights, gradients, moments, activations and logits."""
        state = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return state + self.activation_bytes + self.logit_bytes

    @property
    def moved_bytes(self) -> int:
        """Traffic of matrix products and optimizer, without elementwise work, which compilers fuse."""
        return self.product_bytes + self.update_bytes

    def __str__(self) -> str:
        names = [*(field.name for field in dataclasses.fields(self)), "memory_bytes", "moved_bytes"]
        return "\n".join(f"{name.replace('_', ' '):22}{_readable(name, getattr(self, name)):>14}" for name in names)


def cost(
    model: keras.Model | Callable[[], keras.Model],
    batch_size: int,
    length: int | Mapping[str, int] | None = None,
    rematerialize: bool | None = None,
    fused_attention: bool = True,
) -> Cost:
    """Counts the cost of a training step of a model: FLOPs, memory, and bytes that move.

    The counts show before a training whether a model fits a device, and its best possible speed. `cost` follows the
    layers while Keras infers shapes: nothing is computed. Matrix products and convolutions of `keras.ops` count
    everywhere, in your own layers too; elementwise work does not count as FLOPs.

    Activations are the inputs of matrix products, norms, activation functions and gates, and masks of dropout, each
    counted once. A compiler may keep fewer, by recomputation, or more.

    Args:
        model: a functional model, such as a model of a builder; or a function without arguments that returns a model.
            The function's model gets no values, so it may be larger than the memory.
        batch_size: rows of a batch.
        length: tokens of a row; a dict by the names of inputs if they differ, such as
            `{"source_ids": 128, "target_ids": 100}`. None for inputs of a fixed size, such as pictures.
        rematerialize: whether each block keeps only its inputs and recomputes the rest. None uses the model's own
            setting (`keras.RematScope` counts in its mode "full"). A block that is recomputed counts as a whole, though
            a compiler omits what no gradient needs.
        fused_attention: whether the attention kernel keeps no scores (on PyTorch, and on JAX on a GPU in half
            precision). False adds the weights (B, N, T, S) to `activation_bytes` and `product_bytes`: for JAX
            elsewhere, and for TensorFlow with sequences too short for blocks.

    Returns:
        A `Cost`.

    Raises:
        ValueError: a model without a graph or with a fixed batch size, a missing or superfluous `length`.

    Reference:
        [Reducing Activation Recomputation](https://arxiv.org/abs/2205.05198) for the activations;
        [PaLM](https://arxiv.org/abs/2204.02311), appendix B, for the share of peak that FLOPs are used for.

    Example:

    >>> model = txf.models.decoder_generator(1000, num_layers=2, dim=64, num_heads=4)
    >>> cost = txf.training.cost(model, batch_size=8, length=128)
    >>> cost.parameters, cost.training_flops / cost.forward_flops
    (163968, 3.0)
    >>> build = lambda: txf.models.decoder_generator(32000, 32, 4096, 32, norm_placement="pre")
    >>> cost = txf.training.cost(build, 1, 2048)
    >>> print(f"{cost.memory_bytes / 1e9:.0f} GB")
    125 GB
    """
    batch_size = checks.size("batch_size", batch_size)
    checks.optional(checks.boolean, "rematerialize", rematerialize)
    checks.boolean("fused_attention", fused_attention)
    if not isinstance(model, keras.Model) and not callable(model):
        raise ValueError(f"`model` must be a Keras model or a function that returns one; received {short_repr(model)}.")
    if not isinstance(model, keras.Model):
        checks.takes_no_arguments("model", model)
        with without_values():
            model = model()
    if not is_functional(model):
        raise ValueError(f"`model` must be a functional Keras model; received {short_repr(model)}.")
    shapes = _shapes(model, batch_size, length)
    # Tensors whose size differs for another batch size have rows of the batch.
    other = {name: (batch_size + 1, *shape[1:]) for name, shape in shapes.items()}
    products, kept, outputs = record(model, shapes, other, rematerialize, fused_attention)
    weights, trained = model.weights, model.trainable_weights
    kept_outside = kept.pop(None, 0)
    return Cost(
        batch_size=batch_size,
        parameters=_numbers(weights),
        trainable_parameters=_numbers(trained),
        active_parameters=_numbers(weights) - _inactive_parameters(model),
        forward_flops=sum(2 * product.multiply_adds for product in products),
        attention_flops=sum(2 * product.multiply_adds for product in products if product.is_attention),
        hidden_flops=sum(2 * product.hidden for product in products),
        active_flops=sum(round(2 * product.multiply_adds * product.share) for product in products),
        training_flops=sum(round(2 * product.multiply_adds * product.passes) for product in products),
        product_bytes=sum(round(product.bytes * product.passes) for product in products),
        weight_bytes=_bytes(weights),
        gradient_bytes=_bytes(trained),
        optimizer_bytes=2 * _bytes(trained),
        activation_bytes=kept_outside + max(kept.values(), default=0),
        logit_bytes=sum(math.prod(x.shape) * (size_of(x.dtype) + 4) for x in outputs),
        update_bytes=7 * _bytes(trained),
    )


def _shapes(model, batch_size, length):
    """The shape of each input by its name, without optional inputs."""
    left_out = optional_inputs(model)
    inputs = [x for x in model.inputs if x.name not in left_out]
    free = [x.name for x in inputs if None in x.shape[1:]]
    if isinstance(length, Mapping):
        if not set(length) <= set(free):
            raise ValueError(f"`length` must have names of inputs, {short_repr(free)}; received {short_repr(length)}.")
        lengths = {name: checks.size("length", value) for name, value in length.items()}
    else:
        if isinstance(length, list | tuple):
            raise ValueError(
                "`length` must be a positive integer, or a dict by the names of inputs, "
                f"{', '.join(map(short_repr, free))}; received {short_repr(length)}."
            )
        lengths = dict.fromkeys(free, checks.optional(checks.size, "length", length))
    if length is not None and not free:
        raise ValueError(f"`length` must be None: all inputs have a fixed size; received {short_repr(length)}.")
    for name in free:
        if lengths.get(name) is None:
            raise ValueError(
                f"`length` must have a value for the input {short_repr(name)}; received {short_repr(length)}."
            )
    for x in inputs:
        if x.shape[0] is not None:
            raise ValueError(f"`model` must take any batch size; its input {short_repr(x.name)} has {x.shape[0]} rows.")
    return {x.name: (batch_size, *(lengths[x.name] if n is None else n for n in x.shape[1:])) for x in inputs}


def _numbers(variables):
    return sum(math.prod(variable.shape) for variable in variables)


def _bytes(variables):
    return sum(math.prod(variable.shape) * size_of(variable.dtype) for variable in variables)


def _inactive_parameters(model):
    """Numbers in the experts that a token does not choose."""
    return sum(
        _numbers(layer.weights_of_experts()) * (layer.num_experts - layer.top_k) // layer.num_experts
        for layer in flatten_layers(model)
        if isinstance(layer, MixtureOfExperts)
    )


def _readable(name, value):
    """A count as text, with the unit that its name ends with."""
    if name.endswith("bytes"):
        return _scaled(value, ("B", "kB", "MB", "GB", "TB", "PB"))
    if name.endswith("flops"):
        return _scaled(value, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))
    return f"{value:,}"


def _scaled(value, units):
    power = min(len(units) - 1, max(0, int(math.log10(value)) // 3)) if value else 0
    return f"{value / 1000**power:.4g} {units[power]}"
