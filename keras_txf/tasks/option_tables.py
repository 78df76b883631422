"""The options of tasks, beside those of `fit`: of their builders, and of checkpoints; see `layers.shown_options`.

Left out are options that a task knows itself, such as the id of padding.
"""

from typing import Annotated, Any, TypedDict

from keras_txf.layers.option_tables import BlockOptions, CausalOptions, ConvolutionOptions, Each
from keras_txf.layers.shown_options import meaning
from keras_txf.models.option_tables import (
    ClassHeadOptions,
    GeneratorHeadOptions,
    LogitOptions,
    MaskedHeadOptions,
    PositionedEmbeddingOptions,
    SequenceHeadOptions,
)

VOCAB_SIZE = "the largest number of tokens of a new tokenizer."
MAX_LENGTH = "truncates longer texts: the largest number of tokens of an example."
NUM_LAYERS, DIM = "number of blocks.", "model width."


class ScratchOptions(TypedDict, total=False):
    """Options of `from_scratch`, whatever the builder."""

    vocab_size: Annotated[int, 8000, VOCAB_SIZE]
    tokenizer: Annotated[Any, None, "a tokenizer in place of a new one."]
    max_length: Annotated[int, 256, MAX_LENGTH]
    num_layers: Annotated[int, 2, NUM_LAYERS]
    dim: Annotated[int, 128, DIM]
    num_heads: Annotated[int, 4, "number of query heads."]


class LargerScratchOptions(ScratchOptions, total=False):
    """Options of `from_scratch` for a larger model."""

    num_layers: Annotated[int, 4, NUM_LAYERS]
    dim: Annotated[int, 256, DIM]


class EncoderTaskOptions(BlockOptions, CausalOptions, ConvolutionOptions, PositionedEmbeddingOptions, total=False):
    """Options of an encoder."""


class EmbedderOptions(ScratchOptions, EncoderTaskOptions, total=False):
    """Options of an embedder."""


class SequenceTaskOptions(ScratchOptions, EncoderTaskOptions, SequenceHeadOptions, total=False):
    """Options of a classifier of texts, or of pairs of texts."""


class TokenTaskOptions(ScratchOptions, EncoderTaskOptions, ClassHeadOptions, total=False):
    """Options of a classifier of tokens."""


class SpanTaskOptions(TokenTaskOptions, total=False):
    """Options of a classifier of spans."""

    max_length: Annotated[int, 384, MAX_LENGTH]


class MaskedTaskOptions(LargerScratchOptions, EncoderTaskOptions, MaskedHeadOptions, total=False):
    """Options of a masked language model."""

    max_length: Annotated[int, 128, MAX_LENGTH]


class GeneratorTaskOptions(
    LargerScratchOptions, BlockOptions, PositionedEmbeddingOptions, GeneratorHeadOptions, total=False
):
    """Options of a generator, with other defaults than the paper's."""

    position: Annotated[Each[Any], "rotary", meaning(BlockOptions, "position")]
    norm_placement: Annotated[Each[str], "pre", meaning(BlockOptions, "norm_placement")]


class TextToTextOptions(LargerScratchOptions, BlockOptions, PositionedEmbeddingOptions, LogitOptions, total=False):
    """Options of an encoder-decoder, with another default than the paper's."""

    norm_placement: Annotated[Each[str], "pre", meaning(BlockOptions, "norm_placement")]
    num_layers: Annotated[int, 3, NUM_LAYERS]
    max_length: Annotated[int, 128, MAX_LENGTH]
    num_decoder_layers: Annotated[int | None, None, "number of blocks of the decoder; default `num_layers`."]
    start_id: Annotated[
        int | None, None, "the token that every target begins with; default the first of the tokenizer's `start`."
    ]
    encoder_options: Annotated[dict[str, Any] | None, None, "options of the encoder alone."]
    decoder_options: Annotated[dict[str, Any] | None, None, "options of the decoder alone."]


class CompileOptions(TypedDict, total=False):
    """Options of Keras' `compile`."""

    loss_weights: Annotated[Any, None, "factors on the losses of a model with several."]
    weighted_metrics: Annotated[Any, None, "metrics that the weights of the examples count for."]
    run_eagerly: Annotated[bool, False, "whether steps run in Python, to debug them."]
    steps_per_execution: Annotated[int, 1, "steps of a compiled call."]
    jit_compile: Annotated[bool | str, "auto", "whether XLA compiles the step."]
    auto_scale_loss: Annotated[bool, True, "whether the loss is scaled under float16."]
