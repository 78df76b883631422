"""BART, mBART, Marian, Pegasus, M2M100 and Whisper: encoder-decoders."""

import dataclasses
import functools

from keras_txf import models
from keras_txf.checkpoints.family import Family, Task, classes
from keras_txf.checkpoints.weight_map import ONE_ROW, OUT_PROJ, Tensor, projections, skip
from keras_txf.layers import AudioEmbedding


def bart_side(side):
    """Returns the table entries of the encoder's or the decoder's blocks, and of the norms around the blocks."""
    return {
        f"{side}_embedding_norm": f"{side}.layernorm_embedding",
        f"{side}_norm": f"{side}.layer_norm",  # only in mBART, Pegasus, M2M100 and Whisper
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
    "source_embedding/position/position": "encoder.embed_positions",
    "target_embedding/token": "decoder.embed_tokens",
    "target_embedding/position": "decoder.embed_positions",
    **SIDES,
}
PEGASUS = {
    **BART,
    "source_position_embedding/position": "encoder.embed_positions",
    "target_position_embedding/position": "decoder.embed_positions",
}
MARIAN = {
    **PEGASUS,
    "source_embedding/token": "encoder.embed_tokens",
    "source_embedding/position": "encoder.embed_positions",
    "target_embedding/token": "decoder.embed_tokens",
    "target_embedding/position": "decoder.embed_positions",
}


def bart(c, pad_id=1, start_id=2, placement="post", positions="learned", embedding_norm=True, scaled=False):
    """Returns the options of BART, or of a family that differs from BART in the arguments.

    Args:
        pad_id, start_id, scaled: defaults of `pad_token_id`, `decoder_start_token_id` and `scale_embedding`.
        placement: placement of the norms, after each sublayer ("post") or before it ("pre").
        positions: "learned", or the sinusoids of the family.
        embedding_norm: whether a norm follows the embedding.
    """
    # Keys for the code of the first files; transformers has a class for each of their values.
    c.not_read("add_bias_logits", False)
    c.not_read("normalize_before", placement == "pre")
    c.not_read("add_final_layer_norm", placement == "pre")
    c.not_read("normalize_embedding", embedding_norm)
    c.not_read("static_position_embeddings", positions != "learned")
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
    c.only("apply_spec_augment", False)  # it masks the spectrogram in training
    options = blocks_of_both(c, "pre")
    embedding = AudioEmbedding(c("d_model"), max_length=c("max_source_positions", 1500), name="source_embedding")
    return {
        **options,
        "source_vocab_size": None,
        "input_dim": c("num_mel_bins", 80),
        "encoder_options": {**options["encoder_options"], "embedding": embedding},
        "attention_key_bias": False,
        "position_encoding": "learned",
        "max_length": c("max_target_positions", 448),
        "pad_id": c.pad_id_of_decoder(50256),
        "start_id": c("decoder_start_token_id", 50257),
        "scale_embedding": False,  # transformers does not read `scale_embedding` either
    }


def marian(c):
    options = bart(c, 58100, 58100, positions="sinusoidal_halves", embedding_norm=False)
    shared, target = c("share_encoder_decoder_embeddings", True), c("decoder_vocab_size", None) or c("vocab_size")
    return {**options, "target_vocab_size": target, "share_embeddings": shared}


def with_positions(options):
    """Returns the options for a file that holds the positions of both sides."""
    shared = "tokens" if options["share_embeddings"] else False
    return {**options, "position_encoding": "fixed", "share_embeddings": shared}


def whisper_with_positions(options):
    of_encoder = options["encoder_options"]
    config = {**of_encoder["embedding"].get_config(), "position_encoding": "fixed"}
    return {**options, "encoder_options": {**of_encoder, "embedding": AudioEmbedding.from_config(config)}}


def mbart(c):
    return bart(c, start_id=None, placement="pre")


def pegasus(c):
    return bart(c, 0, 0, "pre", "sinusoidal_halves", embedding_norm=False)


def m2m_100(c):
    c.only("pad_token_id", 1)  # positions begin after this id
    if c("decoder_start_token_id", 2) == 1:
        raise ValueError(
            "config.json must have a `decoder_start_token_id` that differs from `pad_token_id`, which has no position; "
            "received 1 for both."
        )
    return {
        **bart(c, placement="pre", positions="sinusoidal_inclusive_from_2", embedding_norm=False, scaled=True),
        "activation": c.activation("activation_function", "relu"),
        "attention_dropout": c("attention_dropout", 0.1),
    }


def plain(architecture, logits="lm_head", whole=True):
    return {"seq2seq": Task(architecture, models.encoder_decoder, {"logits": logits}, whole=whole)}


def one_text(options):
    """Returns the options of a classifier from an encoder-decoder's options: both sides read one text."""
    of_pair = ("source_vocab_size", "target_vocab_size", "logit_scale")
    return {"vocab_size": options["source_vocab_size"], **{k: v for k, v in options.items() if k not in of_pair}}


def classifiers(name, end_id, whole=True, head=lambda c: {}):
    """Returns the tasks of a text classifier and of spans; `end_id` is the default of `eos_token_id`."""
    rows = {"head": "classification_head.dense", "logits": "classification_head.out_proj"}
    sequences = classes(
        f"{name}ForSequenceClassification",
        models.encoder_decoder_classifier,
        rows,
        lambda c: {
            "end_id": c.end_id(end_id), "head": "tanh", "head_dropout": c("classifier_dropout", 0.0),
            **head(c),
        },
    )  # fmt: skip
    spans = Task(
        f"{name}ForQuestionAnswering",
        functools.partial(models.encoder_decoder_classifier, num_classes=None, spans=True),
        {"logits": "qa_outputs"}, head, whole=whole, makes_head=True,
    )  # fmt: skip
    return {
        "sequence_classification": dataclasses.replace(sequences, convert=one_text),
        "question_answering": dataclasses.replace(spans, convert=one_text),
    }


def with_bias(architecture):
    """Returns the task of a model whose logits may have a bias, which transformers keeps in a buffer."""
    rows = {"logits": "lm_head", "logit_adjustment/bias": Tensor("final_logits_bias", other=ONE_ROW)}
    optional = {"logit_bias": "final_logits_bias"}
    return {"seq2seq": Task(architecture, models.encoder_decoder, rows, optional=optional)}


UNREAD = ("encoder_layerdrop", "decoder_layerdrop", "is_encoder_decoder", "num_hidden_layers")
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
POSITIONS = "encoder.embed_positions.weight"
OF_BOTH_SIDES = {POSITIONS: with_positions}


def bart_family(architecture, options, tensors=BART, stored=None, task=with_bias, heads=None):
    return Family(
        options,
        tensors,
        {**task(architecture), **(heads or {})},
        "model.",
        stored=stored or {},
        aliases=dict.fromkeys(TABLES, "shared.weight"),
        neutral=("classif_dropout", "extra_pos_embeddings", *UNREAD, *(() if heads else ("classifier_dropout",))),
    )


FAMILIES = {
    "bart": bart_family("BartForConditionalGeneration", bart, heads=classifiers("Bart", 2)),
    "mbart": bart_family(
        "MBartForConditionalGeneration", mbart, heads=classifiers("MBart", 2, head=lambda c: {"start_id": None})
    ),
    "pegasus": bart_family("PegasusForConditionalGeneration", pegasus, PEGASUS, OF_BOTH_SIDES),
    "m2m_100": bart_family("M2M100ForConditionalGeneration", m2m_100, task=plain),
    "marian": bart_family("MarianMTModel", marian, MARIAN, OF_BOTH_SIDES),
    "whisper": Family(
        whisper,
        WHISPER,
        plain("WhisperForConditionalGeneration", "proj_out"),
        "model.",
        stored={POSITIONS: whisper_with_positions},
        neutral=(*UNREAD, "scale_embedding", "use_weighted_layer_sum", "classifier_proj_size", "median_filter_width",
                 *(f"mask_{axis}_{part}" for axis in ("time", "feature") for part in ("prob", "length", "min_masks"))),
    ),
}  # fmt: skip
