"""DeBERTa and its versions 2 and 3: post-norm encoders whose content and positions attend to each other."""

import dataclasses

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checkpoints.families.bert import BERT_MASKED, BODY, BUFFERS, CLASSES, body, dropout, masked, tasks
from keras_txf.checkpoints.family import Family
from keras_txf.checkpoints.weight_map import query_key_value
from keras_txf.checks import short_repr
from keras_txf.layers import DisentangledPositions, Residual
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.serialization import register

SELF = "encoder.layer.{i}.attention.self"
FIRST = {
    # These two rows precede the rows of the layers, whose tensors have no biases here.
    "encoder_{i}/attention/query/bias": f"{SELF}.q_bias",
    "encoder_{i}/attention/value/bias": f"{SELF}.v_bias",
    **BODY,
    "encoder_position": "encoder.rel_embeddings",
    "encoder_{i}/attention/position_key": f"{SELF}.pos_proj",
    "encoder_{i}/attention/position_query": f"{SELF}.pos_q_proj",
}
SECOND = {
    **BODY,
    **{f"encoder_{{i}}/attention/{part}": f"{SELF}.{part}_proj" for part in ("query", "key", "value")},
    "encoder_position": "encoder.rel_embeddings",
    "encoder_position/norm": "encoder.LayerNorm",
    "encoder_{i}/attention/position_key": f"{SELF}.pos_key_proj",
    "encoder_{i}/attention/position_query": f"{SELF}.pos_query_proj",
    "encoder_0/convolution": "encoder.conv.conv",
    "encoder_0/convolution_norm": "encoder.conv.LayerNorm",
}


NEW_HEAD = masked("", *(f"lm_predictions.lm_head.{name}" for name in ("dense", "LayerNorm", "decoder", "bias")))
TERMS = ("c2p", "p2c", "c2p|p2c", "p2c|c2p", ["c2p"], ["p2c"], ["c2p", "p2c"], ["p2c", "c2p"])


def first(c, **position):
    """Returns the options of the first version; `position` holds options of positions in the second version."""
    c.only("embedding_size", c("hidden_size"))
    c.only("talking_head", False)
    return {
        **body(c),
        "attention_key_bias": False,
        "position_encoding": "learned" if c("position_biased_input", True) else None,
        "position": positions(c, **position),
    }


def positions(c, **position):
    relative, longest = c("relative_attention", False), c("max_relative_positions", -1)
    c.only("pos_att_type", None, *(TERMS if relative else [[]]))
    if not relative:
        return None
    terms = c("pos_att_type", None) or ()
    return DisentangledPositions(
        c("hidden_size"),
        longest if longest > 0 else c("max_position_embeddings"),
        content_to_position="c2p" in terms,
        position_to_content="p2c" in terms,
        dropout=c("hidden_dropout_prob", 0.1),
        name="encoder_position",
        **position,
    )


def second(c):
    c.only("attention_head_size", c("hidden_size") // c("num_attention_heads"))
    c.only("conv_groups", 1)
    c.only("norm_rel_ebd", "none", *(["layer_norm"] if c("relative_attention", False) else []))
    buckets, size, activation = c("position_buckets", -1), c("conv_kernel_size", 0), c.activation("conv_act", "tanh")
    options = first(
        c,
        num_buckets=2 * buckets if buckets > 0 else None,
        share_projections=c("share_att_key", False),
        norm=c("norm_rel_ebd", "none") == "layer_norm",
        norm_epsilon=c("layer_norm_eps", 1e-12),
    )
    # In training transformers drops the inputs of the convolution's activation, not its outputs.
    if size:
        others = ["sequential"] * (c("num_hidden_layers") - 1)
        options["residual"] = [ConvolutionResidual(size, activation), *others]
    return {**options, "attention_key_bias": None}


def pooled(c):
    c.only("pooler_dropout", 0.0)
    c.only("pooler_hidden_size", c("hidden_size"))
    rate, activation = dropout(c, "cls_dropout"), c.activation("pooler_hidden_act", "gelu")
    return {"pooling": "first", "head": activation, "head_dropout": rate}


def masked_options(c):
    if not c("legacy", True):  # the logits of the new head are always tied
        c.only("tie_word_embeddings", True)
    return BERT_MASKED.options(c)


def first_table(c):
    return {**FIRST, **query_key_value(f"{SELF}.in_proj", c("num_attention_heads"), path="encoder_{i}/attention")}


def family(name, options, table):
    masked_lm = dataclasses.replace(
        BERT_MASKED,
        architecture=f"{name}ForMaskedLM",
        tensors=lambda c: (BERT_MASKED if c("legacy", True) else NEW_HEAD).tensors,
        options=masked_options,
    )
    head = {"head": "pooler.dense", **CLASSES}
    return Family(
        options,
        table,
        tasks(name, masked_lm, head, pooled, lambda c: {"head_dropout": c("hidden_dropout_prob", 0.1)}),
        "deberta.",
        BUFFERS,
        # Tensors of the enhanced mask decoder, which the first code has and transformers lacks.
        (r"embeddings\.position_embeddings\.weight", r"lm_predictions\..*", r"mask_predictions\..*"),
        {"cls.predictions.decoder.bias": "cls.predictions.bias"},
        ("padding_idx",),
    )


FAMILIES = {"deberta": family("Deberta", first, first_table), "deberta-v2": family("DebertaV2", second, SECOND)}


@register
class Convolution(Layer):
    """A convolution over tokens, with an activation: each token sees the same number of neighbours on both sides.

    Padding counts as zeros, like the tokens beyond both ends, so a row does not depend on its padding.

    Args:
        kernel_size: odd number of tokens that each token sees, with itself in the middle.
        activation: any Keras activation, see `FeedForward`.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens.

    Returns:
        (B, T, D).

    Raises:
        ValueError: an even `kernel_size`, inputs of another rank or of unknown D.
    """

    weight_splits = {"kernel": "whole", "bias": "whole"}

    def __init__(self, kernel_size=3, activation="tanh", **kwargs):
        super().__init__(**kwargs)
        self.kernel_size = checks.size("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"`kernel_size` must be odd, with the token in the middle; received {kernel_size}.")
        self.activation = activation
        self.activation_function = get_activation("activation", activation)
        self.supports_masking = True

    def build(self, inputs_shape):
        dim = inputs_shape[-1]
        if len(inputs_shape) != 3 or dim is None:
            raise ValueError(
                f"`inputs` must have shape (batch, length, dim) with a known dim; received shape {tuple(inputs_shape)}."
            )
        self.kernel = self.add_weight(name="kernel", shape=(self.kernel_size, dim, dim), initializer="glorot_uniform")
        self.bias = self.add_weight(name="bias", shape=(dim,), initializer="zeros")
        if isinstance(self.activation_function, keras.layers.Layer):
            self.activation_function.build(inputs_shape)

    def compute_output_spec(self, inputs, mask=None):
        self._check_call(inputs, mask)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def _check_call(self, inputs, mask):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        checks.padding_mask(mask, inputs)

    def call(self, inputs, mask=None):
        self._check_call(inputs, mask)
        if mask is not None:
            inputs = inputs * ops.expand_dims(ops.cast(mask, inputs.dtype), -1)
        outputs = ops.conv(inputs, self.kernel, padding="same", data_format="channels_last")
        return self.activation_function(outputs + self.bias)


@register
class ConvolutionResidual(Residual):
    """Adds a convolution of the block's inputs after the feed-forward network, with a norm like each sublayer.

    Args:
        kernel_size, activation: see `Convolution`.
        options: options of `Residual`.
    """

    def __init__(self, kernel_size=3, activation="tanh", **options):
        super().__init__(**options)
        self.kernel_size, self.activation = kernel_size, activation

    def get_config(self):
        return {"kernel_size": self.kernel_size, "activation": self.activation, **super().get_config()}

    def add_layers(self, block):
        causal = getattr(block.attention, "causal", False)
        if block.norm_placement != "post" or causal:
            raise ValueError(
                "`ConvolutionResidual` needs norm_placement='post' and causal=False; received norm_placement="
                f"{short_repr(block.norm_placement)} and causal={causal}."
            )
        dtype = block.dtype_policy
        block.convolution = Convolution(self.kernel_size, self.activation, dtype=dtype, name="convolution")
        block.sublayers = [*block.sublayers, "convolution"]
        super().add_layers(block)

    def build(self, block, shape):
        block.convolution.build(shape)
        super().build(block, shape)

    def run(self, block, x, sublayers, mask=None, segment_ids=None):
        if segment_ids is not None:
            raise ValueError("`segment_ids` does not go with `ConvolutionResidual`, which mixes the segments.")
        inputs = x
        convolve = {"convolution": lambda _: block.convolution(inputs, mask=mask)}
        return super().run(block, x, {**sublayers, **convolve}, mask)
