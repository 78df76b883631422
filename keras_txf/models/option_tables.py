"""The options that builders share beside those of their blocks: see `layers.option_tables`."""

from typing import Annotated, Any, TypedDict

import keras

from keras_txf import checks
from keras_txf.checks import or_none
from keras_txf.layers.option_tables import BlockOptions, CausalOptions, Each


class StackOptions(TypedDict, total=False):
    """Options of every builder."""

    share_blocks: Annotated[
        int | None,
        None,
        "number of distinct blocks: each stands at several places, one after the other, with the same weights: 4 "
        "layers of 2 blocks are A A B B (ALBERT has 1). Default `num_layers`: no block is shared. A list of values for "
        "each block then has so many.",
        or_none(checks.size),
    ]
    final_norm: Annotated[
        bool | None,
        None,
        'whether a norm follows the last block; default: unless the norms are "post".',
        or_none(checks.boolean),
    ]
    embedding_norm: Annotated[
        bool, False, "whether a norm follows the embedding, as in BERT and CLIP's image encoder.", checks.boolean
    ]
    dtype: Annotated[Any, None, "dtype policy of all layers; default Keras' own."]


class PositionedEmbeddingOptions(StackOptions, total=False):
    """Options of an embedding of tokens, whatever the tokenizer."""

    position_encoding: Annotated[
        str | None, "auto",
        'absolute positions at the embedding: "sinusoidal" (the paper\'s), "sinusoidal_halves" (Marian), '
        '"sinusoidal_inclusive" (Whisper), "sinusoidal_inclusive_from_2" (M2M100), "learned", "fixed" (a table that is '
        'not trained), or None. "auto" is the paper\'s, or None where `position` has attention see to it.',
    ]  # fmt: skip
    scale_embedding: Annotated[
        bool | float,
        True,
        "whether token embeddings are multiplied by sqrt(dim), as in the paper; or another factor.",
        checks.switch_or_factor,
    ]


class EmbeddingOptions(PositionedEmbeddingOptions, total=False):
    """Options of every builder that reads token ids."""

    max_length: Annotated[int | None, None, "longest input, and the number of learned or fixed positions."]
    pad_id: Annotated[int | None, 0, "the token of padding; None: no token is padding."]
    embedding: Annotated[
        keras.layers.Layer | None,
        None,
        "a `PositionalEmbedding` instead of the one that these options describe, for what a builder has no option for. "
        "The model gets a copy. A projection follows if its width is not `dim` (ELECTRA). The options of the embedding "
        "then keep their defaults.",
    ]


class EncoderOptions(BlockOptions, CausalOptions, EmbeddingOptions, total=False):
    """Options of the masked language model, which reads tokens alone."""

    token_types: Annotated[
        int | None, None, "number of kinds of tokens, each with a learned vector to add (BERT's sentences A and B)."
    ]


class SequenceEncoderOptions(EncoderOptions, total=False):
    """Options of the encoders of tokens or of float vectors."""

    input_dim: Annotated[
        int | None,
        None,
        "width F of float vectors in place of tokens, with vocab_size=None. The input is then `features`, float (B, T, "
        "F). Padding is told by a Keras mask, such as that of `keras.layers.Masking`, or in a dict of `features` and "
        "`features_mask`, bool (B, T), True at real vectors.",
    ]
    embedding: Annotated[
        keras.layers.Layer | None,
        None,
        "a `PositionalEmbedding` instead of the one that the options describe, or with `input_dim` a layer that takes "
        "the float vectors to (B, S, width) and brings its own positions, such as `AudioEmbedding`. The model gets a "
        "copy. A projection follows if its width is not `dim` (ELECTRA). The options of the embedding then keep their "
        "defaults.",
    ]


class ClassHeadOptions(TypedDict, total=False):
    """Options of what makes logits of classes."""

    head: Annotated[
        Any,
        None,
        'what stands before the logits: the activation of a Dense layer of width `dim`, "tanh" in BERT, or a layer, of '
        "which the model gets a copy. Default: nothing.",
    ]
    head_dropout: Annotated[float, 0.0, "rate on what the logits are made of.", checks.rate]


class SequenceHeadOptions(ClassHeadOptions, total=False):
    """Options of what makes logits of a whole sequence."""

    pooling: Annotated[
        Any,
        "mean",
        'how a sequence becomes one vector: "mean", "first", "last" or another `kind` of `Pooling`; or a layer, called '
        "on (B, T, D) and, if it takes it, `mask`, of which the model gets a copy.",
    ]
    logit_bias: Annotated[bool, True, "whether each class has a bias.", checks.boolean]


class MaskedHeadOptions(TypedDict, total=False):
    """Options of what makes logits of hidden tokens."""

    head: Annotated[
        Any,
        "gelu",
        "what stands before the logits: the activation of a Dense layer as wide as the embedding, which a norm "
        "follows, or a layer, of which the model gets a copy. None: nothing (EuroBERT).",
    ]
    tie_embeddings: Annotated[
        bool, True, "whether the logits use the transposed embedding or a Dense layer of their own.", checks.boolean
    ]
    logit_bias: Annotated[bool, True, "whether each token of the vocabulary has a bias.", checks.boolean]


class LogitOptions(TypedDict, total=False):
    """Options of what makes the logits of the next token."""

    tie_embeddings: Annotated[
        bool,
        True,
        "whether the logits use the transposed embedding (the paper does) or a Dense layer of their own.",
        checks.boolean,
    ]
    logit_adjustment: Annotated[
        keras.layers.Layer | None,
        None,
        "a `LogitAdjustment` after the logits, of which the model gets a copy: a factor (T5), a bias for each token "
        "(BART) or a soft cap (Gemma 2).",
    ]


class GeneratorHeadOptions(LogitOptions, total=False):
    """Options of what makes the logits of the next token, and of what stands before the logits."""

    head: Annotated[
        Any,
        None,
        "what stands before the logits: the activation of a Dense layer of width `dim`, which a norm follows, or a "
        "layer, of which the model gets a copy (ModernBERT's decoder). Default: nothing.",
    ]


class DecoderOptions(BlockOptions, EmbeddingOptions, total=False):
    """Options of the decoders, and of an encoder-decoder."""


class ContextOptions(DecoderOptions, total=False):
    """Options of the decoders that attend to a context."""

    cross_attention: Annotated[
        Any,
        None,
        "of decoders: a layer in place of the cross-attention, called on (B, T, D), the context and, if it takes it, "
        "`context_mask`. It decodes as `CrossAttention` does if it has `project_context`.",
    ]


class SequenceClassifierOptions(SequenceEncoderOptions, SequenceHeadOptions, total=False):
    """Options of `encoder_classifier`."""


class TokenClassifierOptions(SequenceEncoderOptions, ClassHeadOptions, total=False):
    """Options of `token_classifier` and `span_classifier`."""


class EncoderDecoderClassifierOptions(ContextOptions, ClassHeadOptions, total=False):
    """Options of `encoder_decoder_classifier`."""


class MaskedLanguageModelOptions(EncoderOptions, MaskedHeadOptions, total=False):
    """Options of `masked_language_model`."""


class ContextDecoderOptions(ContextOptions, LogitOptions, total=False):
    """Options of `decoder` and `encoder_decoder`."""


class GeneratorOptions(DecoderOptions, GeneratorHeadOptions, total=False):
    """Options of `decoder_generator`."""


class ImageOptions(BlockOptions, CausalOptions, StackOptions, total=False):
    """Options of the encoders of images."""

    position_encoding: Annotated[
        str | None,
        "auto",
        'positions of patches: "learned", "sinusoidal", or None. "auto" is "learned", or None where `position` has '
        "attention see to it.",
    ]
    norm_placement: Annotated[Each[str], "pre", '"pre", the paper\'s, "post" or "sandwich", see `EncoderBlock`.']
    activation: Annotated[
        Any, "gelu", "of the feed-forward network, the paper's; any Keras activation, see `EncoderBlock`."
    ]
    class_token: Annotated[
        bool | str,
        "auto",
        'whether a learned token stands before the patches; "auto": it does, in a classifier if `pooling` is "first", '
        '"others" or "first_and_others".',
    ]
    distillation_token: Annotated[
        bool, False, "whether a second learned token stands between the class token and the patches (DeiT)."
    ]
    register_tokens: Annotated[
        int, 0, "number of learned tokens after these, without positions, that no pooling reads (DINOv3)."
    ]
    interpolate_positions: Annotated[
        bool, False, "whether images of other sizes are taken, and learned positions are interpolated for them."
    ]
    patch_bias: Annotated[bool, True, "whether the projection of patches has a bias."]
    drop_remainder: Annotated[
        bool,
        False,
        "whether pixels at the right and at the bottom that fill no patch are dropped, as a convolution does (SigLIP); "
        "else images of such a size are refused.",
    ]
    embeddings_initializer: Annotated[
        Any, None, "of positions and of the tokens before the patches; default normal with standard deviation 0.02."
    ]


class DualEncoderOptions(BlockOptions, StackOptions, total=False):
    """Options of both towers of a dual encoder."""

    norm_placement: Annotated[Each[str], "pre", '"pre", CLIP\'s, "post" or "sandwich", see `EncoderBlock`.']
    activation: Annotated[
        Any, "gelu_sigmoid", "of the feed-forward network, CLIP's; any Keras activation, see `EncoderBlock`."
    ]
