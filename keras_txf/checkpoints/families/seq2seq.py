"""T5, BART and Marian: encoder-decoders."""

import math

from keras_txf import models
from keras_txf.checkpoints.family import Family, Task
from keras_txf.checkpoints.weight_map import ONE_ROW, Tensor, skip
from keras_txf.layers import RelativeBias

T5 = {
    "embedding/token": "shared",
    "source_embedding/token": "shared",
    "encoder_position": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "encoder_{i}/attention_norm": "encoder.block.{i}.layer.0.layer_norm",
    "encoder_{i}/feed_forward/gate": "encoder.block.{i}.layer.1.DenseReluDense.wi_0",
    "encoder_{i}/feed_forward/output": "encoder.block.{i}.layer.1.DenseReluDense.wo",
    "encoder_{i}/feed_forward_norm": "encoder.block.{i}.layer.1.layer_norm",
    "encoder_norm": "encoder.final_layer_norm",
    "decoder_position": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    "decoder_{i}/attention_norm": "decoder.block.{i}.layer.0.layer_norm",
    "decoder_{i}/cross_attention_norm": "decoder.block.{i}.layer.1.layer_norm",
    "decoder_{i}/feed_forward/gate": "decoder.block.{i}.layer.2.DenseReluDense.wi_0",
    "decoder_{i}/feed_forward/output": "decoder.block.{i}.layer.2.DenseReluDense.wo",
    "decoder_{i}/feed_forward_norm": "decoder.block.{i}.layer.2.layer_norm",
    "decoder_norm": "decoder.final_layer_norm",
    **{
        f"{side}_{{i}}/{ours}/{part}": f"{side}.block.{{i}}.layer.{number}.{theirs}.{part[0]}"
        for side, ours, number, theirs in (
            ("encoder", "attention", 0, "SelfAttention"),
            ("decoder", "attention", 0, "SelfAttention"),
            ("decoder", "cross_attention", 1, "EncDecAttention"),
        )
        for part in ("query", "key", "value", "output")
    },
}


def t5_table(c):
    """Names the one feed-forward projection `wi`; of a gated pair it is `wi_1`."""
    wide = "wi_1" if gated(c) else "wi"
    return {
        **T5,
        "encoder_{i}/feed_forward/intermediate": f"encoder.block.{{i}}.layer.1.DenseReluDense.{wide}",
        "decoder_{i}/feed_forward/intermediate": f"decoder.block.{{i}}.layer.2.DenseReluDense.{wide}",
    }


def gated(c):
    return c("feed_forward_proj", "relu").startswith("gated-")


def t5(c):
    number, dim, heads, rate = c("num_layers"), c("d_model"), c("num_heads"), c("dropout_rate", 0.1)
    activation = c("feed_forward_proj", "relu").removeprefix("gated-")
    if gated(c) and activation == "gelu":
        activation = "gelu_new"
    c.only("dense_act_fn", activation)
    c.only("is_gated_act", gated(c))
    buckets = c("relative_attention_num_buckets", 32), c("relative_attention_max_distance", 128)

    def bias(side):
        return {"position": RelativeBias(heads, *buckets, bidirectional=side == "encoder", name=f"{side}_position")}

    return {
        "source_vocab_size": c("vocab_size"),
        "target_vocab_size": c("vocab_size"),
        "num_layers": number,
        "num_decoder_layers": c("num_decoder_layers", None) or number,
        "dim": dim,
        "num_heads": heads,
        "head_dim": c("d_kv", 64),
        "intermediate_dim": c("d_ff"),
        "activation": c.as_activation("feed_forward_proj", activation),
        "gated": gated(c),
        "use_bias": False,
        "norm": "rms",
        "norm_placement": "pre",
        "norm_epsilon": c("layer_norm_epsilon", 1e-6),
        "scale": 1.0,
        "dropout": rate,
        "attention_dropout": rate,
        "feed_forward_dropout": rate,
        "position_encoding": None,
        "pad_id": c.pad_id(0),
        "start_id": c("decoder_start_token_id", 0),
        "scale_embedding": False,
        "share_embeddings": True,
        # Transformers 4 has one key for tying and scaling, transformers 5 one for each.
        "logit_scale": 1 / math.sqrt(dim) if c("scale_decoder_outputs", c("tie_word_embeddings", True)) else None,
        "encoder_options": bias("encoder"),
        "decoder_options": bias("decoder"),
    }


def bart_side(side):
    return {
        f"{side}_embedding_norm": f"{side}.layernorm_embedding",
        **{
            f"{side}_{{i}}/attention/{ours}": f"{side}.layers.{{i}}.self_attn.{theirs}"
            for ours, theirs in PROJECTIONS.items()
        },
        f"{side}_{{i}}/attention_norm": f"{side}.layers.{{i}}.self_attn_layer_norm",
        f"{side}_{{i}}/feed_forward/intermediate": f"{side}.layers.{{i}}.fc1",
        f"{side}_{{i}}/feed_forward/output": f"{side}.layers.{{i}}.fc2",
        f"{side}_{{i}}/feed_forward_norm": f"{side}.layers.{{i}}.final_layer_norm",
    }


PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
BART = {
    "embedding/token": "shared",
    "source_position_embedding/position": Tensor("encoder.embed_positions", other=skip(2)),
    "target_position_embedding/position": Tensor("decoder.embed_positions", other=skip(2)),
    **bart_side("encoder"),
    **bart_side("decoder"),
    **{
        f"decoder_{{i}}/cross_attention/{ours}": f"decoder.layers.{{i}}.encoder_attn.{theirs}"
        for ours, theirs in PROJECTIONS.items()
    },
    "decoder_{i}/cross_attention_norm": "decoder.layers.{i}.encoder_attn_layer_norm",
}
MARIAN = {**BART, "source_embedding/token": "encoder.embed_tokens", "target_embedding/token": "decoder.embed_tokens"}


def bart(c, pad_id=1, start_id=2, embedding_norm=True):
    for key, value in (("normalize_before", False), ("add_bias_logits", False), ("add_final_layer_norm", False)):
        c.only(key, value)
    c.only("normalize_embedding", embedding_norm)
    c.only("static_position_embeddings", not embedding_norm)
    return {
        "source_vocab_size": c("vocab_size"),
        "target_vocab_size": c("vocab_size"),
        "num_layers": c("encoder_layers"),
        "num_decoder_layers": c("decoder_layers"),
        "dim": c("d_model"),
        "num_heads": c("encoder_attention_heads"),
        "activation": c.activation("activation_function", "gelu"),
        "norm_epsilon": 1e-5,
        "dropout": c("dropout", 0.1),
        "attention_dropout": c("attention_dropout", 0.0),
        "feed_forward_dropout": c("activation_dropout", 0.0),
        "position_encoding": "learned",
        "max_length": c("max_position_embeddings", 1024),
        "pad_id": c.pad_id(pad_id),
        "start_id": c("decoder_start_token_id", start_id),
        "scale_embedding": c("scale_embedding", False),
        "embedding_norm": embedding_norm,
        "share_embeddings": "tokens",
        "encoder_options": {"intermediate_dim": c("encoder_ffn_dim")},
        "decoder_options": {"intermediate_dim": c("decoder_ffn_dim"), "num_heads": c("decoder_attention_heads")},
    }


def marian(c):
    options = bart(c, 58100, 58100, embedding_norm=False)
    shared, target = c("share_encoder_decoder_embeddings", True), c("decoder_vocab_size", None) or c("vocab_size")
    # The file may hold a table of these same positions.
    return {
        **options,
        "target_vocab_size": target,
        "position_encoding": "sinusoidal_halves",
        "share_embeddings": shared,
    }


def task(architecture):
    rows = {"logits": "lm_head", "logit_adjustment/bias": Tensor("final_logits_bias", other=ONE_ROW)}
    optional = {"logit_bias": "final_logits_bias"}
    return {"seq2seq": Task(architecture, models.encoder_decoder, rows, optional=optional)}


TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
FAMILIES = {
    "t5": Family(
        t5,
        t5_table,
        {"seq2seq": Task("T5ForConditionalGeneration", models.encoder_decoder, {"logits": "lm_head"})},
        # A table in one old file, which no model uses.
        ignore=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        aliases=dict.fromkeys(TABLES, "shared.weight"),
        neutral=("n_positions", "classifier_dropout", "is_encoder_decoder", "num_hidden_layers"),
        says_tied=False,
    ),
    "bart": Family(
        bart,
        BART,
        task("BartForConditionalGeneration"),
        "model.",
        aliases=dict.fromkeys(TABLES, "shared.weight"),
        neutral=("classifier_dropout", "classif_dropout", "encoder_layerdrop", "decoder_layerdrop",
                 "is_encoder_decoder", "num_hidden_layers", "extra_pos_embeddings"),
    ),
    "marian": Family(
        marian,
        MARIAN,
        task("MarianMTModel"),
        "model.",
        (r"(encoder|decoder)\.embed_positions\.weight",),
        aliases=dict.fromkeys(TABLES, "shared.weight"),
        neutral=("classifier_dropout", "classif_dropout", "encoder_layerdrop", "decoder_layerdrop",
                 "is_encoder_decoder", "num_hidden_layers", "extra_pos_embeddings"),
    ),
}  # fmt: skip
