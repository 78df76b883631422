"""Every layer keeps the contract, alone and with many options at once."""

import functools

import keras
import numpy as np
import pytest
from cases import Case, Tensor, floats, places, segments, token_ids, visible
from contracts import parameters

import keras_txf as txf
from keras_txf.checkpoints.families.deberta import ConvolutionResidual
from keras_txf.checkpoints.families.ernie import TaskEmbedding
from keras_txf.checkpoints.families.mixtures import ClippedExperts
from keras_txf.checkpoints.families.wav2vec2 import StackedPositions

# Dim 12 and 3 heads of 4 by default; contexts are 10 wide.
INPUTS = {"inputs": floats("target", 12)}
WITH_CONTEXT = {**INPUTS, "context": floats("source", 10)}
SELF_SCORES = {1: (3, "target", "target")}
MANY = {"head_dim": 8, "num_key_value_heads": 3, "qk_norm": True, "use_bias": False}


def case(name, cls, tensors, *args, **options):
    """A case whose own fields are told from the options of `cls` by their names."""
    fields = {
        k: options.pop(k) for k in ("mask", "scores", "output_dtype", "quantizes", "core", "fullest") if k in options
    }
    return Case(name, functools.partial(make, cls, *args, **options), tensors, **fields)


def make(cls, *args, dtype, **options):
    options = {name: value(dtype) if callable(value) else value for name, value in options.items()}
    return cls(*args, **options, dtype=dtype)


def relative(dtype):
    return txf.layers.RelativeBias(3, num_buckets=8, max_distance=6, dtype=dtype)


def disentangled(dtype):
    return txf.layers.DisentangledPositions(12, max_distance=6, num_buckets=8, norm=True, dtype=dtype)


def shared_blocks(dtype):
    """Two blocks with one position layer between them."""
    inputs = keras.Input((None, 12), name="inputs")
    x = keras.layers.Masking(dtype=dtype)(inputs)
    shared = relative(dtype)
    for _ in range(2):
        x = txf.layers.EncoderBlock(3, position=shared, dtype=dtype)(x)
    return keras.Model(inputs, x)


attention, cross = txf.layers.MultiHeadSelfAttention, txf.layers.CrossAttention
encoder, decoder = txf.layers.EncoderBlock, txf.layers.DecoderBlock
latent, feed_forward = txf.layers.LatentAttention, txf.layers.FeedForward
embedding, pooling = txf.layers.PositionalEmbedding, txf.layers.Pooling
patches, recurrent = txf.layers.PatchEmbedding, txf.layers.RecurrentDecoder
features, audio, log_mel = txf.layers.FeatureEmbedding, txf.layers.AudioEmbedding, txf.layers.LogMelSpectrogram
IMAGES = {"inputs": floats(6, 8, 3)}
ANY_IMAGES = {"inputs": floats("target", "source", 3)}
POSITION = dict(mask="none", quantizes=False)
STATES = {**INPUTS, "states": floats(14)}
DISTANCE = {"query_positions": places("target"), "key_positions": places("source")}

placeholders = Tensor(("target",), lambda random, shape: 7 + np.arange(np.prod(shape)).reshape(shape) % 3, "int32")

CASES = [
    case("attention", attention, INPUTS, 3, scores=SELF_SCORES, core=True),
    case("attention-grouped-rotary", attention, INPUTS, 6, **MANY, causal=True, window=3, position="rotary",
         dropout=0.2, scores={1: (6, "target", "target")}, fullest=True),
    case("attention-alibi-soft-cap", attention, INPUTS, 3, position="alibi", logit_soft_cap=4.0, scale=0.3,
         scores=SELF_SCORES, fullest=True),
    case("attention-tensors", attention,
         {**INPUTS, "attention_mask": visible(3, "target", "target"), "positions": places("target")}, 3,
         position="rotary", scores=SELF_SCORES, fullest=True),
    case("attention-packed", attention, {**INPUTS, "segment_ids": segments("target"), "positions": places("target")}, 3,
         causal=True, position=relative, scores=SELF_SCORES, fullest=True),
    case("attention-heads-alone", attention, INPUTS, 3, head_dim=8, output_projection=False, position="rotary",
         scores=SELF_SCORES, fullest=True),
    case("soft-prompt", txf.layers.SoftPrompt, INPUTS, 3, **POSITION),
    case("insert-vectors", txf.layers.InsertVectors, {**INPUTS, "ids": placeholders, "vectors": floats(3, 12)}, 9,
         quantizes=False),
    case("latent-attention", latent, INPUTS, 3, 8, 6, 4, scores=SELF_SCORES),
    case("latent-attention-many", latent, INPUTS, 6, 8, 5, 4, v_head_dim=7, q_lora_rank=9, causal=True,
         position=lambda dtype: txf.layers.Rotary(base=50.0, dtype=dtype), dropout=0.2, use_bias=True,
         scores={1: (6, "target", "target")}, fullest=True),
    case("gated-delta-net", txf.layers.GatedDeltaNet, INPUTS, 2, 3, 4, 5, fullest=True),
    case("mamba2", txf.layers.Mamba2, INPUTS, 4, 5, 3, 2, 3, True, fullest=True),
    case("short-convolution", txf.layers.ShortConvolution, INPUTS, 3, True, fullest=True),
    case("cross", cross, WITH_CONTEXT, 3, scores={1: (3, "target", "source")}),
    case("cross-many", cross, WITH_CONTEXT, 6, **MANY, logit_soft_cap=4.0, dropout=0.2,
         scores={1: (6, "target", "source")}, fullest=True),
    case("cross-packed", cross,
         {**WITH_CONTEXT, "segment_ids": segments("target"), "context_segment_ids": segments("source")}, 3,
         scores={1: (3, "target", "source")}, fullest=True),
    case("feed-forward", txf.layers.FeedForward, INPUTS),
    case("feed-forward-gated", txf.layers.FeedForward, INPUTS, 14, "silu", gated=True, dropout=0.2, use_bias=False,
         fullest=True),
    case("experts", txf.layers.MixtureOfExperts, INPUTS, 3, load_balancing=None),
    case("experts-shared", txf.layers.MixtureOfExperts, INPUTS, 4, 3, 14, num_shared_experts=1,
         shared_intermediate_dim=9, shared_gate=True, router_activation="sigmoid", use_bias=True,
         load_balancing=None, fullest=True),
    case("experts-clipped", ClippedExperts, INPUTS, 3, limit=3.0, use_bias=True, load_balancing=None,
         quantizes=False, fullest=True),
    case("experts-in-groups", txf.layers.MixtureOfExperts, INPUTS, 6, 3, 14, num_shared_experts=2,
         router_activation="sigmoid", e_score_correction_bias=True, n_group=3, topk_group=2, routed_scaling_factor=1.5,
         load_balancing=None, fullest=True),
    case("encoder", encoder, INPUTS, 3, scores=SELF_SCORES, core=True),
    case("encoder-many", encoder, INPUTS, norm="rms", norm_placement="pre", use_bias=False,
         attention=lambda dtype: attention(6, **MANY, window=3, position="rotary", dropout=0.2, dtype=dtype),
         feed_forward=lambda dtype: feed_forward(14, "silu", gated=True, dropout=0.3, use_bias=False, dtype=dtype),
         scores={1: (6, "target", "target")}, fullest=True),
    case("encoder-sandwich", encoder, INPUTS, 3, norm_placement="sandwich", position="alibi", head_dim=8, gated=True,
         causal=True, scores=SELF_SCORES, fullest=True),
    Case("encoder-shared", shared_blocks, INPUTS, shares=True, fullest=True),
    case("decoder", decoder, INPUTS, 3, scores=SELF_SCORES),
    case("decoder-cross", decoder, WITH_CONTEXT, 3, cross_attention=True, core=True,
         scores={**SELF_SCORES, 2: (3, "target", "source")}),
    case("decoder-cross-many", decoder, WITH_CONTEXT, intermediate_dim=14, norm="rms", norm_placement="sandwich",
         activation="silu", gated=True, residual=txf.layers.Residual(stochastic_depth=0.4, layer_scale=0.5),
         attention=lambda dtype: attention(6, **MANY, causal=True, window=3, position="rotary", dtype=dtype),
         cross_attention=lambda dtype: cross(6, **MANY, dropout=0.2, dtype=dtype),
         scores={1: (6, "target", "target"), 2: (6, "target", "source")}, fullest=True),
    case("decoder-cross-heads-alone", decoder, WITH_CONTEXT,
         attention=lambda dtype: attention(3, causal=True, output_projection=False, dtype=dtype),
         cross_attention=lambda dtype: cross(3, output_projection=False, dtype=dtype),
         scores={**SELF_SCORES, 2: (3, "target", "source")}, fullest=True),
    case("embedding", embedding, {"inputs": token_ids("target", 11)}, 11, 12, core=True),
    case("features", features, INPUTS, 10),
    case("features-learned", features, INPUTS, 10, "learned", 10, use_bias=False, fullest=True),
    case("audio", audio, INPUTS, 10, strides=(1, 1), quantizes=False),
    case("audio-learned", audio, INPUTS, 10, 5, (1,), "relu", "learned", 10, use_bias=False, fullest=True),
    case("waveform", txf.layers.WaveformEmbedding, INPUTS, 10, [8], [1], [1], "tanh", position_kernel_size=None,
         norm_epsilon=0.5),
    case("waveform-positions", txf.layers.WaveformEmbedding, INPUTS, 10, [6, 8], [1, 1], [1, 1], norm=None,
         position_kernel_size=4, position_groups=2, projection_dropout=0.3, norm_epsilon=0.5, fullest=True),
    case("waveform-over-time", txf.layers.WaveformEmbedding, INPUTS, 10, [6, 8], [3, 2], [2, 1], "relu", "group", False,
         5, 1, projection_norm=False, mask="none"),
    case("waveform-stacked", StackedPositions, INPUTS, 10, 2, filters=[6, 8], kernel_sizes=[3, 2], strides=[2, 1],
         position_kernel_size=5, position_groups=2, mask="none"),
    case("waveform-normalization", txf.layers.WaveformNormalization, {"inputs": floats(40)}, mask="none",
         quantizes=False),
    case("log-mel", log_mel, {"inputs": floats(40)}, 6, 400, 16, 5, mask="none", quantizes=False),
    case("logits", txf.layers.LogitAdjustment, INPUTS, 0.5, True, 3.0, quantizes=False, fullest=True),
    case("embedding-learned", embedding, {"inputs": token_ids("target", 11)}, 11, 12, "learned", 10, scale=True,
         fullest=True),
    case("embedding-of-tasks", TaskEmbedding, {"inputs": token_ids("target", 11)}, 11, 12, 3),
    case("embedding-concat", embedding, {"inputs": token_ids("target", 11), "positions": places("target")}, 11, 12,
         combine="concat", position_dim=3, fullest=True),
    case("embedding-no-padding", embedding, {"inputs": token_ids("target", 11)}, 11, 12, None, pad_id=None,
         mask="none"),
    case("patches", patches, IMAGES, (2, 4), 12, (6, 8), mask="none"),
    case("patches-of-any-size", patches, ANY_IMAGES, 1, 12, 3, interpolate_positions=True, mask="none", fullest=True),
    case("patches-fixed", patches, IMAGES, (2, 4), 12, (6, 8), position_encoding="fixed", mask="none"),
    case("patches-sinusoidal", patches, ANY_IMAGES, 1, 11, class_token=False, position_encoding="sinusoidal",
         use_bias=False, mask="none", fullest=True),
    *[
        case(f"pooling-{kind}", pooling, INPUTS, kind, mask="consumed", quantizes=learns, fullest=learns)
        for kind, learns in (("mean", False), ("max", False), ("first", False), ("last", False), ("attention", True))
    ],
    case("attention-pooling", txf.layers.AttentionPooling, INPUTS, 3, 14, "gelu_sigmoid", mask="consumed",
         fullest=True),
    case("recurrent", recurrent, STATES, 7, quantizes=False, fullest=True),
    case("recurrent-additive", recurrent, {**STATES, "context": floats("source", 10)}, 7, 2, "gru", "additive", 0.2,
         scores={1: (1, "target", "source")}, fullest=True),
    case("recurrent-multiplicative", recurrent, {**STATES, "context": floats("source", 10)}, 7,
         attention="multiplicative", scores={1: (1, "target", "source")}, fullest=True),
    case("rotary", txf.layers.Rotary, {"x": floats("target", 3, 4), "positions": places("target")}, **POSITION),
    case("rotary-scaled", txf.layers.Rotary, {"x": floats("target", 3, 8), "positions": places("target")}, fraction=0.5,
         scaling={"type": "linear", "factor": 4.0}, **POSITION, fullest=True),
    case("convolution-in-a-block", encoder, INPUTS, 3, scores=SELF_SCORES, residual=ConvolutionResidual(5),
         fullest=True),
    case("attention-disentangled", attention, INPUTS, 3, scores=SELF_SCORES, position=disentangled),
    case("disentangled-positions", txf.layers.DisentangledPositions, DISTANCE, 5, 6, 8, norm=True, dropout=0.3,
         **POSITION, fullest=True),
    case("axial-rotary", txf.layers.AxialRotary, {"x": floats(7, 3, 8), "positions": places(7)}, grid=(2, 3),
         **POSITION, fullest=True),
    case("alibi", txf.layers.ALiBi, DISTANCE, 3, output_dtype="float32", **POSITION),
    case("relative-bias", txf.layers.RelativeBias, DISTANCE, 3, 8, 6, output_dtype="variable_dtype", **POSITION,
         fullest=True),
]  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize("check, case", parameters(CASES))
def test_contract(check, case, tmp_path):
    check(case, tmp_path)


def test_every_layer_has_a_case():
    tried = {type(inner).__name__ for case in CASES for inner in case.make(dtype=None)._flatten_layers()}
    assert tried >= set(txf.layers.__all__) - {"Cache", "Int8Cache", "Residual", "SinkCache"}  # no layers
