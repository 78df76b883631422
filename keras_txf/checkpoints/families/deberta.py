"""DeBERTa, its versions 2 and 3: post-norm encoders whose content and positions attend to each other."""

import dataclasses

from keras_txf.checkpoints.families.bert import BERT_MASKED, BODY, BUFFERS, CLASSES, body, dropout, masked, tasks
from keras_txf.checkpoints.family import Family
from keras_txf.checkpoints.weight_map import query_key_value
from keras_txf.layers import Convolution, DisentangledPositions

SELF = "encoder.layer.{i}.attention.self"
FIRST = {
    "encoder_{i}/attention/query/bias": f"{SELF}.q_bias",  # before the rows of the layers, which have no biases here
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
    """Returns the options of the first version; `position` are those of the positions that only the second has."""
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
    convolution = [Convolution(size, activation)] + [None] * (c("num_hidden_layers") - 1) if size else None
    return {**options, "attention_key_bias": None, "convolution": convolution}


def pooled(c):
    c.only("pooler_dropout", 0.0)
    c.only("pooler_hidden_size", c("hidden_size"))
    rate, activation = dropout(c, "cls_dropout"), c.activation("pooler_hidden_act", "gelu")
    return {"pooling": "first", "head_activation": activation, "head_dropout": rate}


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
        # Of the enhanced mask decoder, which the first code has and transformers does not.
        (r"embeddings\.position_embeddings\.weight", r"lm_predictions\..*", r"mask_predictions\..*"),
        {"cls.predictions.decoder.bias": "cls.predictions.bias"},
        ("padding_idx",),
    )


FAMILIES = {"deberta": family("Deberta", first, first_table), "deberta-v2": family("DebertaV2", second, SECOND)}
