"""The options of tasks, beside those of `fit`: of their builders, and of checkpoints; see `layers.shown_options`.

Left out are options that a task knows itself, such as the id of padding.
"""

from typing import Annotated, Any, TypedDict

from keras_txf.checkpoints.option_tables import CheckpointOptions
from keras_txf.layers.option_tables import BlockOptions, CausalOptions, ConvolutionOptions, Each
from keras_txf.models.option_tables import (
    ClassHeadOptions,
    GeneratorHeadOptions,
    LogitOptions,
    MaskedHeadOptions,
    PositionedEmbeddingOptions,
    SequenceHeadOptions,
)


class EmbedderOptions(BlockOptions, CausalOptions, ConvolutionOptions, PositionedEmbeddingOptions, total=False):
    """Options of an encoder."""


class SequenceTaskOptions(SequenceHeadOptions, EmbedderOptions, total=False):
    """Options of a classifier of texts, or of pairs of texts."""


class TokenTaskOptions(ClassHeadOptions, EmbedderOptions, total=False):
    """Options of a classifier of tokens, or of spans."""


class MaskedTaskOptions(MaskedHeadOptions, EmbedderOptions, total=False):
    """Options of a masked language model."""


class GeneratorTaskOptions(GeneratorHeadOptions, BlockOptions, PositionedEmbeddingOptions, total=False):
    """Options of a generator, with other defaults than the paper's."""

    position: Annotated[Each[Any], "rotary", BlockOptions.__annotations__["position"].__metadata__[1]]
    norm_placement: Annotated[Each[str], "pre", BlockOptions.__annotations__["norm_placement"].__metadata__[1]]


class TextToTextOptions(LogitOptions, BlockOptions, PositionedEmbeddingOptions, total=False):
    """Options of an encoder-decoder, with another default than the paper's."""

    norm_placement: Annotated[Each[str], "pre", BlockOptions.__annotations__["norm_placement"].__metadata__[1]]
    num_decoder_layers: Annotated[int | None, None, "number of blocks of the decoder; default `num_layers`."]
    start_id: Annotated[
        int | None, None, "the token that every target begins with; default the first of the tokenizer's `start`."
    ]
    encoder_options: Annotated[dict[str, Any] | None, None, "options of the encoder alone."]
    decoder_options: Annotated[dict[str, Any] | None, None, "options of the decoder alone."]


class ClassifierCheckpointOptions(SequenceHeadOptions, CheckpointOptions, total=False):
    """Options of `txf.checkpoints.load` for a classifier."""


class CompileOptions(TypedDict, total=False):
    """Options of Keras' `compile`."""

    loss_weights: Annotated[Any, None, "factors on the losses of a model with several."]
    weighted_metrics: Annotated[Any, None, "metrics that the weights of the examples count for."]
    run_eagerly: Annotated[bool, False, "whether steps run in Python, to debug them."]
    steps_per_execution: Annotated[int, 1, "steps of a compiled call."]
    jit_compile: Annotated[bool | str, "auto", "whether XLA compiles the step."]
    auto_scale_loss: Annotated[bool, True, "whether the loss is scaled under float16."]
