"""T5, mT5, UMT5 and T5Gemma; BART, mBART, Marian, Pegasus and M2M100; Whisper: encoder-decoders."""

import math

from keras_txf import models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.family import Family, Task
from keras_txf.checkpoints.weight_map import ONE_ROW, OUT_PROJ, Tensor, projections, skip
from keras_txf.layers import AudioEmbedding, RelativeBias

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
    """Names the one feed-forward projection `wi`; of a gated pair it is `wi_1`."""
    wide = "wi_1" if gated(c, default) else "wi"
    return {
        **T5,
        "encoder_{i}/feed_forward/intermediate": f"encoder.block.{{i}}.layer.1.DenseReluDense.{wide}",
        "decoder_{i}/feed_forward/intermediate": f"decoder.block.{{i}}.layer.2.DenseReluDense.{wide}",
    }


def gated(c, default="relu"):
    return c("feed_forward_proj", default).startswith("gated-")


def t5(c, feed_forward="relu", own_biases=False):
    """Returns the options of T5; `own_biases`: whether each block has a table of biases (UMT5), not the first alone."""
    number, dim, heads, rate = c("num_layers"), c("d_model"), c("num_heads"), c("dropout_rate", 0.1)
    blocks = {"encoder": number, "decoder": c("num_decoder_layers", None) or number}
    activation = c("feed_forward_proj", feed_forward).removeprefix("gated-")
    if gated(c, feed_forward) and activation == "gelu":
        activation = "gelu_new"
    c.only("dense_act_fn", activation)
    c.only("is_gated_act", gated(c, feed_forward))
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
        # Transformers 4 has one key for tying and scaling, transformers 5 one for each.
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
    """The rows of one side of T5Gemma, whose blocks are those of Gemma 2."""
    table = {
        **llama.SANDWICH,
        "decoder_{i}/attention_norm": "layers.{i}.pre_self_attn_layernorm",
        "decoder_{i}/attention_post_norm": "layers.{i}.post_self_attn_layernorm",
    }
    return {path.replace("decoder_", f"{side}_"): f"{side}.{name}" for path, name in table.items()}


T5GEMMA = llama.gemma_norms({
    **gemma_side("decoder"),
    **gemma_side("encoder"),
    **projections("decoder_{i}/cross_attention", "decoder.layers.{i}.cross_attn"),
    "decoder_{i}/cross_attention_norm": "decoder.layers.{i}.pre_cross_attn_layernorm",
    "decoder_{i}/cross_attention_post_norm": "decoder.layers.{i}.post_cross_attn_layernorm",
    "source_embedding/token": "encoder.embed_tokens",
    "target_embedding/token": "decoder.embed_tokens",
})  # fmt: skip


def t5gemma(c):
    sides, rate, attention_rate = [], c("dropout_rate", 0.0), c("attention_dropout", 0.0)
    for part in (c.part("encoder"), c.part("decoder")):
        # Transformers puts values of its own in their places.
        for key in ("is_decoder", "dropout_rate", "cross_attention_hidden_size", "tie_word_embeddings"):
            part(key, None)
        c.only("pad_token_id", part.pad_id(0))
        sides.append({**llama.gemma2(part), "attention_dropout": attention_rate})
        part.check_all_known(())
    source, target = ({name: side.pop(name) for name in OF_SIDE} for side in sides)
    # An encoder attends to so many tokens on each side and to itself.
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


def bart_side(side):
    """The rows of the blocks of one side, and of the norms around them."""
    return {
        f"{side}_embedding_norm": f"{side}.layernorm_embedding",
        f"{side}_norm": f"{side}.layer_norm",  # mBART, Pegasus, M2M100 and Whisper alone
        **projections(f"{side}_{{i}}/attention", f"{side}.layers.{{i}}.self_attn", OUT_PROJ),
        f"{side}_{{i}}/attention_norm": f"{side}.layers.{{i}}.self_attn_layer_norm",
        f"{side}_{{i}}/feed_forward/intermediate": f"{side}.layers.{{i}}.fc1",
        f"{side}_{{i}}/feed_forward/output": f"{side}.layers.{{i}}.fc2",
        f"{side}_{{i}}/feed_forward_norm": f"{side}.layers.{{i}}.final_layer_norm",
    }


SIDES = {
    **bart_side("encoder"),
    **bart_side("decoder"),
    **projections("decoder_{i}/cross_attention", "decoder.layers.{i}.encoder_attn", OUT_PROJ),
    "decoder_{i}/cross_attention_norm": "decoder.layers.{i}.encoder_attn_layer_norm",
}
BART = {
    "embedding/token": "shared",
    "source_position_embedding/position": Tensor("encoder.embed_positions", other=skip(2)),
    "target_position_embedding/position": Tensor("decoder.embed_positions", other=skip(2)),
    **SIDES,
}
WHISPER = {
    "source_embedding/convolution_0": "encoder.conv1",
    "source_embedding/convolution_1": "encoder.conv2",
    "target_embedding/token": "decoder.embed_tokens",
    "target_embedding/position": "decoder.embed_positions",
    **SIDES,
}
MARIAN = {**BART, "source_embedding/token": "encoder.embed_tokens", "target_embedding/token": "decoder.embed_tokens"}


def bart(c, pad_id=1, start_id=2, placement="post", positions="learned", embedding_norm=True, scaled=False):
    """Returns the options of BART and of those that differ from it in the arguments.

    Args:
        pad_id, start_id, scaled: defaults of `pad_token_id`, `decoder_start_token_id` and `scale_embedding`.
        placement: of the norms, after each sublayer ("post") or before it.
        positions: "learned", or the sinusoids of the family.
        embedding_norm: whether a norm follows the embedding.
    """
    # What other code of the first files read of them; transformers has a class for each answer.
    c.only("add_bias_logits", False)
    c.only("normalize_before", placement == "pre")
    c.only("add_final_layer_norm", placement == "pre")
    c.only("normalize_embedding", embedding_norm)
    c.only("static_position_embeddings", positions != "learned")
    return {
        **blocks_of_both(c, placement),
        "source_vocab_size": c("vocab_size"),
        "position_encoding": positions,
        "max_length": c("max_position_embeddings", 1024),
        "pad_id": c.pad_id(pad_id),
        "start_id": c("decoder_start_token_id", start_id),
        "scale_embedding": c("scale_embedding", scaled),
        "embedding_norm": embedding_norm,
        "share_embeddings": "tokens" if positions == "learned" else True,
    }


def blocks_of_both(c, placement):
    return {
        "target_vocab_size": c("vocab_size"),
        "num_layers": c("encoder_layers"),
        "num_decoder_layers": c("decoder_layers"),
        "dim": c("d_model"),
        "num_heads": c("encoder_attention_heads"),
        "activation": c.activation("activation_function", "gelu"),
        "norm_placement": placement,
        "norm_epsilon": 1e-5,
        "dropout": c("dropout", 0.1),
        "attention_dropout": c("attention_dropout", 0.0),
        "feed_forward_dropout": c("activation_dropout", 0.0),
        "encoder_options": {"intermediate_dim": c("encoder_ffn_dim")},
        "decoder_options": {"intermediate_dim": c("decoder_ffn_dim"), "num_heads": c("decoder_attention_heads")},
    }


def whisper(c):
    c.only("apply_spec_augment", False)  # masks of the spectrogram in training
    return {
        **blocks_of_both(c, "pre"),
        "source_vocab_size": None,
        "input_dim": c("num_mel_bins", 80),
        "input_embedding": AudioEmbedding(
            c("d_model"), max_length=c("max_source_positions", 1500), name="source_embedding"
        ),
        "attention_key_bias": False,
        "position_encoding": "learned",
        "max_length": c("max_target_positions", 448),
        "pad_id": c.pad_id_of_decoder(50256),
        "start_id": c("decoder_start_token_id", 50257),
        "scale_embedding": False,  # transformers does not read `scale_embedding` either
    }


def marian(c):
    # The file may hold a table of these same positions.
    options = bart(c, 58100, 58100, positions="sinusoidal_halves", embedding_norm=False)
    shared, target = c("share_encoder_decoder_embeddings", True), c("decoder_vocab_size", None) or c("vocab_size")
    return {**options, "target_vocab_size": target, "share_embeddings": shared}


def mbart(c):
    return bart(c, start_id=None, placement="pre")


def pegasus(c):
    return bart(c, 0, 0, "pre", "sinusoidal_halves", embedding_norm=False)


def m2m_100(c):
    c.only("pad_token_id", 1)  # positions begin after it
    return {
        **bart(c, placement="pre", positions="sinusoidal_fairseq", embedding_norm=False, scaled=True),
        "activation": c.activation("activation_function", "relu"),
        "attention_dropout": c("attention_dropout", 0.1),
    }


def plain(architecture, logits="lm_head"):
    return {"seq2seq": Task(architecture, models.encoder_decoder, {"logits": logits})}


def with_bias(architecture):
    """The task of logits that may have a bias, which transformers keeps in a buffer."""
    rows = {"logits": "lm_head", "logit_adjustment/bias": Tensor("final_logits_bias", other=ONE_ROW)}
    optional = {"logit_bias": "final_logits_bias"}
    return {"seq2seq": Task(architecture, models.encoder_decoder, rows, optional=optional)}


UNREAD = ("encoder_layerdrop", "decoder_layerdrop", "is_encoder_decoder", "num_hidden_layers")
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
POSITIONS = (r"(encoder|decoder)\.embed_positions\.weight",)  # sinusoids
# A table in one old file, which no model uses.
UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)


OF_SIDE = ("vocab_size", "num_layers", "pad_id", "dropout", "final_logit_soft_cap")
OF_PAIR = ("source_vocab_size", "target_vocab_size", "num_decoder_layers", "start_id", "share_embeddings",
           "logit_scale", "final_logit_soft_cap", "encoder_options", "decoder_options")  # fmt: skip


def encoder_alone(options):
    """The options of the encoder in those of an encoder-decoder."""
    shared = {name: value for name, value in options.items() if name not in OF_PAIR}
    return {**shared, "vocab_size": options["source_vocab_size"], **options["encoder_options"]}


def t5_family(name, options, tensors, prefix="", logits="lm_head", **others):
    return Family(
        options,
        tensors,
        {
            **plain(f"{name}ForConditionalGeneration", logits),
            "encoder": Task(
                f"{name}EncoderModel", models.encoder, convert=encoder_alone, ignore=(r"decoder\..*",), whole=False
            ),
        },
        prefix,
        **{
            "ignore": UNUSED,
            "aliases": dict.fromkeys(TABLES, "shared.weight"),
            "neutral": ("n_positions", "classifier_dropout", "is_encoder_decoder", "num_hidden_layers"),
            "says_tied": False,
            **others,
        },
    )


def bart_family(architecture, options, tensors=BART, ignore=(), kept=(), task=with_bias):
    return Family(
        options,
        tensors,
        task(architecture),
        "model.",
        ignore,
        kept,
        aliases=dict.fromkeys(TABLES, "shared.weight"),
        neutral=("classifier_dropout", "classif_dropout", "extra_pos_embeddings", *UNREAD),
    )


FAMILIES = {
    "t5": t5_family("T5", t5, t5_table),
    "mt5": t5_family("MT5", mt5, lambda c: t5_table(c, "gated-gelu")),
    "umt5": t5_family("UMT5", umt5, umt5_table),
    "t5gemma": t5_family(
        "T5Gemma", t5gemma, T5GEMMA, "model.", "lm_head.out_proj", ignore=(), aliases={}, says_tied=True,
        neutral=("is_encoder_decoder", "classifier_dropout_rate", "vocab_size"),
    ),
    "bart": bart_family("BartForConditionalGeneration", bart),
    "mbart": bart_family("MBartForConditionalGeneration", mbart),
    "pegasus": bart_family("PegasusForConditionalGeneration", pegasus, kept=POSITIONS),
    "m2m_100": bart_family("M2M100ForConditionalGeneration", m2m_100, task=plain),
    "marian": bart_family("MarianMTModel", marian, MARIAN, POSITIONS),
    "whisper": Family(
        whisper,
        WHISPER,
        plain("WhisperForConditionalGeneration", "proj_out"),
        "model.",
        kept=(r"encoder\.embed_positions\.weight",),  # sinusoids
        neutral=(*UNREAD, "scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "median_filter_width",
                 *(f"mask_{axis}_{part}" for axis in ("time", "feature") for part in ("prob", "length", "min_masks"))),
    ),
}  # fmt: skip
