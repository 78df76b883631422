"""wav2vec 2.0, HuBERT and UniSpeech: encoders of waveforms, post-norm (base) or pre-norm (large)."""

from keras_txf import models
from keras_txf.checkpoints.families.vit import ONE_VECTOR
from keras_txf.checkpoints.family import Family, Task, classes, encoder_task, sizes
from keras_txf.checkpoints.weight_map import OUT_PROJ, TRANSPOSED, Tensor, projections
from keras_txf.layers import WaveformEmbedding
from keras_txf.layers.projections import Projection

POSITION = "encoder.pos_conv_embed.conv"
GAIN, DIRECTION = (f"{POSITION}.parametrizations.weight.original{number}" for number in (0, 1))
BODY = {
    "embedding/convolution_{i}": "feature_extractor.conv_layers.{i}.conv",
    "embedding/norm_{i}": "feature_extractor.conv_layers.{i}.layer_norm",
    "embedding/projection_norm": "feature_projection.layer_norm",
    "embedding/projection": "feature_projection.projection",
    "embedding/position/gain": Tensor(GAIN, other=ONE_VECTOR),
    "embedding/position/direction": Tensor(DIRECTION, other=TRANSPOSED),
    "embedding/position/bias": f"{POSITION}.bias",
    "encoder_embedding_norm": "encoder.layer_norm",  # of post-norm blocks
    "encoder_norm": "encoder.layer_norm",  # of pre-norm blocks
    **projections("encoder_{i}/attention", "encoder.layers.{i}.attention", OUT_PROJ),
    "encoder_{i}/attention_norm": "encoder.layers.{i}.layer_norm",
    "encoder_{i}/feed_forward/intermediate": "encoder.layers.{i}.feed_forward.intermediate_dense",
    "encoder_{i}/feed_forward/output": "encoder.layers.{i}.feed_forward.output_dense",
    "encoder_{i}/feed_forward_norm": "encoder.layers.{i}.final_layer_norm",
}


def body(c, **embedding):
    """Returns the options of every family here; `embedding` are further options of the `WaveformEmbedding`."""
    c.only("feat_extract_norm", "group", "layer")
    widths = c("conv_dim", [512] * 7)
    c.only("num_feat_extract_layers", len(widths))
    pre = c("do_stable_layer_norm", False)
    front = WaveformEmbedding(
        c("hidden_size"),
        widths,
        c("conv_kernel", [10, 3, 3, 3, 3, 2, 2]),
        c("conv_stride", [5, 2, 2, 2, 2, 2, 2]),
        c.activation("feat_extract_activation", "gelu"),
        c("feat_extract_norm", "group"),
        c("conv_bias", False),
        c("num_conv_pos_embeddings", 128),
        c("num_conv_pos_embedding_groups", 16),
        projection_dropout=c("feat_proj_dropout", 0.0),
        norm_epsilon=c("layer_norm_eps", 1e-5),
        name="embedding",
        **embedding,
    )
    return {
        **sizes(c, vocab_size=None),
        "vocab_size": None,
        "input_dim": 1,
        "embedding": front,
        "embedding_norm": not pre,
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_act", "gelu"),
        "norm_placement": "pre" if pre else "post",
        "norm_epsilon": c("layer_norm_eps", 1e-5),
        "dropout": c("hidden_dropout", 0.1),
        "attention_dropout": c("attention_dropout", 0.1),
        "feed_forward_dropout": c("activation_dropout", 0.1),
    }


def wav2vec2(c):
    c.only("add_adapter", False)
    c.only("adapter_attn_dim", None)
    return body(c)


def hubert(c):
    c.only("conv_pos_batch_norm", False)
    return body(c, projection_norm=c("feat_proj_layer_norm", True))


def ctc(c):
    return {"num_classes": c("vocab_size"), "head_dropout": c("final_dropout", 0.1)}


def sequences(c):
    c.only("use_weighted_layer_sum", False)
    head = Projection(c("classifier_proj_size", 256), name="head")
    return {"pooling": "mean", "head": head}  # the mean of projections is the projection of the mean


def frames(c):
    c.only("use_weighted_layer_sum", False)
    return {}


def tasks(name, of_frames=True):
    """Returns the tasks of a family; `of_frames` says whether it has a class for classes of frames."""
    rows = {"head": "projector", "logits": "classifier"}
    found = {
        "encoder": encoder_task(f"{name}Model"),
        "ctc": Task(f"{name}ForCTC", models.token_classifier, {"logits": "lm_head"}, ctc, classes_key="vocab_size"),
        "sequence_classification": classes(
            f"{name}ForSequenceClassification", models.encoder_classifier, rows, sequences
        ),
    }
    if of_frames:
        found["token_classification"] = classes(
            f"{name}ForAudioFrameClassification", models.token_classifier, {"logits": "classifier"}, frames
        )
    return found


OF_TRAINING = (
    "layerdrop", "apply_spec_augment", "ctc_loss_reduction", "ctc_zero_infinity",
    "pad_token_id",  # the blank of the loss
    "hidden_dropout_prob",  # of the first files, next to `hidden_dropout`
    *(f"mask_{axis}_{part}" for axis in ("time", "feature") for part in ("prob", "length", "min_masks")),
)  # fmt: skip
OF_PRETRAINING = (
    "feat_quantizer_dropout", "num_codevectors_per_group", "num_codevector_groups", "contrastive_logits_temperature",
    "num_negatives", "codevector_dim", "proj_codevector_dim", "diversity_loss_weight",
)  # fmt: skip
OF_OTHER_HEADS = ("tdnn_dim", "tdnn_kernel", "tdnn_dilation", "xvector_output_dim")
OF_ADAPTER = ("adapter_kernel_size", "adapter_stride", "num_adapter_layers", "output_hidden_size")
MASK = (r"masked_spec_embed",)  # the vector of hidden frames in training
UNMASKED = {"mask_time_prob": 0.0}  # transformers then has no such vector
ALIASES = {f"{POSITION}.weight_g": GAIN, f"{POSITION}.weight_v": DIRECTION}  # names before transformers 4.32


def family(options, name, prefix, neutral, of_frames=True):
    return Family(
        options,
        BODY,
        tasks(name, of_frames),
        prefix,
        aliases=ALIASES,
        neutral=(*OF_TRAINING, *neutral),
        kept_in_body=MASK,
        start=lambda options: UNMASKED,
    )


FAMILIES = {
    "wav2vec2": family(wav2vec2, "Wav2Vec2", "wav2vec2.", (*OF_PRETRAINING, *OF_OTHER_HEADS, *OF_ADAPTER)),
    "hubert": family(hubert, "Hubert", "hubert.", (), False),
    "unispeech": family(body, "UniSpeech", "unispeech.", (*OF_PRETRAINING, "num_ctc_classes", "replace_prob"), False),
    "unispeech-sat": family(body, "UniSpeechSat", "unispeech_sat.", (*OF_PRETRAINING, *OF_OTHER_HEADS, "num_clusters")),
}
