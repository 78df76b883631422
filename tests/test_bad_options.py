"""Every option of every layer and builder, out of its range, one at a time.

A message must name the argument, say what was expected and what came.
"""

import functools

import numpy as np
import pytest
from refusals import BUILDERS, IMAGE_BUILDERS, answer, generate, refused

from keras_txf import layers, training

Attention, Cross, Embedding = layers.MultiHeadSelfAttention, layers.CrossAttention, layers.PositionalEmbedding
Encoder, Decoder = layers.EncoderBlock, layers.DecoderBlock
encoder, classifier, decoder, generator, seq2seq = BUILDERS.values()
Patches, image_classifier = layers.PatchEmbedding, IMAGE_BUILDERS["image_classifier"]
PATCHES = {"patch_size": 2, "dim": 8, "image_size": 6}

# Every size of every layer and builder, with what else it needs.
SIZES = [
    ("num_heads", Attention, {}),
    ("head_dim", Attention, {"num_heads": 2}),
    ("num_key_value_heads", Attention, {"num_heads": 2}),
    ("window", Attention, {"num_heads": 2}),
    ("num_heads", Cross, {}),
    ("head_dim", Cross, {"num_heads": 2}),
    ("num_key_value_heads", Cross, {"num_heads": 2}),
    *(
        (name, cls, {"num_heads": 2})
        for cls in (Encoder, Decoder)
        for name in ("intermediate_dim", "head_dim", "num_key_value_heads", "window")
    ),
    ("num_heads", Encoder, {}),
    ("num_heads", Decoder, {}),
    ("intermediate_dim", layers.FeedForward, {}),
    ("vocab_size", Embedding, {"dim": 8}),
    ("dim", Embedding, {"vocab_size": 11}),
    ("max_length", Embedding, {"vocab_size": 11, "dim": 8}),
    ("position_dim", Embedding, {"vocab_size": 11, "dim": 8, "combine": "concat"}),
    ("num_heads", layers.ALiBi, {}),
    ("num_heads", layers.RelativeBias, {}),
    ("num_buckets", layers.RelativeBias, {"num_heads": 2}),
    ("max_distance", layers.RelativeBias, {"num_heads": 2}),
    *((name, build, {}) for build in (encoder, classifier, decoder, generator) for name in ("vocab_size",)),
    *(
        (name, build, {})
        for build in BUILDERS.values()
        for name in ("num_layers", "dim", "num_heads", "intermediate_dim", "max_length", "window")
    ),
    ("num_classes", classifier, {}),
    *((name, Patches, PATCHES) for name in PATCHES),
    *(
        (name, build, {})
        for build in IMAGE_BUILDERS.values()
        for name in (
            "image_size",
            "patch_size",
            "num_layers",
            "dim",
            "num_heads",
            "channels",
            "intermediate_dim",
            "window",
        )
    ),
    ("num_classes", image_classifier, {}),
    ("context_dim", decoder, {}),
    ("source_vocab_size", seq2seq, {}),
    ("target_vocab_size", seq2seq, {}),
    ("num_decoder_layers", seq2seq, {}),
    ("dim", training.InverseSquareRoot, {}),
    ("warmup_steps", training.InverseSquareRoot, {"dim": 8}),
    ("total_steps", training.InverseSquareRoot, {"dim": 8, "cooldown_steps": 3}),
    ("cooldown_steps", training.InverseSquareRoot, {"dim": 8, "total_steps": 9}),
    ("warmup_steps", training.warmup_cosine, {"peak": 1.0, "total_steps": 9}),
    ("total_steps", training.warmup_cosine, {"peak": 1.0, "warmup_steps": 3}),
    ("length", training.next_token_windows, {"ids": np.arange(9)}),
    ("stride", training.next_token_windows, {"ids": np.arange(9), "length": 3}),
    ("max_new_tokens", generate, {"prompts": [[1]]}),
    ("max_new_tokens", answer, {"sources": [[1]]}),
]
RATES = [
    ("dropout", Attention, {"num_heads": 2}),
    ("dropout", Cross, {"num_heads": 2}),
    ("dropout", layers.FeedForward, {}),
    *(
        (name, cls, {"num_heads": 2})
        for cls in (Encoder, Decoder)
        for name in ("dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth")
    ),
    *((name, build, {}) for build in BUILDERS.values() for name in ("dropout", "stochastic_depth")),
    *(("dropout", build, {}) for build in IMAGE_BUILDERS.values()),
    ("label_smoothing", training.TokenCrossEntropy, {}),
]
POSITIVE = [
    *(
        (name, cls, {"num_heads": 2})
        for cls in (Attention, Cross, Encoder, Decoder)
        for name in ("scale", "logit_soft_cap", "norm_epsilon")
    ),
    *(("residual_scale", cls, {"num_heads": 2}) for cls in (Encoder, Decoder)),
    ("base", layers.Rotary, {}),
    ("fraction", layers.Rotary, {}),
    ("scale", training.InverseSquareRoot, {"dim": 8}),
    ("peak", training.warmup_cosine, {"warmup_steps": 3, "total_steps": 9}),
]
FACTORS = [("scale", Embedding, {"vocab_size": 11, "dim": 8}), ("scale_embedding", generator, {})]
SWITCHES = [
    *((name, Attention, {"num_heads": 2}) for name in ("causal", "use_bias", "sinks")),
    *((name, cls, {"num_heads": 2}) for cls in (Encoder, Decoder) for name in ("gated", "use_bias", "sinks")),
    ("causal", Encoder, {"num_heads": 2}),
    *(
        ("output_projection", function, {"num_heads": 2})
        for function in (Attention, Cross, Encoder, Decoder, generator)
    ),
    ("cross_attention", Decoder, {"num_heads": 2}),
    ("interleaved", layers.Rotary, {}),
    ("gated", layers.FeedForward, {}),
    ("bidirectional", layers.RelativeBias, {"num_heads": 2}),
    *((name, generator, {}) for name in ("tie_embeddings", "packed")),
    *((name, build, {}) for build in BUILDERS.values() for name in ("return_hidden_states", "return_attention_scores")),
    ("context_mask", decoder, {}),
    *((name, Patches, PATCHES) for name in ("class_token", "interpolate_positions", "use_bias")),
    *(
        (name, build, {})
        for build in IMAGE_BUILDERS.values()
        for name in (
            "return_hidden_states",
            "return_attention_scores",
            "class_token",
            "interpolate_positions",
            "patch_bias",
        )
    ),
]
NAMES = [
    ("position_encoding", Embedding, {"vocab_size": 11, "dim": 8}),
    ("combine", Embedding, {"vocab_size": 11, "dim": 8}),
    ("kind", layers.Pooling, {}),
    *(
        (name, cls, {"num_heads": 2})
        for cls in (Encoder, Decoder)
        for name in ("norm", "norm_placement", "position", "residual", "qk_norm")
    ),
    ("position", Attention, {"num_heads": 2}),
    ("pooling", classifier, {}),
    ("position_encoding", Patches, PATCHES),
    ("pooling", image_classifier, {}),
    *((name, image_classifier, {}) for name in ("position_encoding", "norm", "norm_placement", "position")),
    *((name, generator, {}) for name in ("position_encoding", "norm", "position")),
    ("sampler", generate, {"prompts": [[1]]}),
    ("sampler", answer, {"sources": [[1]]}),
]
LOOKED_UP = [
    *((name, cls, {"num_heads": 2}) for cls in (Encoder, Decoder) for name in ("activation", "kernel_initializer")),
    ("activation", layers.FeedForward, {}),
    ("activation", generator, {}),
    ("activation", image_classifier, {}),
    ("kernel_initializer", Patches, PATCHES),
]

KINDS = {
    "positive integer": (SIZES, (0, -3, 2.5, True, "4")),
    "in [0, 1)": (RATES, (1.0, -0.1, True, "0.5", float("nan"))),
    "positive number": (POSITIVE, (0, -1.0, True, "1", float("inf"))),
    "True, False or a positive number": (FACTORS, (0, -1.0, "yes", None)),
    "True or False": (SWITCHES, (1, "yes", None)),
    "one of": (NAMES, ("no such", 7)),
    "of Keras, its name, or a function": (LOOKED_UP, ("no such", 7, {})),
}


def rows():
    for expected, (arguments, values) in KINDS.items():
        for name, function, others in arguments:
            owner = getattr(function, "func", function).__name__
            # A builder hands most of its options to its layers, so that two values will do.
            values_here = values[:3:2] if function in {**BUILDERS, **IMAGE_BUILDERS}.values() else values
            yield pytest.param(function, others, name, expected, values_here, id=f"{owner}-{name}")


@pytest.mark.parametrize("function, others, name, expected, values", list(rows()))
def test_is_refused(function, others, name, expected, values):
    for value in values:
        refused(functools.partial(function, **{**others, name: value}), [expected, f"`{name}`", repr(value)])
