"""The options of `load`: options of the file, and of the builders; see `layers.shown_options`.

The options of blocks among them change no weight, so the tensors of any file fit them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from keras_txf.layers.option_tables import BlockOptions, CausalOptions, Each
from keras_txf.layers.shown_options import meaning
from keras_txf.models.option_tables import ImageOptions, SequenceEncoderOptions, SequenceHeadOptions


class CheckpointOptions(TypedDict, total=False):
    """Options of `load` for the models of tasks."""

    dtype: Annotated[
        Any,
        None,
        "dtype policy of the layers; default Keras' own. `load` converts the weights. "
        '"auto" is the type of most numbers in the file: "float32", "bfloat16" or "float16". The weights of that type '
        "then equal the file bit for bit.",
    ]
    pad_id: Annotated[
        int | None,
        0,
        "the token of padding; None: no token is padding. If `pad_token_id` of a decoder also ends texts, no token is "
        'padding, because transformers attends to it too. For "sequence_classification" it is padding everywhere: the '
        "logits are of the last other token, as in transformers.",
    ]
    ignore: Annotated[
        Sequence[str],
        (),
        "list of str, keys of `config.json` to leave out, such as a key that an error names; "
        '"rope_scaling.factor" is a key within another key. The model then lacks what these keys ask for, and `save` '
        "does not write them.",
    ]
    revision: Annotated[str | None, None, "branch, tag or commit on the Hub."]
    progress: Annotated[bool | None, None, "whether to show a progress bar; default: for large files."]
    dropout: Annotated[Each[float], 0.1, meaning(BlockOptions, "dropout")]
    attention_dropout: Annotated[Each[float], 0.0, "rate on the attention weights."]
    feed_forward_dropout: Annotated[Each[float], 0.0, "rate inside the feed-forward network."]
    embedding_dropout: Annotated[float | None, None, "rate after the embedding; default `dropout`."]
    stochastic_depth: Annotated[
        Each[float],
        0.0,
        "rate at which training leaves out a sublayer, sample by sample; one number is the last block's, and grows "
        "from block to block.",
    ]
    position: Annotated[Each[Any], None, meaning(BlockOptions, "position")]
    causal: Annotated[Each[bool], False, meaning(CausalOptions, "causal")]
    window: Annotated[Each[int | None], None, meaning(BlockOptions, "window")]
    masked_id: Annotated[int | None, None, "of ESM: the token that hides others; None: it is an ordinary token."]


class ClassifierCheckpointOptions(CheckpointOptions, SequenceHeadOptions, total=False):
    """Options of `load` for a classifier; the options of the head are for a new head."""


class LoadOptions(ClassifierCheckpointOptions, total=False):
    """Options of `load` for every task."""

    max_length: Annotated[int | None, None, meaning(SequenceEncoderOptions, "max_length")]
    final_logit_soft_cap: Annotated[float | None, None, "of decoders: c bends the logits to c · tanh(logits / c)."]
    start_id: Annotated[int | None, None, "of encoder-decoders: the first token of every target."]
    token_type_ids: Annotated[bool, False, "of encoders: whether there is an input of token types."]
    packed: Annotated[bool, False, "whether rows hold several sequences."]
    return_hidden_states: Annotated[bool, False, "whether the hidden states are outputs too."]
    return_attention_scores: Annotated[bool, False, "whether the attention scores are outputs too."]
    image_size: Annotated[int | tuple[int, int], 224, "of images: height and width, or one number for both."]
    interpolate_positions: Annotated[bool, False, meaning(ImageOptions, "interpolate_positions")]
    name: Annotated[str, "", "name of the model; default that of the builder."]
