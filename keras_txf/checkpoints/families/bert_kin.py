"""Kin of BERT: ALBERT, Nomic BERT and GTE, with rotary positions, RoBERTa with pre-norm, and data2vec of texts."""

from keras_txf.checkpoints.families.bert import (
    BODY,
    BUFFERS,
    CLASSES,
    activation_of,
    bert,
    body,
    dropout,
    masked,
    roberta,
    tasks,
)
from keras_txf.checkpoints.families.rotary import positions
from keras_txf.checkpoints.family import POOLER, Family
from keras_txf.checkpoints.weight_map import Tensor, projections, query_key_value, stacked
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.serialization import register

PRE_NORM = {
    **BODY,
    "encoder_{i}/attention_norm": "encoder.layer.{i}.attention.LayerNorm",
    "encoder_{i}/feed_forward_norm": "encoder.layer.{i}.intermediate.LayerNorm",
    "encoder_norm": "LayerNorm",
}
ALBERT_BLOCK = "encoder.albert_layer_groups.{i}.albert_layers.0"
ALBERT = {
    **{path: name for path, name in BODY.items() if not path.startswith("encoder_{i}")},
    "encoder_embedding_projection": "encoder.embedding_hidden_mapping_in",
    **projections("encoder_{i}/attention", f"{ALBERT_BLOCK}.attention", ("query", "key", "value", "dense")),
    "encoder_{i}/attention_norm": f"{ALBERT_BLOCK}.attention.LayerNorm",
    "encoder_{i}/feed_forward/intermediate": f"{ALBERT_BLOCK}.ffn",
    "encoder_{i}/feed_forward/output": f"{ALBERT_BLOCK}.ffn_output",
    "encoder_{i}/feed_forward_norm": f"{ALBERT_BLOCK}.full_layer_layer_norm",
}


@register
class FactorizedEmbedding(PositionalEmbedding):
    """ALBERT's embedding, whose vectors are projected to the width of the blocks even from the same width."""

    projected = True


def albert(c):
    c.only("inner_group_num", 1)
    number, groups = c("num_hidden_layers"), c("num_hidden_groups", 1)
    if number % groups:  # transformers divides them by floating-point numbers, which round
        raise ValueError(
            "config.json must have `num_hidden_groups` that divide `num_hidden_layers`; received "
            f"num_hidden_groups={groups} and num_hidden_layers={number}."
        )
    return {
        **bert(c),
        "activation": c.activation("hidden_act", "gelu_new"),
        "dropout": c("hidden_dropout_prob", 0.0),
        "attention_dropout": c("attention_probs_dropout_prob", 0.0),
        "embedding_dim": c("embedding_size", 128),
        "share_blocks": groups,
    }


def albert_head(c):
    return {"head_dropout": c("classifier_dropout_prob", 0.1)}


WIDE = ["encoder_{i}/feed_forward/intermediate", "encoder_{i}/feed_forward/gate"]
NOMIC = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/token_type": "embeddings.token_type_embeddings",
    "encoder_embedding_norm": "emb_ln",
    **query_key_value("encoder.layers.{i}.attn.Wqkv", path="encoder_{i}/attention"),
    "encoder_{i}/attention/output": "encoder.layers.{i}.attn.out_proj",
    "encoder_{i}/attention_norm": "encoder.layers.{i}.norm1",
    "encoder_{i}/feed_forward/intermediate": "encoder.layers.{i}.mlp.fc11",
    "encoder_{i}/feed_forward/gate": "encoder.layers.{i}.mlp.fc12",
    "encoder_{i}/feed_forward/output": "encoder.layers.{i}.mlp.fc2",
    "encoder_{i}/feed_forward_norm": "encoder.layers.{i}.norm2",
}
GTE = {
    "embedding/token": "embeddings.word_embeddings",
    "embedding/token_type": "embeddings.token_type_embeddings",
    "encoder_embedding_norm": "embeddings.LayerNorm",
    **query_key_value("encoder.layer.{i}.attention.qkv_proj", path="encoder_{i}/attention"),
    "encoder_{i}/attention/output": "encoder.layer.{i}.attention.o_proj",
    "encoder_{i}/attention_norm": "encoder.layer.{i}.attn_ln",
    **stacked("encoder.layer.{i}.mlp.up_gate_proj", WIDE),
    "encoder_{i}/feed_forward/output": "encoder.layer.{i}.mlp.down_proj",
    "encoder_{i}/feed_forward_norm": "encoder.layer.{i}.mlp_ln",
}

# The modules of these files -> their names in transformers.
LAYER = r"layers.\1"
RENAMED = {
    r"emb_ln": "embeddings.LayerNorm",
    r"encoder\.layers?\.(\d+)\.(?:attn\.Wqkv|attention\.qkv_proj)": tuple(
        rf"{LAYER}.self_attn.{part}_proj" for part in "qkv"
    ),
    r"encoder\.layers?\.(\d+)\.(?:attn\.out_proj|attention\.o_proj)": rf"{LAYER}.self_attn.o_proj",
    r"encoder\.layers?\.(\d+)\.(?:norm1|attn_ln)": rf"{LAYER}.post_attention_layernorm",
    r"encoder\.layers\.(\d+)\.mlp\.fc11": rf"{LAYER}.mlp.up_proj",
    r"encoder\.layers\.(\d+)\.mlp\.fc12": rf"{LAYER}.mlp.gate_proj",
    r"encoder\.layer\.(\d+)\.mlp\.up_gate_proj": (rf"{LAYER}.mlp.up_proj", rf"{LAYER}.mlp.gate_proj"),
    r"encoder\.layers?\.(\d+)\.mlp\.(?:fc2|down_proj)": rf"{LAYER}.mlp.down_proj",
    r"encoder\.layers?\.(\d+)\.(?:norm2|mlp_ln)": rf"{LAYER}.post_mlp_layernorm",
    r"lm_head\.norm": "lm_head.layer_norm",
}


def rotary(c, base, types, activation, rate):
    kinds = ["full_attention"] * c("num_hidden_layers")
    return {
        **body(c, types=types),
        "activation": c.activation("hidden_act", activation),
        "gated": True,
        "dropout": c("hidden_dropout_prob", rate),
        "attention_dropout": c("attention_probs_dropout_prob", 0.0),
        "position": positions(c, kinds, {"full_attention": c("rope_theta", base)}),
        "position_encoding": None,
    }


def nomic(c):
    return {
        **rotary(c, 1000.0, 2, "silu", 0.0),
        "head_dim": c("head_dim", None),
        "attention_bias": False,
        "feed_forward_bias": False,
    }


def gte(c):
    c.not_read("position_embedding_type", "rope")
    return {
        **rotary(c, 160000.0, 1, "gelu", 0.1),
        "pad_id": c.pad_id(1),
        "feed_forward_bias": False,
        "feed_forward_output_bias": True,
        "feed_forward_dropout": c("hidden_dropout_prob", 0.1),
    }


def rotary_family(name, prefix, options, table, masked_lm, rate):
    def head(c):
        return {"head_dropout": dropout(c, default=rate)}

    return Family(
        options,
        table,
        tasks(
            name,
            masked_lm,
            {"head": Tensor("pooler.dense", inner=True), **CLASSES},
            lambda c: {"pooling": "first", "head": "tanh", **head(c)},
            head,
            span_options=None,
        ),
        prefix,
        kept=(POOLER,),
        aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        renamed=RENAMED,
    )


def nomic_masked():
    transform = "cls.predictions.transform"
    names = f"{transform}.dense", f"{transform}.layer_norm", "cls.predictions.decoder", "cls.predictions.bias"
    return masked("NomicBertForMaskedLM", *names, activation_of("hidden_act", "silu"))


def gte_masked():
    return masked("GteForMaskedLM", "lm_head.dense", "lm_head.norm", "lm_head.decoder", "lm_head.decoder.bias")


FAMILIES = {
    "albert": Family(
        albert,
        ALBERT,
        tasks(
            "Albert",
            masked(
                "AlbertForMaskedLM", "predictions.dense", "predictions.LayerNorm", "predictions.decoder",
                "predictions.bias", activation_of("hidden_act", "gelu_new"),
            ),
            {"head": Tensor("pooler", inner=True), **CLASSES},
            lambda c: {"pooling": "first", "head": "tanh", **albert_head(c)},
            albert_head,
        ),
        "albert.",
        BUFFERS,
        (r"pooler\.(weight|bias)", r"sop_classifier\.classifier\.(weight|bias)"),
        {"predictions.decoder.bias": "predictions.bias"},
        # Keys of the first ALBERTs, which no code reads any more.
        ("gap_size", "net_structure_type", "down_scale_factor", "num_memory_blocks", "layers_to_keep"),
    ),
    "data2vec-text": roberta("Data2VecText", "data2vec_text."),
    "roberta-prelayernorm": roberta("RobertaPreLayerNorm", "roberta_prelayernorm.", "pre", PRE_NORM),
    "nomic_bert": rotary_family("NomicBert", "nomic_bert.", nomic, NOMIC, nomic_masked(), 0.0),
    "gte": rotary_family("Gte", "gte.", gte, GTE, gte_masked(), 0.1),
}  # fmt: skip
