"""ALBERT: BERT with a narrow embedding and shared blocks."""

from keras_txf.checkpoints.families.bert import BODY, BUFFERS, CLASSES, activation_of, bert, masked, tasks
from keras_txf.checkpoints.family import Family
from keras_txf.checkpoints.weight_map import Tensor, projections

BLOCK = "encoder.albert_layer_groups.{i}.albert_layers.0"
TABLE = {
    **{path: name for path, name in BODY.items() if not path.startswith("encoder_{i}")},
    "encoder_embedding_projection": "encoder.embedding_hidden_mapping_in",
    **projections("encoder_{i}/attention", f"{BLOCK}.attention", ("query", "key", "value", "dense")),
    "encoder_{i}/attention_norm": f"{BLOCK}.attention.LayerNorm",
    "encoder_{i}/feed_forward/intermediate": f"{BLOCK}.ffn",
    "encoder_{i}/feed_forward/output": f"{BLOCK}.ffn_output",
    "encoder_{i}/feed_forward_norm": f"{BLOCK}.full_layer_layer_norm",
}


def options(c):
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


def head(c):
    return {"head_dropout": c("classifier_dropout_prob", 0.1)}


FAMILIES = {
    "albert": Family(
        options,
        TABLE,
        tasks(
            "Albert",
            masked(
                "AlbertForMaskedLM", "predictions.dense", "predictions.LayerNorm", "predictions.decoder",
                "predictions.bias", activation_of("hidden_act", "gelu_new"),
            ),
            {"head": Tensor("pooler", inner=True), **CLASSES},
            lambda c: {"pooling": "first", "head": "tanh", **head(c)},
            head,
        ),
        "albert.",
        BUFFERS,
        (r"pooler\.(weight|bias)", r"sop_classifier\.classifier\.(weight|bias)"),
        {"predictions.decoder.bias": "predictions.bias"},
        # Keys of the first ALBERTs, which no code reads any more.
        ("gap_size", "net_structure_type", "down_scale_factor", "num_memory_blocks", "layers_to_keep"),
    )
}  # fmt: skip
