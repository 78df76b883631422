"""The Vision Transformer: an encoder of images, and a classifier of images."""

from typing import Any, Unpack

import keras

from keras_txf import checks
from keras_txf.layers import EncoderBlock, PatchEmbedding
from keras_txf.layers.option_tables import Each
from keras_txf.layers.projections import Projection
from keras_txf.layers.shown_options import shows_options
from keras_txf.models import stack
from keras_txf.models.embeddings import float_input
from keras_txf.models.head_layers import pool
from keras_txf.models.option_tables import ImageOptions
from keras_txf.models.options import resolve_encoding, sort_options

# Embedding options: name in these builders -> name in PatchEmbedding.
EMBEDDING_OPTIONS = {
    "position_encoding": "position_encoding",
    "class_token": "class_token",
    "distillation_token": "distillation_token",
    "register_tokens": "register_tokens",
    "interpolate_positions": "interpolate_positions",
    "patch_bias": "use_bias",
    "drop_remainder": "drop_remainder",
    "embeddings_initializer": "embeddings_initializer",
}
OF_CLASS_TOKEN = ("first", "others", "first_and_others")  # poolings that need a class token


@shows_options
def image_encoder(
    image_size: int | tuple[int, int] | None,
    patch_size: int | tuple[int, int],
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    channels: int = 3,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[ImageOptions],
) -> keras.Model:
    """Builds a Vision Transformer: images (B, height, width, channels) -> hidden states (B, T, dim).

    T is the number of tokens: the class token, the other tokens before the patches, and the patches, row by
    row from the top left. With the defaults the model is the paper's: pre-norm, GELU, a class token, learned
    positions, dropout 0.1. The paper does not give the epsilon of the norms (1e-5 here; released checkpoints
    have 1e-6 or 1e-12).

    Images are floats of about unit size. The model does not scale integers from 0 to 255.

    An option of the blocks may be a list or tuple with one value for each block. The `stochastic_depth` of
    one `Residual` is the rate of the last block, and the rate grows from block to block.

    Args:
        image_size: height and width of the images in pixels, a pair or one number for both. None
            accepts every size that the patches divide; not with `position_encoding="learned"`.
        patch_size: height and width of a patch in pixels, a pair or one number for both.
        num_layers: number of blocks, called `encoder_0`, `encoder_1`, ...
        dim: model width.
        num_heads: number of query heads; None with a layer as `attention`.
        channels: number of channels of the images.
        return_hidden_states: adds outputs `hidden_states_0` (the embedding) to
            `hidden_states_{num_layers}` (the output).
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T) each.
        name: name of the model; default: the name of the function, with a number from the second model on.
        {options}

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict, whose `output` is
        the hidden states.

    Raises:
        ValueError: an unknown option, two options that do not go together, a size that the patches do not
            divide.

    Reference:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929).

    Example:

    >>> model = txf.models.image_encoder(image_size=24, patch_size=8, num_layers=2, dim=32, num_heads=4)
    >>> model(keras.random.normal((2, 24, 24, 3))).shape
    (2, 10, 32)
    """
    sizes = stack.Sizes(num_layers, dim, num_heads)
    images, result, _ = encode_images(
        "image_encoder", image_size, patch_size, channels, sizes, options, return_attention_scores
    )
    outputs = result.outputs("output", result.output, return_hidden_states, return_attention_scores)
    return stack.make_model(images, outputs, name, "image_encoder")


def encode_images(builder, image_size, patch_size, channels, sizes, options, scores=False, prefix=""):
    """Wires an encoder of images: symbolic images, `StackOutputs` and `Options`. `prefix` begins the layers' names."""
    checks.size("channels", channels)
    checks.boolean("patch_bias", options["patch_bias"])
    options = {**options, "position_encoding": resolve_encoding(options, "learned")}
    options["class_token"] = _class_token(options, True)
    options = sort_options(builder, EncoderBlock, options, ImageOptions, EMBEDDING_OPTIONS)
    embedding = PatchEmbedding(
        patch_size, sizes.dim, image_size, **options.embedding, dtype=options.dtype, name=f"{prefix}embedding"
    )
    fixed = None if embedding.interpolate_positions else embedding.image_size
    images = float_input((*(fixed or (None, None)), channels), options.dtype, "images")
    result = stack.run(EncoderBlock, embedding(images), sizes, options, f"{prefix}encoder", scores)
    return images, result, options


@shows_options
def image_classifier(
    image_size: int | tuple[int, int] | None,
    patch_size: int | tuple[int, int],
    num_classes: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    channels: int = 3,
    pooling: Any = "first",
    pooling_norm: bool = False,
    distillation_head: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[ImageOptions],
) -> keras.Model:
    """Builds a classifier of images: (B, height, width, channels) -> logits (B, num_classes).

    For images of other sizes than in training, build the model again with `interpolate_positions=True` and
    the `image_size` of the training, and set the same weights.

    Args:
        image_size, patch_size, num_layers, dim, num_heads, channels: see `image_encoder`.
        return_hidden_states, return_attention_scores, name: see `image_encoder`.
        num_classes: number of logits.
        pooling: how the tokens become one vector, a `kind` of `Pooling` or a layer, which the model copies.
            "first" is the class token, as in the paper, "others" the mean of the patches, "first_and_others"
            both. With another kind or a layer the model has no class token, unless `class_token=True`; it is
            then pooled with the patches.
        pooling_norm: whether a norm follows the pooling (BEiT).
        distillation_head: whether the distillation token has its own projection to logits. The model's logits are
            then the mean of both projections (DeiT).
        {options}

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: as `image_encoder`; a pooling that needs the class token with class_token=False; a distillation
            head without a distillation token.

    Reference:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929); its head for fine-tuning,
        one projection.

    Example:

    >>> model = txf.models.image_classifier(
    ...     image_size=24, patch_size=8, num_classes=5, num_layers=2, dim=32, num_heads=4)
    >>> larger = txf.models.image_classifier(
    ...     image_size=24, patch_size=8, num_classes=5, num_layers=2, dim=32, num_heads=4,
    ...     interpolate_positions=True)
    >>> larger.set_weights(model.get_weights())
    >>> larger(keras.random.normal((2, 32, 40, 3))).shape
    (2, 5)
    """
    checks.size("num_classes", num_classes)
    options["class_token"] = token_for_pooling("pooling", pooling, options)
    if checks.boolean("distillation_head", distillation_head) and not options["distillation_token"]:
        raise ValueError("distillation_head=True needs distillation_token=True, the input of the head.")
    sizes = stack.Sizes(num_layers, dim, num_heads)
    images, result, options = encode_images(
        "image_classifier", image_size, patch_size, channels, sizes, options, return_attention_scores
    )
    tokens = without_registers(result.output, options)
    pooled = pool(tokens, pooling, options.dtype)
    if checks.boolean("pooling_norm", pooling_norm):
        pooled = stack.norm_like(result.blocks[0], "pooling_norm", options.dtype)(pooled)
    logits = Projection(num_classes, dtype=options.dtype, name="logits")(pooled)
    if distillation_head:
        other = Projection(num_classes, dtype=options.dtype, name="distillation_logits")(result.output[:, 1])
        logits = keras.layers.Average(dtype=options.dtype, name="mean_logits")([logits, other])
    outputs = result.outputs("logits", logits, return_hidden_states, return_attention_scores)
    return stack.make_model(images, outputs, name, "image_classifier")


def token_for_pooling(argument, pooling, options):
    """The option `class_token` for a pooling; "auto" is True if the pooling or a distillation token needs it.

    Raises:
        ValueError: class_token=False for a pooling that needs the class token.
    """
    needed = isinstance(pooling, str) and pooling in OF_CLASS_TOKEN
    class_token = _class_token(options, needed or options["distillation_token"])
    if needed and class_token is False:
        raise ValueError(
            f"{argument}='{pooling}' needs the class token, and does not go with class_token=False: it would read "
            f"the first patch instead. Pass another `{argument}`, such as 'mean'."
        )
    return class_token


def without_registers(x, options):
    """The tokens for a pooling: all except the registers."""
    number = options.embedding["register_tokens"]
    if not number:
        return x
    first = options.embedding["class_token"] + options.embedding["distillation_token"]
    patches = x[:, first + number :]
    return keras.layers.Concatenate(1, dtype=options.dtype, name="pooled_tokens")([x[:, :first], patches])


def _class_token(options, default):
    """The option `class_token`; "auto" is the default."""
    value = options["class_token"]
    return default if isinstance(value, str) and value == "auto" else value
