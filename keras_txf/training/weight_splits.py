"""The rules of `layout_map`: which weights of a layer are split over the devices of the model axis.

Legend: D model dim, N heads, K key-value heads, H head dim, F intermediate dim, E experts, V vocabulary.
"""

import keras

from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checks import short_repr
from keras_txf.layers.attention import CrossAttention, MultiHeadSelfAttention
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.latent_attention import LatentAttention
from keras_txf.layers.mixture_of_experts import MixtureOfExperts
from keras_txf.layers.positions import RelativeBias
from keras_txf.layers.projections import Projection

# For a matrix that is split by its columns or rows: the axis to split, by the name of the variable. Each device holds
# the whole of a variable without an entry.
PARTS = {
    "columns": {"kernel": -1, "bias": -1, "kernel_scale": -1, "lora_b": -1},
    "rows": {"kernel": 0, "lora_a": 0, "embeddings": 0, "embeddings_scale": 0},
    "whole": {},
}
OWN = {"columns": -1, "rows": 0, "whole": None}  # the axis to split of a variable of the layer itself
# Of experts: the experts themselves, or the width of each expert where the devices do not divide the experts.
EXPERT_WIDTH = {"gate_kernel": 2, "gate_bias": 1, "intermediate_kernel": 2, "intermediate_bias": 1, "output_kernel": 1}
ADAPTED = ("kernel", "bias", "lora_a", "lora_b")  # an adapter puts its own name before these names
MATRICES = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)


def split_weights(layers, axis, num_devices, notes):
    """Returns the axes of the weights to split, by their ids.

    Args:
        layers: all layers of a model, also the layers inside layers.
        axis: the name of the mesh's axis.
        num_devices: the number of devices along the axis.
        notes: dict of message -> list of paths, which gets the layers that do not divide over the devices.

    Raises:
        ValueError: a layer of this package has a weight that is not in the `weight_splits` of its class.
    """
    rules = _Rules(axis, num_devices, notes)
    for layer in layers:
        _check_declared(layer)
        for cls, rule in RULES.items():
            if isinstance(layer, cls) and layer.built:  # a template of blocks is not built
                rule(rules, layer)
    sizes = {layer.vocab_size for layer in layers if isinstance(layer, PositionalEmbedding)} - {None}
    for layer in layers[0].layers:  # the layers of the model itself
        if isinstance(layer, keras.layers.Dense) and layer.units in sizes and rules.divides(layer, V=layer.units):
            rules.split_part(layer, PARTS["columns"])
    return rules.splits


def declared_splits(cls):
    """The `weight_splits` of a class and of its base classes."""
    found = {}
    for owner in reversed(cls.__mro__):
        found.update(vars(owner).get("weight_splits", {}))
    return found


def _check_declared(layer):
    """Raises ValueError if a layer of this package has a weight whose split no class declares."""
    cls = type(layer)
    if not cls.__module__.startswith("keras_txf.") or isinstance(layer, (Projection, keras.Model)):
        return
    declared = declared_splits(cls)
    # A layer without weights of its own, such as a block, may hold matrices of the caller's own parts.
    kinds = MATRICES if declared else Projection
    parts = flatten_layers(layer, False)
    inner = {id(deep) for part in parts for deep in flatten_layers(part, False)}
    weights = [(weight.name, weight) for weight in _own_weights(layer)]
    weights += [
        (part.name, weight)
        for part in parts
        if isinstance(part, kinds) and id(part) not in inner
        for weight in _own_weights(part)
    ]
    unknown = [weight.path for name, weight in weights if name not in declared]
    if unknown:
        raise ValueError(
            f"`model` must have weights that `layout_map` knows in layers of this package; received "
            f"{short_repr(unknown[0])} of {cls.__name__}. Add the weight to `weight_splits` of the class."
        )


class _Rules:
    """One rule for each class of layer. A user's subclass may lack the parts that a rule splits: it stays whole."""

    def __init__(self, axis, num_devices, notes):
        self.axis, self.num_devices, self.notes = axis, num_devices, notes
        self.splits = {}

    def split(self, layer, *names):
        """Splits the weights of these names, or all weights, as `weight_splits` of the layer's class declares."""
        declared = declared_splits(type(layer))
        own = {weight.name: weight for weight in _own_weights(layer)}
        for name in names or declared:
            part = getattr(layer, f"{name}_dense", getattr(layer, name, None))  # an option may have the name of a part
            if name in own:
                self.split_variable(own[name], OWN[declared[name]])
            elif isinstance(part, keras.layers.Layer):
                self.split_part(part, PARTS[declared[name]])

    def split_part(self, part, axes):
        """Splits the variables of a layer, without the layers inside it, by the axis of each name."""
        if getattr(part, "quantization_mode", None) not in (None, "int8"):
            return
        for variable in _own_weights(part):
            name = variable.name
            name = next((end for end in ADAPTED if name.endswith(f"_{end}") and name not in axes), name)
            self.split_variable(variable, axes.get(name))

    def split_variable(self, variable, axis):
        shape = variable.shape
        if axis is None or not -len(shape) <= axis < len(shape) or shape[axis] % self.num_devices:
            return
        self.splits[id(variable)] = tuple(self.axis if i == axis % len(shape) else None for i in range(len(shape)))

    def divides(self, layer, **sizes):
        """Whether a size divides over the devices; notes the layer if it does not."""
        ((letter, size),) = sizes.items()
        if size % self.num_devices:
            message = NOTES[letter].format(size, devices=f"the {self.num_devices} devices of axis '{self.axis}'")
            self.notes[message].append(layer.path)
        return size % self.num_devices == 0

    def attention(self, layer):
        if not _has_projections(layer, "query", "key", "value") or not self.divides(layer, N=layer.num_heads):
            return
        self.split(layer, *(declared_splits(type(layer)).keys() - {"key", "value"}))
        norms = ["query_norm"]
        kv_heads = layer.num_key_value_heads or layer.num_heads
        if layer.key.units % self.num_devices:
            self.divides(layer, whole=kv_heads)
        else:
            self.divides(layer, K=kv_heads)  # for the note
            self.split(layer, "key", "value")
            norms.append("key_norm")
        if layer.qk_norm == "full":  # a norm of all heads together
            for name in norms:
                self.split_part(getattr(layer, name), {"scale": 0})

    def latent_attention(self, layer):
        if _has_projections(layer, "key_value_up", "output_dense") and self.divides(layer, N=layer.num_heads):
            self.split(layer)

    def heads_of_bias(self, layer):
        self.split(layer)  # the attention has the note

    def feed_forward(self, layer):
        if _has_projections(layer, "intermediate", "output_dense") and self.divides(layer, F=layer.intermediate.units):
            self.split(layer)

    def experts(self, layer):
        intermediate = getattr(layer, "intermediate", None)
        if not isinstance(intermediate, keras.Variable):
            return
        names = [name for name, split in declared_splits(type(layer)).items() if split == "experts"]
        if layer.num_experts % self.num_devices == 0:
            self.split(layer, "router")  # XLA would split and gather a whole router in each step
            axes = dict.fromkeys(names, 0)
        else:
            axes = EXPERT_WIDTH if self.divides(layer, F=intermediate.shape[-1]) else {}
        for weight in _own_weights(layer):
            self.split_variable(weight, axes.get(weight.name))

    def tokens(self, layer):
        if layer.vocab_size is not None and self.divides(layer, V=layer.vocab_size):
            self.split(layer, "token")

    def logit_bias(self, layer):
        self.split(layer)


def _own_weights(layer):
    """The weights of a layer, without the weights of the layers inside it."""
    inside = {id(weight) for inner in flatten_layers(layer, False) for weight in inner.weights}
    return [weight for weight in layer.weights if id(weight) not in inside]


def _has_projections(layer, *names):
    return all(isinstance(getattr(layer, name, None), keras.layers.Dense) for name in names)


WHOLE = "not divide over {devices}, so each device holds the whole weights."
NOTES = {
    "N": "{} heads do " + WHOLE,
    # The kernels are split anyway: otherwise XLA would split the kernels and Adam's moments and gather them each step.
    "K": "{} key-value heads do not divide over {devices}, so heads are cut, and devices exchange keys and values.",
    "whole": "{} key-value heads and their columns do " + WHOLE,
    "F": "intermediate_dim={} does " + WHOLE,
    "V": "a vocabulary of {} does " + WHOLE,
}
RULES = {
    (MultiHeadSelfAttention, CrossAttention): _Rules.attention,
    LatentAttention: _Rules.latent_attention,
    RelativeBias: _Rules.heads_of_bias,
    FeedForward: _Rules.feed_forward,
    MixtureOfExperts: _Rules.experts,
    PositionalEmbedding: _Rules.tokens,
    LogitAdjustment: _Rules.logit_bias,
}
