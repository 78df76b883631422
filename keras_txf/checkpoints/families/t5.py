"""T5, mT5, UMT5 and T5Gemma: encoder-decoders, and their encoders as models."""

import dataclasses
import math

from keras_txf import models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.seq2seq import TABLES, classifiers, plain
from keras_txf.checkpoints.family import Family, Task, classes
from keras_txf.checkpoints.weight_map import projections
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
    **projections("encoder_{i}/attention", "encoder.block.{i}.layer.0.SelfAttention", "qkvo"),
    **projections("decoder_{i}/attention", "decoder.block.{i}.layer.0.SelfAttention", "qkvo"),
    **projections("decoder_{i}/cross_attention", "decoder.block.{i}.layer.1.EncDecAttention", "qkvo"),
}


def t5_table(c, default="relu"):
    """Returns the rows; the intermediate projection is `wi`, or `wi_1` if the network is gated."""
    wide = "wi_1" if gated(c, default) else "wi"
    return {
        **T5,
        "encoder_{i}/feed_forward/intermediate": f"encoder.block.{{i}}.layer.1.DenseReluDense.{wide}",
        "decoder_{i}/feed_forward/intermediate": f"decoder.block.{{i}}.layer.2.DenseReluDense.{wide}",
    }


def gated(c, default="relu"):
    return c("feed_forward_proj", default).startswith("gated-")


def t5(c, feed_forward="relu", own_biases=False):
    """Returns the options of T5; with `own_biases` each block has a table of biases (UMT5), not only the first."""
    number, dim, heads, rate = c("num_layers"), c("d_model"), c("num_heads"), c("dropout_rate", 0.1)
    blocks = {"encoder": number, "decoder": c("num_decoder_layers", None) or number}
    activation = c("feed_forward_proj", feed_forward).removeprefix("gated-")
    if gated(c, feed_forward) and activation == "gelu":
        activation = "gelu_new"
    c.not_read("dense_act_fn", activation)
    c.not_read("is_gated_act", gated(c, feed_forward))
    buckets = c("relative_attention_num_buckets", 32), c("relative_attention_max_distance", 128)

    def bias(side):
        def table(name):
            return RelativeBias(heads, *buckets, bidirectional=side == "encoder", name=f"{side}_position{name}")

        return {"position": [table(f"_{i}") for i in range(blocks[side])] if own_biases else table("")}

    return {
        "source_vocab_size": c("vocab_size"),
        "target_vocab_size": c("vocab_size"),
        "num_layers": number,
        "num_decoder_layers": blocks["decoder"],
        "dim": dim,
        "num_heads": heads,
        "head_dim": c("d_kv", 64),
        "intermediate_dim": c("d_ff"),
        "activation": c.as_activation("feed_forward_proj", activation),
        "gated": gated(c, feed_forward),
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
        # Transformers 4 has one key for tying and scaling, transformers 5 has two keys.
        "logit_scale": 1 / math.sqrt(dim) if c("scale_decoder_outputs", c("tie_word_embeddings", True)) else None,
        "encoder_options": bias("encoder"),
        "decoder_options": bias("decoder"),
    }


def mt5(c):
    return {**t5(c, "gated-gelu"), "logit_scale": None}


def umt5(c):
    return t5(c, "gated-gelu", own_biases=True)


def umt5_table(c):
    biases = {
        f"{side}_position_{{i}}": f"{side}.block.{{i}}.layer.0.SelfAttention.relative_attention_bias"
        for side in ("encoder", "decoder")
    }
    return {**t5_table(c, "gated-gelu"), **biases}


def gemma_side(side):
    """Returns the rows of one side of T5Gemma, which has the blocks of Gemma 2."""
    table = {
        **llama.SANDWICH,
        "decoder_{i}/attention_norm": "layers.{i}.pre_self_attn_layernorm",
        "decoder_{i}/attention_post_norm": "layers.{i}.post_self_attn_layernorm",
    }
    return {path.replace("decoder_", f"{side}_"): f"{side}.{name}" for path, name in table.items()}


T5GEMMA = {
    **gemma_side("decoder"),
    **gemma_side("encoder"),
    **projections("decoder_{i}/cross_attention", "decoder.layers.{i}.cross_attn"),
    "decoder_{i}/cross_attention_norm": "decoder.layers.{i}.pre_cross_attn_layernorm",
    "decoder_{i}/cross_attention_post_norm": "decoder.layers.{i}.post_cross_attn_layernorm",
    "source_embedding/token": "encoder.embed_tokens",
    "target_embedding/token": "decoder.embed_tokens",
}


OF_SIDE = ("vocab_size", "num_layers", "pad_id", "dropout", "final_logit_soft_cap")
OF_PAIR = ("source_vocab_size", "target_vocab_size", "num_decoder_layers", "start_id", "share_embeddings",
           "logit_scale", "final_logit_soft_cap", "encoder_options", "decoder_options")  # fmt: skip


def t5gemma(c):
    sides, rate, attention_rate = [], c("dropout_rate", 0.0), c("attention_dropout", 0.0)
    for part in (c.part("encoder"), c.part("decoder")):
        # Transformers overwrites the values of these keys.
        for key in ("is_decoder", "dropout_rate", "cross_attention_hidden_size", "tie_word_embeddings"):
            part(key, None)
        c.only("pad_token_id", part.pad_id(0))
        sides.append({**llama.gemma2(part), "attention_dropout": attention_rate})
        part.check_all_known(())
    source, target = ({name: side.pop(name) for name in OF_SIDE} for side in sides)
    # A token of the encoder attends to this number of tokens on each side, and to itself.
    sides[0]["window"] = [window and window + 1 for window in sides[0]["window"]]
    return {
        "source_vocab_size": source["vocab_size"],
        "target_vocab_size": target["vocab_size"],
        "num_layers": source["num_layers"],
        "num_decoder_layers": target["num_layers"],
        "dim": sides[1]["dim"],
        "dropout": rate,
        "feed_forward_dropout": rate,
        "pad_id": c.part("decoder").pad_id(0),
        "start_id": c("decoder_start_token_id", c.part("decoder")("bos_token_id", 2)),
        "share_embeddings": False,
        "final_logit_soft_cap": target["final_logit_soft_cap"],
        "encoder_options": sides[0],
        "decoder_options": sides[1],
    }


def encoder_alone(options):
    """Returns the options of an encoder from an encoder-decoder's options."""
    shared = {name: value for name, value in options.items() if name not in OF_PAIR}
    return {**shared, "vocab_size": options["source_vocab_size"], **options["encoder_options"]}


# A table in one old file that no model uses.
UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)


def t5_family(name, options, tensors, prefix="transformer.", logits="lm_head", heads=None, **others):
    encoder = {"convert": encoder_alone, "ignore": (r"decoder\..*",)}
    return Family(
        options,
        tensors,
        {
            **plain(f"{name}ForConditionalGeneration", logits, whole=not heads),
            "encoder": Task(f"{name}EncoderModel", models.encoder, whole=False, **encoder),
            **(heads or {}),
        },
        prefix,
        **{
            "ignore": UNUSED,
            "aliases": dict.fromkeys(TABLES, "shared.weight"),
            "neutral": ("n_positions", "is_encoder_decoder", "num_hidden_layers"),
            "tie_key_is_for_logits": False,
            **others,
        },
    )


def heads(name):
    """Returns T5's classifiers: of texts and spans with both sides, of tokens with the encoder alone."""
    tokens = classes(
        f"{name}ForTokenClassification", models.token_classifier, {"logits": "classifier"},
        lambda c: {"head_dropout": c("classifier_dropout", 0.0)},
    )  # fmt: skip
    tokens = dataclasses.replace(tokens, convert=encoder_alone, ignore=(r"decoder\..*",))
    return {**classifiers(name, 1, whole=False), "token_classification": tokens}


FAMILIES = {
    "t5": t5_family("T5", t5, t5_table, heads=heads("T5")),
    "mt5": t5_family("MT5", mt5, lambda c: t5_table(c, "gated-gelu"), heads=heads("MT5")),
    "umt5": t5_family("UMT5", umt5, umt5_table, heads=heads("UMT5")),
    "t5gemma": t5_family(
        "T5Gemma", t5gemma, T5GEMMA, "model.", "lm_head.out_proj", ignore=(), aliases={}, tie_key_is_for_logits=True,
        neutral=("is_encoder_decoder", "classifier_dropout_rate", "vocab_size"),
    ),
}  # fmt: skip
