"""The rules of `layout_map`: which weights of a layer are split over the devices of the model axis.

Legend: D model dim, N heads, K key-value heads, H head dim, F intermediate dim, E experts, V vocabulary.
"""

import keras

from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checks import short_repr
from keras_txf.layers.attention import CrossAttention, MultiHeadSelfAttention
from keras_txf.layers.class_change import plain_class
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.latent_attention import LatentAttention
from keras_txf.layers.mixture_of_experts import MixtureOfExperts
from keras_txf.layers.positions import RelativeBias
from keras_txf.layers.projections import Projection

# Tables: the axis to split, by the name of a variable. Each device holds the whole of a variable without an entry.
COLUMNS = {"kernel": 1, "bias": 0, "kernel_scale": 0, "lora_b": 1}
ROWS = {"kernel": 0, "lora_a": 0}
VOCABULARY = {"embeddings": 0, "embeddings_scale": 0}
NORM = {"scale": 0}  # of all heads together
EXPERTS = dict.fromkeys(
    [f"{name}_{part}" for name in ("gate", "intermediate", "output") for part in ("kernel", "bias")], 0
)
EXPERT_WIDTH = {"gate_kernel": 2, "gate_bias": 1, "intermediate_kernel": 2, "intermediate_bias": 1, "output_kernel": 1}
ADAPTED = ("kernel", "bias", "lora_a", "lora_b")  # an adapter puts its own name before these names

# Every class of this package that holds weights: its variables, and the matrices inside it, by their names in paths.
# A new weight needs an entry here, and a rule below if it should be split. A layer of a family of checkpoints has its
# names in its attribute `known_weights`.
ATTENTION = {"query", "key", "value", "output", "position_query", "position_key", "sinks"}
KNOWN = {
    "AttentionPooling": {"query"},
    "AudioEmbedding": set(),
    "CrossAttention": ATTENTION,
    "DisentangledPositions": {"embeddings"},
    "FeatureEmbedding": {"projection"},
    "FeedForward": {"gate", "intermediate", "output"},
    "FixedTable": {"embeddings"},
    "GatedDeltaNet": {
        "query", "key", "value", "gate", "decay", "beta", "output", "convolution_kernel", "A_log", "dt_bias",
    },
    "LatentAttention": {
        "query", "query_down", "query_up", "key_value_down", "key_value_up", "output",
    },
    "LayerScale": {"gamma"},
    "LogitAdjustment": {"bias"},
    "MixtureOfExperts": {*EXPERTS, "router", "e_score_correction_bias", "shared_gate"},
    "MultiHeadSelfAttention": ATTENTION,
    "PatchEmbedding": {"patch", "position", "class_token", "distillation_token", "register_tokens"},
    "PerHeadNormalization": {"gamma"},
    "Pooling": {"score"},
    "PositionalEmbedding": {"token", "position", "token_type", "projection", "reverse_projection"},
    "RMSNormalization": {"scale"},
    "RecurrentAttention": {"query", "key", "score"},
    "RecurrentDecoder": {"readout"},
    "ShortConvolution": {"input", "output", "convolution_kernel", "convolution_bias"},
    "SimilarityLogits": {"logit_scale", "logit_bias"},
    "SoftPrompt": {"vectors"},
    "SpanLogits": set(),
    "TableBias": {"embeddings"},
}  # fmt: skip
MATRICES = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding)


def split_weights(layers, axis, num_devices, notes):
    """Returns the axes of the weights to split, by their ids.

    Args:
        layers: all layers of a model, also the layers inside layers.
        axis: the name of the mesh's axis.
        num_devices: the number of devices along the axis.
        notes: dict of message -> list of paths, which gets the layers that do not divide over the devices.

    Raises:
        ValueError: a layer of this package has a weight that is not in `KNOWN`.
    """
    rules = _Rules(axis, num_devices, notes)
    for layer in layers:
        _check_known(layer)
        for cls, rule in RULES.items():
            if isinstance(layer, cls) and layer.built:  # a template of blocks is not built
                rule(rules, layer)
    sizes = {layer.vocab_size for layer in layers if isinstance(layer, PositionalEmbedding)} - {None}
    for layer in layers[0].layers:  # the layers of the model itself
        if isinstance(layer, keras.layers.Dense) and layer.units in sizes and rules.divides(layer, V=layer.units):
            rules.split(layer, COLUMNS)
    return rules.splits


def _check_known(layer):
    """Raises ValueError if a layer of this package has a weight that the rules do not know."""
    cls = plain_class(layer)
    if not cls.__module__.startswith("keras_txf.") or isinstance(layer, (Projection, keras.Model)):
        return
    names = [parent.__name__ for parent in cls.__mro__ if parent.__name__ in KNOWN]
    known = set().union(*(KNOWN[name] for name in names), getattr(cls, "known_weights", ()))
    # A layer without an entry, such as a block, may hold matrices of the caller's own parts.
    kinds = MATRICES if known else Projection
    parts = flatten_layers(layer, False)
    inner = {id(deep) for part in parts for deep in flatten_layers(part, False)}
    weights = [(weight.name, weight) for weight in _own_weights(layer)]
    weights += [
        (part.name, weight)
        for part in parts
        if isinstance(part, kinds) and id(part) not in inner
        for weight in _own_weights(part)
    ]
    unknown = [weight.path for name, weight in weights if name not in known]
    if unknown:
        raise ValueError(
            f"`model` must have weights that `layout_map` knows in layers of this package; received "
            f"{short_repr(unknown[0])} of {cls.__name__}. Add the weight to `KNOWN` in training/weight_splits.py."
        )


class _Rules:
    """One rule for each class of layer. A user's subclass may lack the parts that a rule splits: it stays whole."""

    def __init__(self, axis, num_devices, notes):
        self.axis, self.num_devices, self.notes = axis, num_devices, notes
        self.splits = {}

    def split(self, layer, axes):
        """Splits the variables of a layer, without the layers inside it, by a table such as `COLUMNS`."""
        if layer is None or getattr(layer, "quantization_mode", None) not in (None, "int8"):
            return
        for variable in _own_weights(layer):
            name, shape = variable.name, variable.shape
            name = next((end for end in ADAPTED if name.endswith(f"_{end}") and name not in axes), name)
            if name in axes and axes[name] < len(shape) and shape[axes[name]] % self.num_devices == 0:
                self.splits[id(variable)] = tuple(self.axis if i == axes[name] else None for i in range(len(shape)))

    def split_parts(self, layer, **tables):
        """Splits the parts of a layer, each by its table. Skips a part that the layer lacks."""
        for name, axes in tables.items():
            part = getattr(layer, name, None)
            self.split(part if isinstance(part, keras.layers.Layer) else None, axes)

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
        norm = NORM if layer.qk_norm == "full" else {}
        self.split_parts(layer, query=COLUMNS, output_dense=ROWS, query_norm=norm)
        self.split(layer, {"sinks": 0})
        kv_heads = layer.num_key_value_heads or layer.num_heads
        if layer.key.units % self.num_devices:
            self.divides(layer, whole=kv_heads)
            return
        self.divides(layer, K=kv_heads)  # for the note
        self.split_parts(layer, key=COLUMNS, value=COLUMNS, key_norm=norm)

    def latent_attention(self, layer):
        if _has_projections(layer, "key_value_up", "output_dense") and self.divides(layer, N=layer.num_heads):
            query = "query" if layer.q_lora_rank is None else "query_up"
            self.split_parts(layer, **{query: COLUMNS}, key_value_up=COLUMNS, output_dense=ROWS)

    def relative_bias(self, layer):
        self.split(layer, {"embeddings": 1})  # the attention has the note

    def feed_forward(self, layer):
        if _has_projections(layer, "intermediate", "output_dense") and self.divides(layer, F=layer.intermediate.units):
            self.split_parts(layer, gate=COLUMNS, intermediate=COLUMNS, output_dense=ROWS)

    def experts(self, layer):
        intermediate = getattr(layer, "intermediate", None)
        if not isinstance(intermediate, keras.Variable):
            return
        if layer.num_experts % self.num_devices == 0:
            self.split(layer, EXPERTS | {"router": 1})  # XLA would split and gather a whole router in each step
        elif self.divides(layer, F=intermediate.shape[-1]):
            self.split(layer, EXPERT_WIDTH)

    def tokens(self, layer):
        if layer.vocab_size is not None and self.divides(layer, V=layer.vocab_size):
            self.split_parts(layer, token=VOCABULARY)

    def logit_bias(self, layer):
        self.split(layer, {"bias": 0})


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
    RelativeBias: _Rules.relative_bias,
    FeedForward: _Rules.feed_forward,
    MixtureOfExperts: _Rules.experts,
    PositionalEmbedding: _Rules.tokens,
    LogitAdjustment: _Rules.logit_bias,
}
