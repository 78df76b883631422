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
BLOCKS, SEQUENCES, IMAGES = (Encoder, Decoder), BUILDERS.values(), IMAGE_BUILDERS.values()
concatenated = functools.partial(Embedding, combine="concat")
cooling = functools.partial(training.InverseSquareRoot, total_steps=9, cooldown_steps=3)
# What else a layer or function needs.
NEEDS = {
    **dict.fromkeys([Attention, Cross, Encoder, Decoder, layers.RelativeBias, layers.ALiBi], {"num_heads": 2}),
    **dict.fromkeys([Embedding, concatenated], {"vocab_size": 11, "dim": 8}),
    Patches: {"patch_size": 2, "dim": 8, "image_size": 6},
    **dict.fromkeys([training.InverseSquareRoot, cooling], {"dim": 8}),
    training.warmup_cosine: {"peak": 1.0, "warmup_steps": 3, "total_steps": 9},
    training.next_token_windows: {"ids": np.arange(9), "length": 3},
    generate: {"prompts": [[1]]},
    answer: {"sources": [[1]]},
}
BLOCK_SIZES = "num_heads intermediate_dim head_dim num_key_value_heads window"
IMAGE_SIZES = "image_size patch_size num_layers dim num_heads channels intermediate_dim window"
OUTPUTS = "return_hidden_states return_attention_scores"
MODEL_SIZES = "num_layers dim num_heads intermediate_dim max_length window"

# What is expected: the values that are not, and names of arguments by their functions. Each size is there once.
KINDS = {
    "positive integer": ((0, -3, 2.5, True, "4"), [
        (Attention, "num_heads head_dim num_key_value_heads window"), (Cross, "num_heads head_dim num_key_value_heads"),
        *((block, BLOCK_SIZES) for block in BLOCKS), (layers.FeedForward, "intermediate_dim"),
        (Embedding, "vocab_size dim max_length"), (layers.ALiBi, "num_heads"),
        (layers.RelativeBias, "num_heads num_buckets max_distance"), (Patches, "patch_size dim image_size"),
        *((build, "vocab_size") for build in (encoder, classifier, decoder, generator)),
        *((build, MODEL_SIZES) for build in SEQUENCES), *((build, IMAGE_SIZES) for build in IMAGES),
        (classifier, "num_classes"), (image_classifier, "num_classes"), (decoder, "context_dim"),
        (seq2seq, "source_vocab_size target_vocab_size num_decoder_layers"),
        (concatenated, "position_dim"), (training.InverseSquareRoot, "dim warmup_steps"),
        (cooling, "total_steps cooldown_steps"), (training.warmup_cosine, "warmup_steps total_steps"),
        (training.next_token_windows, "length stride"), (generate, "max_new_tokens"), (answer, "max_new_tokens"),
    ]),
    "in [0, 1)": ((1.0, -0.1, True, "0.5", float("nan")), [
        *((layer, "dropout") for layer in (Attention, Cross, layers.FeedForward, *IMAGES)),
        *((block, "dropout") for block in BLOCKS), *((build, "dropout") for build in SEQUENCES),
        (layers.Residual, "stochastic_depth"),
        (training.TokenCrossEntropy, "label_smoothing"),
    ]),
    "positive number": ((0, -1.0, True, "1", float("inf")), [
        *((layer, "scale logit_soft_cap norm_epsilon") for layer in (Attention, Cross)),
        *((block, "norm_epsilon") for block in BLOCKS), (layers.Rotary, "base fraction"),
        (layers.Residual, "scale layer_scale"),
        (training.InverseSquareRoot, "scale"), (training.warmup_cosine, "peak"),
    ]),
    "True, False or a positive number": ((0, -1.0, "yes"), [
        (Embedding, "scale"), (generator, "scale_embedding"),
    ]),
    "True or False": ((1, "yes", None), [
        (Attention, "causal use_bias sinks output_gate output_projection"), (Encoder, "causal gated use_bias"),
        (Decoder, "gated use_bias cross_attention"), (layers.FeedForward, "gated"), (Cross, "output_projection"),
        (layers.Rotary, "interleaved"), (layers.RelativeBias, "bidirectional"), (decoder, "context_mask"),
        (generator, "tie_embeddings packed"),
        (Patches, "class_token interpolate_positions use_bias"), *((build, OUTPUTS) for build in (*SEQUENCES, *IMAGES)),
        *((build, "class_token interpolate_positions patch_bias") for build in IMAGES),
    ]),
    "one of": (("no such", 7), [
        (Embedding, "position_encoding combine"), (layers.Pooling, "kind"), (Attention, "position"),
        *((block, "norm norm_placement position residual") for block in BLOCKS), (classifier, "pooling"),
        (Attention, "qk_norm"), (layers.Residual, "kind"),
        (Patches, "position_encoding"), (image_classifier, "pooling position_encoding norm norm_placement position"),
        (generator, "position_encoding norm position"), (generate, "sampler"), (answer, "sampler"),
    ]),
    "of Keras, its name, or a function": (("no such", 7, {}), [
        *((block, "activation kernel_initializer") for block in BLOCKS), (Patches, "kernel_initializer"),
        *((function, "activation") for function in (layers.FeedForward, generator, image_classifier)),
    ]),
}  # fmt: skip


def rows():
    for expected, (values, functions) in KINDS.items():
        for function, names in functions:
            owner = getattr(function, "func", function).__name__
            # A builder hands most of its options to its layers, so that two values will do.
            own = values[:3:2] if function in {*SEQUENCES, *IMAGES} else values
            for name in names.split():
                yield pytest.param(function, name, expected, own, id=f"{owner}-{name}")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("function, name, expected, values", [*rows()])
def test_is_refused(function, name, expected, values):
    for value in values:
        refused(lambda: function(**{**NEEDS.get(function, {}), name: value}), [expected, f"`{name}`", repr(value)])
