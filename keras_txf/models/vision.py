"""The Vision Transformer: an encoder of images, and the classifier on top of it."""

import keras

from keras_txf import checks
from keras_txf.layers import EncoderBlock, PatchEmbedding, Pooling
from keras_txf.layers.heads import POOLINGS
from keras_txf.layers.projections import Projection
from keras_txf.models import stack

# Embedding options of these builders, by the name they have there -> their name on PatchEmbedding.
EMBEDDING_OPTIONS = {
    "encoding": "encoding",
    "class_token": "class_token",
    "interpolate_positions": "interpolate_positions",
    "patch_bias": "use_bias",
    "embeddings_initializer": "embeddings_initializer",
}
DEFAULTS = {"norm_placement": "pre", "activation": "gelu", "patch_bias": True}


def image_encoder(
    image_size,
    patch_size,
    num_layers,
    dim,
    num_heads,
    channels=3,
    return_hidden_states=False,
    return_attention_scores=False,
    name="image_encoder",
    **options,
):
    """Builds a Vision Transformer: images (B, height, width, channels) -> hidden states (B, T, dim).

    T is the number of patches, row by row from the top left, and one more for the class token, which
    stands first. With the defaults it is the paper's model: pre-norm, GELU, a class token, learned
    positions, dropout 0.1. The paper is silent on the norms' epsilon (1e-5 here; released
    checkpoints have 1e-6 or 1e-12).

    Images are floats of about unit size; integers from 0 to 255 are not scaled here.

    Args:
        image_size: height and width of the images in pixels, a pair or one number for both. None
            takes every size that the patches divide, with another `encoding` than "learned".
        patch_size: height and width of a patch in pixels, a pair or one number for both.
        num_layers: number of blocks, called `encoder_0`, `encoder_1`, ...
        dim: model width.
        num_heads: number of query heads.
        channels: number of numbers in a pixel.
        return_hidden_states: adds outputs `hidden_states_0` (the embedding) to
            `hidden_states_{num_layers}` (the output).
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T) each.
        name: name of the model.
        **options: those of `EncoderBlock` (a list or tuple holds one value for each block), where
            `norm_placement` defaults to "pre" and `activation` to "gelu", and `position` and `window`
            count patches one after the other; `encoding`, `class_token`, `interpolate_positions`,
            `embeddings_initializer` of `PatchEmbedding`, where `encoding` defaults to "learned", or to
            None where `position` has attention see to it; `patch_bias` (default True), whether the
            projection of patches has a bias; `final_norm` (default: unless the norms are "post");
            `dtype`.

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict, whose `output` is
        the hidden states.

    Raises:
        ValueError: an unknown option, or two that do not go together, a size that the patches do not
            divide.

    Reference:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929).

    Example:

    >>> model = txf.models.image_encoder(image_size=24, patch_size=8, num_layers=2, dim=32, num_heads=4)
    >>> model(keras.random.normal((2, 24, 24, 3))).shape
    (2, 10, 32)
    """
    images, result, _ = encode_images(
        "image_encoder", image_size, patch_size, num_layers, dim, num_heads, channels, return_attention_scores, options
    )
    outputs = result.outputs("output", result.output, return_hidden_states, return_attention_scores)
    return stack.make_model(images, outputs, name)


def encode_images(builder, image_size, patch_size, num_layers, dim, num_heads, channels, scores, options):
    """Symbolic images, stack.Result and sorted options of an encoder of images."""
    checks.size("channels", channels)
    checks.boolean("patch_bias", options.get("patch_bias", True))
    options = {**options, "encoding": stack.resolve_encoding(options, "learned")}
    options = stack.sort_options(
        builder, EncoderBlock, options, embedding_options=EMBEDDING_OPTIONS, defaults=DEFAULTS
    )
    embedding = PatchEmbedding(
        patch_size, dim, image_size, **options.embedding, dtype=options.dtype, name="embedding"
    )
    fixed = None if embedding.interpolate_positions else embedding.image_size
    images = keras.Input((*(fixed or (None, None)), channels), name="images")
    result = stack.run(EncoderBlock, embedding(images), num_layers, dim, num_heads, options, "encoder", scores)
    return images, result, options


def image_classifier(
    image_size,
    patch_size,
    num_classes,
    num_layers,
    dim,
    num_heads,
    channels=3,
    pooling="first",
    return_hidden_states=False,
    return_attention_scores=False,
    name="image_classifier",
    **options,
):
    """Builds a classifier of images: (B, height, width, channels) -> logits (B, num_classes).

    For images of another size than it was trained on, build it again with
    `interpolate_positions=True` and the size of the training, and give it the same weights.

    Args:
        image_size, patch_size, num_layers, dim, num_heads, channels, return_hidden_states,
        return_attention_scores, name, **options: see `image_encoder`.
        num_classes: number of logits.
        pooling: how the patches become one vector: the `kind` of `Pooling`. "first" is the class
            token, the paper's. With any other there is no class token, unless `class_token=True`; it
            is then pooled with the patches.

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: as `image_encoder`; pooling="first" with class_token=False.

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
    checks.one_of("pooling", pooling, POOLINGS)
    options = {"class_token": pooling == "first", **options}
    if pooling == "first" and options["class_token"] is False:
        raise ValueError(
            "pooling='first' takes the class token, and does not go with class_token=False: it would judge "
            "the image by its first patch. Pass another `pooling`, such as 'mean'."
        )
    images, result, options = encode_images(
        "image_classifier", image_size, patch_size, num_layers, dim, num_heads, channels, return_attention_scores, options
    )
    pooled = Pooling(pooling, dtype=options.dtype, name="pooling")(result.output)
    logits = Projection(num_classes, dtype=options.dtype, name="logits")(pooled)
    outputs = result.outputs("logits", logits, return_hidden_states, return_attention_scores)
    return stack.make_model(images, outputs, name)
