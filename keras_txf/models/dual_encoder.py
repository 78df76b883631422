"""dual_encoder: an encoder of images and an encoder of texts, with the similarities of their vectors as logits."""

from typing import Any, Unpack

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.heads import SimilarityLogits
from keras_txf.layers.norms import UnitNormalization
from keras_txf.layers.option_tables import Each
from keras_txf.layers.projections import Projection
from keras_txf.layers.sequence_ends import MaskAfterEnd
from keras_txf.layers.shown_options import default_options, shows_options
from keras_txf.models import stack
from keras_txf.models.encoder import encode
from keras_txf.models.head_layers import make_pooling
from keras_txf.models.option_tables import DualEncoderOptions, EncoderOptions, ImageOptions
from keras_txf.models.options import heads_for, without_replaced
from keras_txf.models.vision import encode_images, token_for_pooling, without_registers

SIZES = ("num_layers", "dim", "num_heads")  # sizes that may differ between the towers


@shows_options
def dual_encoder(
    image_size: int | tuple[int, int] | None,
    patch_size: int | tuple[int, int],
    vocab_size: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    projection_dim: int | None = None,
    channels: int = 3,
    end_id: int | None = None,
    image_pooling: Any = "first",
    text_pooling: Any = "last",
    image_projection: bool = True,
    projection_bias: bool = False,
    logit_scale: float = 1 / 0.07,
    max_logit_scale: float | None = 100.0,
    logit_bias: float | None = None,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    image_options: dict[str, Any] | None = None,
    text_options: dict[str, Any] | None = None,
    name: str | None = None,
    **options: Unpack[DualEncoderOptions],
) -> keras.Model:
    """Builds a tower of images and a tower of texts, and compares each image with each text.

    Use it for search and for classification by descriptions of the classes (zero-shot). Inputs are a dict of `images`,
    float (B, height, width, channels), and `token_ids`, int (C, T); B and C may differ. Each tower returns a vector of
    unit length, and the logit of a pair is exp(scale) · image · text + bias. The defaults are CLIP's model: two
    pre-norm transformers. The tower of texts is causal, and its vector is the state of the last token. SigLIP has
    `AttentionPooling` as `image_pooling`, a `logit_bias` and text_options={"causal": False}.

    Train it on matching pairs with `SoftmaxContrastiveLoss` (CLIP) or `SigmoidContrastiveLoss` (SigLIP) on the output
    `logits`. A model of one tower is `keras.Model(model.input["images"], model.output["image_embeddings"])`.

    Args:
        image_size, patch_size, channels: see `image_encoder`.
        vocab_size: number of tokens.
        num_layers, dim, num_heads: sizes of both towers; `image_options` and `text_options` may override them.
        projection_dim: width of the compared vectors; default `dim`.
        end_id: the end token of a text; all tokens after the first end token are padding. Default: only the `pad_id`
            of `text_options` is padding (default 0).
        image_pooling, text_pooling: how patches and tokens become one vector: a `kind` of `Pooling`, or a layer, which
            the model copies. The class token depends on `image_pooling` as in `image_classifier`.
        image_projection: whether a projection follows the pooling of the patches. Without it (SigLIP) the width of the
            image tower must be `projection_dim`.
        projection_bias: whether the projections have a bias.
        logit_scale: initial value of the learned factor exp(scale) on the similarities.
        max_logit_scale: limit of the factor in training, as in CLIP; None: no limit (SigLIP).
        logit_bias: initial value of the learned bias of the similarities, -10 in SigLIP. None: no bias (CLIP).
        return_hidden_states: adds outputs `image_hidden_states_0`, ..., `text_hidden_states_0`, ...
        return_attention_scores: adds outputs `image_attention_scores_0`, ..., `text_attention_scores_0`, ...
        image_options, text_options: dicts of options of one tower: the options below, options of `image_encoder` or
            `encoder`, such as `max_length`, and `num_layers`, `dim` and `num_heads`.
        name: name of the model; default: the name of the function, with a number from the second model on.
        {options}

    Returns:
        A functional `keras.Model` that returns a dict of `logits` (B, C), `image_embeddings` (B, projection_dim) and
        `text_embeddings` (C, projection_dim).

    Raises:
        ValueError: an unknown option, or two that do not go together; a width of the image tower other than
            `projection_dim` with image_projection=False.

    Reference:
        [CLIP](https://arxiv.org/abs/2103.00020); [SigLIP](https://arxiv.org/abs/2303.15343).

    Example:

    >>> model = txf.models.dual_encoder(
    ...     image_size=24, patch_size=8, vocab_size=100, num_layers=2, dim=32, num_heads=4,
    ...     text_options={"num_layers": 1, "dim": 16})
    >>> images, texts = np.zeros((2, 24, 24, 3)), np.array([[5, 6, 7, 0], [8, 9, 0, 0], [8, 5, 3, 9]])
    >>> model({"images": images, "token_ids": texts})["logits"].shape
    (2, 3)
    """
    checks.boolean("image_projection", image_projection)
    checks.boolean("projection_bias", projection_bias)
    checks.positive_number("logit_scale", logit_scale)
    checks.optional(checks.positive_number, "max_logit_scale", max_logit_scale)
    checks.optional(checks.finite_number, "logit_bias", logit_bias)
    checks.size("vocab_size", vocab_size)
    checks.optional(checks.id_below, "end_id", end_id, vocab_size)
    sizes = dict(zip(SIZES, (num_layers, dim, num_heads), strict=True))
    of_both = default_options(DualEncoderOptions)
    image_defaults = {**default_options(ImageOptions), **of_both}
    text_defaults = {**default_options(EncoderOptions), **of_both, "causal": True}
    image_sizes, image = _tower("image_options", image_options, sizes, options, image_defaults)
    text_sizes, text = _tower("text_options", text_options, sizes, options, text_defaults)
    image_pool = make_pooling("image_pooling", image_pooling, image["dtype"])
    text_pool = make_pooling("text_pooling", text_pooling, text["dtype"])
    width = dim if checks.optional(checks.size, "projection_dim", projection_dim) is None else projection_dim

    image["class_token"] = token_for_pooling("image_pooling", getattr(image_pool, "kind", None), image)
    images, image_outputs, image = encode_images(
        "dual_encoder", image_size, patch_size, channels, image_sizes, image, return_attention_scores, "image_"
    )
    image_vector = image_pool(without_registers(image_outputs.output, image))
    if image_projection:
        image_vector = _project("image_projection", width, projection_bias, image.dtype)(image_vector)
    elif image_vector.shape[-1] != width:
        raise ValueError(
            f"image_projection=False needs an image tower as wide as projection_dim={width}; received a vector of "
            f"width {image_vector.shape[-1]}."
        )
    token_ids, text_outputs, _, text = encode(
        "dual_encoder",
        vocab_size,
        text_sizes,
        text,
        scores=return_attention_scores,
        table=EncoderOptions,
        prefix="text_",
    )
    tokens = text_outputs.output
    if end_id is not None:
        tokens = MaskAfterEnd(end_id, dtype=text.dtype, name="text_end")([tokens, token_ids])
    text_vector = _project("text_projection", width, projection_bias, text.dtype)(text_pool(tokens))

    vectors = {
        f"{side}_embeddings": UnitNormalization(dtype=dtype, name=f"{side}_unit_length")(vector)
        for side, vector, dtype in (("image", image_vector, image.dtype), ("text", text_vector, text.dtype))
    }
    logits = SimilarityLogits(logit_scale, max_logit_scale, logit_bias, dtype=options["dtype"], name="logits")
    outputs = {
        "logits": logits(list(vectors.values())),
        **vectors,
        **image_outputs.requested(return_hidden_states, return_attention_scores, "image_"),
        **text_outputs.requested(return_hidden_states, return_attention_scores, "text_"),
    }
    return stack.make_model({"images": images, "token_ids": token_ids}, outputs, name, "dual_encoder")


def _tower(argument, own, sizes, options, defaults):
    """The sizes and the options of a tower. Its own options override those of both towers, which override defaults."""
    if own is not None and not isinstance(own, dict):
        raise ValueError(f"`{argument}` must be a dict of options; received {short_repr(own)}.")
    checks.known_names(f"an option of `{argument}`", own or {}, {**sizes, **defaults})
    heads = heads_for(sizes["num_heads"], (own or {}).get("attention"))
    merged = {**sizes, "num_heads": heads, **defaults, **options, **(own or {})}
    merged = {"num_heads": None, **without_replaced(merged, defaults)}
    return stack.Sizes(**{name: merged.pop(name) for name in SIZES}), merged


def _project(name, width, bias, dtype):
    return Projection(width, use_bias=bias, dtype=dtype, name=name)
