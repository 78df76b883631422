"""The options of `fit` and `compile`, and of `from_scratch` of each task; see `layers.shown_options`.

The tables leave out the options that a task decides, such as the id of padding.
"""

from typing import Annotated, Any, TypedDict

from keras_txf.layers.option_tables import BlockOptions, CausalOptions, Each
from keras_txf.layers.positions import TABLES
from keras_txf.layers.shown_options import default_options, meaning
from keras_txf.models.option_tables import (
    ClassHeadOptions,
    GeneratorHeadOptions,
    LogitOptions,
    MaskedHeadOptions,
    PositionedEmbeddingOptions,
    SequenceHeadOptions,
)
from keras_txf.models.options import each_value

VOCAB_SIZE = "the largest number of tokens of a new tokenizer."
MAX_LENGTH = "truncates longer texts: the largest number of tokens of an example."
NUM_LAYERS, DIM = "number of blocks.", "model width."


class ScratchOptions(TypedDict, total=False):
    """Options of `from_scratch` of every task."""

    vocab_size: Annotated[int, 8000, VOCAB_SIZE]
    tokenizer: Annotated[Any, None, "a tokenizer instead of a new one."]
    max_length: Annotated[int, 256, MAX_LENGTH]
    num_layers: Annotated[int, 2, NUM_LAYERS]
    dim: Annotated[int, 128, DIM]
    num_heads: Annotated[int, 4, "number of query heads."]


class LargerScratchOptions(ScratchOptions, total=False):
    """Options of `from_scratch` for a larger model."""

    num_layers: Annotated[int, 4, NUM_LAYERS]
    dim: Annotated[int, 256, DIM]


class EncoderTaskOptions(BlockOptions, CausalOptions, PositionedEmbeddingOptions, total=False):
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


class FitOptions(TypedDict, total=False):
    """Options of every task's `fit`."""

    columns: Annotated[Any, None, "names of the columns, if the first argument is a table or a file of all columns."]
    validation_data: Annotated[Any, None, "a tuple of columns, or a table, for the scores of each epoch."]
    validation_split: Annotated[float, 0.0, "share of the examples to hold out for these scores, drawn with `seed`."]
    epochs: Annotated[int, 3, "passes over the data."]
    initial_epoch: Annotated[int, 0, "the number of completed epochs, such as `epoch` of `txf.training.Resume`."]
    batch_size: Annotated[int, 32, "examples in a batch, which have similar lengths to need little padding."]
    learning_rate: Annotated[
        float | None,
        None,
        "peak of the learning rate of AdamW, which grows for a tenth of the steps and falls by a cosine to 0. Default "
        "5e-5 for a checkpoint, else 1e-3. Leave it out for a task that you compiled.",
    ]
    callbacks: Annotated[Any, (), "Keras callbacks; the logs have the scores."]
    seed: Annotated[int, 0, "seed of the choice of held-out examples, and of the order of the other examples."]
    verbose: Annotated[Any, "auto", "as in `keras.Model.fit`."]


class CompileOptions(TypedDict, total=False):
    """Options of Keras' `compile`."""

    loss_weights: Annotated[Any, None, "factors on the losses of a model with several losses."]
    weighted_metrics: Annotated[Any, None, "metrics that weigh the examples."]
    run_eagerly: Annotated[bool, False, "whether steps run in Python, for debugging."]
    steps_per_execution: Annotated[int, 1, "number of steps in a compiled call."]
    jit_compile: Annotated[bool | str, "auto", "whether XLA compiles the step."]
    auto_scale_loss: Annotated[bool, True, "whether the loss is scaled under float16."]


def builder_options(options, tokenizer, max_length, position=None):
    """Returns the options of a builder, with the id of padding and the number of learned positions.

    A layer that is passed as `attention` has its own heads and its own `position`: it replaces the defaults of the
    task, `num_heads` and `position`.
    """
    learned = {"max_length": max_length} if options["position_encoding"] in TABLES else {}
    options = {**options, "pad_id": tokenizer.pad_id, **learned}
    if all(layer is not None for layer in each_value(options["attention"])):
        defaults = {"num_heads": default_options(ScratchOptions)["num_heads"], "position": position}
        options.update({name: None for name, default in defaults.items() if options[name] == default})
    return options
