"""The options of `load`: those of the file, and of the builders; see `layers.shown_options`."""

from collections.abc import Sequence
from typing import Annotated, Any

from keras_txf.layers.option_tables import BlockOptions, CausalOptions, ConvolutionOptions
from keras_txf.models.option_tables import (
    GeneratorHeadOptions,
    ImageOptions,
    PositionedEmbeddingOptions,
    SequenceHeadOptions,
)


class CheckpointOptions(BlockOptions, CausalOptions, ConvolutionOptions, PositionedEmbeddingOptions, total=False):
    """Options of `load` for the models of tasks."""

    dtype: Annotated[
        Any,
        None,
        'dtype policy of the model; default Keras\' own. `load` converts the weights. "auto" is the type of the file: '
        '"float32", "bfloat16" or "float16", whichever most of its numbers have. The weights are then those of the '
        "file bit for bit, but for weights of another type than most, and for Gemma's norms, 1 + w here.",
    ]
    progress: Annotated[bool | None, None, "whether to show a progress bar; default: for large files."]
    revision: Annotated[str | None, None, "branch, tag or commit on the Hub."]
    ignore: Annotated[
        Sequence[str],
        (),
        "keys of `config.json` that are left out of it, such as one that an error names. The model then lacks what "
        "they ask for, and `save` does not write them.",
    ]
    pad_id: Annotated[
        int | None,
        0,
        "the token of padding; None: no token is padding. Where `pad_token_id` of a decoder also ends texts, no token "
        'is padding: transformers attends to it too. Only for "sequence_classification" it is padding wherever it '
        "stands: the logits are of the last other token, in transformers too.",
    ]
    masked_id: Annotated[int | None, None, "of encoders: the token that hides others (ESM)."]


class LoadOptions(ImageOptions, SequenceHeadOptions, GeneratorHeadOptions, CheckpointOptions, total=False):
    """Options of `load` for every task."""

    max_length: Annotated[
        int | None, None, "number of learned positions; longer input is refused whatever `position_encoding`."
    ]
    token_types: Annotated[int | None, None, "number of kinds of tokens, each with a learned vector to add."]
    start_id: Annotated[int | None, None, "of encoder-decoders: the token that every target begins with."]
    distillation_head: Annotated[bool, False, "of images: whether a second head reads the distillation token (DeiT)."]
    pooling_norm: Annotated[bool, False, "of images: whether a norm follows the pooling (BEiT)."]
    token_type_ids: Annotated[bool, False, "of encoders: whether there is an input of token types."]
    packed: Annotated[bool, False, "whether rows hold several sequences."]
    return_hidden_states: Annotated[bool, False, "whether the hidden states are outputs too."]
    return_attention_scores: Annotated[bool, False, "whether the attention scores are outputs too."]
    name: Annotated[str, None, "name of the model; default that of the builder."]
