"""wav2vec 2.0, HuBERT, UniSpeech and data2vec of sounds: encoders of waveforms, with post-norm or pre-norm."""

import keras
from keras import ops

from keras_txf import checks, models
from keras_txf.checkpoints.families.vit import ONE_VECTOR
from keras_txf.checkpoints.family import Family, Task, classes, encoder_task, sizes
from keras_txf.checkpoints.weight_map import OUT_PROJ, TRANSPOSED, Tensor, projections
from keras_txf.checks import short_repr
from keras_txf.layers import WaveformEmbedding
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.projections import Projection
from keras_txf.layers.serialization import register
from keras_txf.layers.waveform import FILTER_EPSILON

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


def convolutions(c):
    """Returns the options of a `WaveformEmbedding` that all families here have."""
    widths = c("conv_dim", [512] * 7)
    if not isinstance(widths, list):
        raise ValueError(f"config.json must have a list of sizes as `conv_dim`; received {short_repr(widths)}.")
    c.only("num_feat_extract_layers", len(widths))
    return {
        "dim": c("hidden_size"),
        "filters": widths,
        "kernel_sizes": c("conv_kernel", [10, 3, 3, 3, 3, 2, 2]),
        "strides": c("conv_stride", [5, 2, 2, 2, 2, 2, 2]),
        "activation": c.activation("feat_extract_activation", "gelu"),
        "use_bias": c("conv_bias", False),
        "position_groups": c("num_conv_pos_embedding_groups", 16),
        "projection_dropout": c("feat_proj_dropout", 0.0),
        "norm_epsilon": c("layer_norm_eps", 1e-5),
        "name": "embedding",
    }


def encoder(c, embedding, pre=False):
    """Returns the options of the encoder behind an embedding; `pre` says whether its blocks are pre-norm."""
    c.only("add_adapter", False)
    c.only("adapter_attn_dim", None)
    return {
        **sizes(c, vocab_size=None),
        "vocab_size": None,
        "input_dim": 1,
        "embedding": embedding,
        "embedding_norm": not pre,
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_act", "gelu"),
        "norm_placement": "pre" if pre else "post",
        "norm_epsilon": c("layer_norm_eps", 1e-5),
        "dropout": c("hidden_dropout", 0.1),
        "attention_dropout": c("attention_dropout", 0.1),
        "feed_forward_dropout": c("activation_dropout", 0.1),
    }


def body(c, **embedding):
    """Returns the options of most families here; `embedding` are further options of the `WaveformEmbedding`."""
    c.only("feat_extract_norm", "group", "layer")
    front = WaveformEmbedding(
        norm=c("feat_extract_norm", "group"),
        position_kernel_size=c("num_conv_pos_embeddings", 128),
        **convolutions(c),
        **embedding,
    )
    return encoder(c, front, c("do_stable_layer_norm", False))


def hubert(c):
    c.only("conv_pos_batch_norm", False)
    return body(c, projection_norm=c("feat_proj_layer_norm", True))


def data2vec(c):
    front = StackedPositions(
        position_layers=c("num_conv_pos_embeddings", 5),
        position_kernel_size=c("conv_pos_kernel_size", 19),
        **convolutions(c),
    )
    return encoder(c, front)


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


NEUTRAL = (  # keys of the training, of other heads and of adapters
    "layerdrop", "apply_spec_augment", "ctc_loss_reduction", "ctc_zero_infinity",
    "pad_token_id",  # the blank of the loss
    "hidden_dropout_prob",  # of the first files, next to `hidden_dropout`
    *(f"mask_{axis}_{part}" for axis in ("time", "feature") for part in ("prob", "length", "min_masks")),
    "feat_quantizer_dropout", "num_codevectors_per_group", "num_codevector_groups", "contrastive_logits_temperature",
    "num_negatives", "codevector_dim", "proj_codevector_dim", "diversity_loss_weight", "num_ctc_classes",
    "replace_prob", "num_clusters", "tdnn_dim", "tdnn_kernel", "tdnn_dilation", "xvector_output_dim",
    "adapter_kernel_size", "adapter_stride", "num_adapter_layers", "output_hidden_size",
)  # fmt: skip
MASK = (r"masked_spec_embed",)  # the vector of hidden frames in training
UNMASKED = {"mask_time_prob": 0.0}  # transformers then has no such vector
STACKED = {**BODY, "embedding/position/convolution_{i}": "encoder.pos_conv_embed.layers.{i}.conv"}
ALIASES = {f"{POSITION}.weight_g": GAIN, f"{POSITION}.weight_v": DIRECTION}  # names without `parametrizations`


def family(options, name, prefix, of_frames=True, rows=BODY):
    return Family(
        options,
        rows,
        tasks(name, of_frames),
        prefix,
        aliases=ALIASES,
        neutral=NEUTRAL,
        kept_in_body=MASK,
        start=lambda options: UNMASKED,
    )


FAMILIES = {
    "wav2vec2": family(body, "Wav2Vec2", "wav2vec2."),
    "hubert": family(hubert, "Hubert", "hubert.", of_frames=False),
    "unispeech": family(body, "UniSpeech", "unispeech.", of_frames=False),
    "unispeech-sat": family(body, "UniSpeechSat", "unispeech_sat."),
    "data2vec-audio": family(data2vec, "Data2VecAudio", "data2vec_audio.", rows=STACKED),
}


@register
class StackedPositions(WaveformEmbedding):
    """The embedding of data2vec, which has several convolutions for positions, each with a norm.

    Frames near padding differ from those of the same sound without padding, as in transformers: the second convolution
    reads what the first one returns at padding.

    Args:
        dim, options: see `WaveformEmbedding`.
        position_layers: number of convolutions for positions.

    Reference:
        [data2vec](https://arxiv.org/abs/2202.03555).
    """

    def __init__(self, dim, position_layers=5, **options):
        super().__init__(dim, **options)
        self.position_layers = checks.size("position_layers", position_layers)

    def make_position(self):
        return ConvolutionStack(
            self.position_layers,
            self.position_kernel_size,
            self.position_groups,
            self.activation,
            dtype=self.dtype_policy,
            name="position",
        )


@register
class ConvolutionStack(Layer):
    """Convolutions in groups of features, each with a norm without weights, and an activation between them.

    Args:
        number: number of convolutions.
        kernel_size: number of steps that a convolution reads.
        groups: number of groups.
        activation: activation after each norm but the last.

    Call arguments:
        inputs: float (B, T, D).

    Returns:
        (B, T, D).
    """

    def __init__(self, number, kernel_size, groups, activation, **kwargs):
        super().__init__(**kwargs)
        self.number, self.kernel_size, self.groups, self.activation = number, kernel_size, groups, activation
        self.activation_function = get_activation("activation", activation)
        self.norm = keras.layers.LayerNormalization(
            epsilon=FILTER_EPSILON, center=False, scale=False, dtype=self.dtype_policy, name="norm"
        )

    def build(self, inputs_shape):
        width, self.convolutions = inputs_shape[-1], []
        for number in range(self.number):
            convolution = keras.layers.Conv1D(
                width,
                self.kernel_size,
                groups=self.groups,
                data_format="channels_last",
                dtype=self.dtype_policy,
                name=f"convolution_{number}",
            )
            convolution.build(inputs_shape)
            self.convolutions.append(convolution)
        self.norm.build(inputs_shape)

    def call(self, inputs):
        x, left = inputs, self.kernel_size // 2
        for number, convolution in enumerate(self.convolutions):
            x = self.activation_function(x) if number else x
            x = ops.pad(x, ((0, 0), (left, self.kernel_size - 1 - left), (0, 0)))
            x = self.norm(convolution(x))
        return x

    def compute_output_shape(self, inputs_shape):
        return inputs_shape
