"""The options that builders share, in addition to the options of their blocks; see `layers.option_tables`."""

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
        "number of distinct blocks. Consecutive layers then share a block and its weights: 4 layers of 2 blocks are "
        "A A B B (ALBERT has 1). Default `num_layers`: no layers share a block. A list of values for the blocks has "
        "this length.",
        or_none(checks.size),
    ]
    final_norm: Annotated[
        bool | None,
        None,
        'whether a norm follows the last block; default: True unless norm_placement="post".',
        or_none(checks.boolean),
    ]
    embedding_norm: Annotated[
        bool, False, "whether a norm follows the embedding, as in BERT and CLIP's image encoder.", checks.boolean
    ]
    dtype: Annotated[Any, None, "dtype policy of all layers; default: Keras' default policy."]


class PositionedEmbeddingOptions(StackOptions, total=False):
    """Options of an embedding of tokens, whatever the tokenizer."""

    position_encoding: Annotated[
        str | None, "auto",
        'absolute positions at the embedding: "sinusoidal" (the paper\'s), "sinusoidal_halves" (Marian), '
        '"sinusoidal_inclusive" (Whisper), "sinusoidal_inclusive_from_2" (M2M100), "learned", "fixed" (a table that is '
        'not trained), or None. "auto" is None if attention has a `position`, else "sinusoidal".',
    ]  # fmt: skip
    scale_embedding: Annotated[
        bool | float,
        True,
        "whether token embeddings are multiplied by sqrt(dim), as in the paper; or a number as the factor.",
        checks.switch_or_factor,
    ]


class EmbeddingOptions(PositionedEmbeddingOptions, total=False):
    """Options of every builder that reads token ids."""

    max_length: Annotated[int | None, None, "longest input, and the number of learned or fixed positions."]
    pad_id: Annotated[int | None, 0, "the padding token; None: no token is padding."]
    embedding: Annotated[
        keras.layers.Layer | None,
        None,
        "a `PositionalEmbedding` that replaces the builder's embedding, with options that a builder does not have. The "
        "model gets a copy. A projection follows if its width is not `dim` (ELECTRA). The options of the embedding "
        "then keep their defaults.",
    ]


class PaperBlockOptions(BlockOptions, total=False):
    """Options of blocks whose norms have the paper's place by default."""

    norm_placement: Annotated[
        Each[str | None],
        None,
        'where the norms of a sublayer f are: "post", "pre", "sandwich" or "res_post", see `EncoderBlock`. Default: '
        '"post", as in the paper. More than 6 such blocks learn slowly or not at all unless the learning rate warms '
        "up, so a builder of them warns if you pass no value.",
    ]


class EncoderOptions(PaperBlockOptions, CausalOptions, EmbeddingOptions, total=False):
    """Options of the masked language model, which reads tokens alone."""

    token_types: Annotated[
        int | None, None, "number of token types, each with a learned vector that is added (BERT's sentences A and B)."
    ]


class SequenceEncoderOptions(EncoderOptions, total=False):
    """Options of the encoders of tokens or of float vectors."""

    input_dim: Annotated[
        int | None,
        None,
        "width F of float vectors instead of tokens, with vocab_size=None. The input is then `features`, float (B, T, "
        "F). A Keras mask marks the padding, such as the mask of `keras.layers.Masking`. Or the input is a dict of "
        "`features` and `features_mask`, bool (B, T), True at real vectors.",
    ]
    embedding: Annotated[
        keras.layers.Layer | None,
        None,
        "a `PositionalEmbedding` that replaces the builder's embedding. With `input_dim`: a layer with its own "
        "positions that takes the float vectors to (B, S, width), such as `AudioEmbedding` or `WaveformEmbedding`. The "
        "model gets a copy. A projection follows if its width is not `dim` (ELECTRA). The options of the embedding "
        "then keep their defaults.",
    ]


class ClassHeadOptions(TypedDict, total=False):
    """Options of the head for logits of classes."""

    head: Annotated[
        Any,
        None,
        'the layer before the logits: an activation for a Dense layer of width `dim`, such as "tanh" in BERT; or a '
        "layer, which the model copies. Default: no layer.",
    ]
    head_dropout: Annotated[float, 0.0, "dropout rate of the input of the logits.", checks.rate]


class SequenceHeadOptions(ClassHeadOptions, total=False):
    """Options of the head for logits of a whole sequence."""

    pooling: Annotated[
        Any,
        "mean",
        'how a sequence becomes one vector: "mean", "first", "last" or another `kind` of `Pooling`; or a layer, which '
        "the model copies. The layer is called on (B, T, D), and on `mask` if its `call` has this argument.",
    ]
    logit_bias: Annotated[bool, True, "whether each class has a bias.", checks.boolean]


class MaskedHeadOptions(TypedDict, total=False):
    """Options of the head for logits of masked tokens."""

    head: Annotated[
        Any,
        "gelu",
        "the layers before the logits: an activation for a Dense layer as wide as the embedding, and a norm; or a "
        "layer, which the model copies. None: no layer (EuroBERT).",
    ]
    tie_embeddings: Annotated[
        bool, True, "whether the logits use the transposed embedding, or a separate Dense layer.", checks.boolean
    ]
    logit_bias: Annotated[bool, True, "whether each token of the vocabulary has a bias.", checks.boolean]


class LogitOptions(TypedDict, total=False):
    """Options of the logits of the next token."""

    tie_embeddings: Annotated[
        bool,
        True,
        "whether the logits use the transposed embedding, as in the paper, or a separate Dense layer.",
        checks.boolean,
    ]
    logit_adjustment: Annotated[
        keras.layers.Layer | None,
        None,
        "a `LogitAdjustment` after the logits, which the model copies: a factor (T5), a bias for each token (BART) or "
        "a soft cap (Gemma 2). Default: none.",
    ]


class GeneratorHeadOptions(LogitOptions, total=False):
    """Options of the head for the logits of the next token."""

    head: Annotated[
        Any,
        None,
        "the layers before the logits: an activation for a Dense layer of width `dim`, and a norm; or a layer, which "
        "the model copies (ModernBERT's decoder). Default: no layer.",
    ]


class DecoderOptions(PaperBlockOptions, EmbeddingOptions, total=False):
    """Options of the decoders, and of an encoder-decoder."""


class ContextOptions(DecoderOptions, total=False):
    """Options of the decoders that attend to a context."""

    cross_attention: Annotated[
        Any,
        None,
        "a layer instead of the decoder's cross-attention. The layer is called on (B, T, D) and the context, and on "
        "`context_mask` if its `call` has this argument. A layer with a method `project_context` decodes, as "
        "`CrossAttention` does.",
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
        'positions of patches: "learned", "sinusoidal", "fixed" (a table that is not trained), or None. "auto" is None '
        'if attention has a `position`, else "learned".',
    ]
    norm_placement: Annotated[
        Each[str], "pre", '"pre", as in the paper, "post", "sandwich" or "res_post", see `EncoderBlock`.'
    ]
    activation: Annotated[
        Any, "gelu", "activation of the feed-forward network, as in the paper; see `EncoderBlock` for others."
    ]
    class_token: Annotated[
        bool | str,
        "auto",
        'whether a learned class token precedes the patches. "auto" is True; in a classifier it is True if `pooling` '
        'is "first", "others" or "first_and_others".',
    ]
    distillation_token: Annotated[
        bool, False, "whether a learned distillation token follows the class token, before the patches (DeiT)."
    ]
    register_tokens: Annotated[
        int,
        0,
        "number of learned register tokens before the patches, without positions; no pooling reads them (DINOv3).",
    ]
    interpolate_positions: Annotated[
        bool, False, "whether the model accepts images of other sizes, and interpolates the learned positions."
    ]
    patch_bias: Annotated[bool, True, "whether the projection of patches has a bias."]
    drop_remainder: Annotated[
        bool,
        False,
        "whether to drop pixels at the right and at the bottom that fill no patch, as a convolution does (SigLIP). "
        "With False such an image raises ValueError.",
    ]
    embeddings_initializer: Annotated[
        Any,
        None,
        "initializer of positions and of the tokens before the patches; default: normal with standard deviation 0.02.",
    ]


class DualEncoderOptions(BlockOptions, StackOptions, total=False):
    """Options of both towers of a dual encoder."""

    norm_placement: Annotated[
        Each[str], "pre", '"pre", as in CLIP, "post", "sandwich" or "res_post", see `EncoderBlock`.'
    ]
    activation: Annotated[
        Any, "gelu_sigmoid", "activation of the feed-forward network, as in CLIP; see `EncoderBlock` for others."
    ]
