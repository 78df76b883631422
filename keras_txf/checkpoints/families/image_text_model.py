"""The model of LLaVA, PaliGemma, Gemma 3 and SmolVLM, and the layers between its encoder of images and its decoder.

Legend: B batch, D width.
"""

import math

from keras import ops

from keras_txf import checks, models
from keras_txf.checkpoints.parts import with_parts
from keras_txf.layers.base import Layer
from keras_txf.layers.parts import copy_layer
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import default_options
from keras_txf.models import stack
from keras_txf.models.option_tables import ImageOptions
from keras_txf.models.vision import encode_images

SIZES = ("image_size", "patch_size", "channels", "num_layers", "dim", "num_heads")


def build(image, text, placeholder_id, projection, first=0, bidirectional=None, dtype=None, **options):
    """Builds the model of a checkpoint.

    Args:
        image: dict of options of `image_encoder`; the names of its blocks begin with "image_encoder".
        text: dict of options of `decoder_generator`.
        placeholder_id, bidirectional: see `image_text_generator`.
        projection: list of layers from the vectors of images to the decoder, which the model copies.
        first: number of the image's first vectors that the decoder does not see, such as the class token.
        dtype: dtype policy of all layers.
        options: other options of `decoder_generator`.
    """
    image = {**default_options(ImageOptions), **with_parts(models.image_encoder, {**image, "dtype": dtype})}
    size, patch_size, channels, *sizes = (image.pop(name) for name in SIZES)
    images, result, _ = encode_images(
        "image_encoder", size, patch_size, channels, stack.Sizes(*sizes), image, prefix="image_"
    )
    encoder = stack.make_model(images, result.output[:, first:], "image_encoder", "image_encoder")
    decoder = models.decoder_generator(**with_parts(models.decoder_generator, {**text, "dtype": dtype, **options}))
    projection = [copy_layer(layer, layer.name, dtype=dtype) for layer in projection]
    return models.image_text_generator(encoder, decoder, placeholder_id, projection, bidirectional)


class OfPatches(Layer):
    """The base of layers that combine squares of patches: (B, side · side, D), row by row -> (B, fewer, width).

    Args:
        size: side of the squares.
    """

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.size = checks.size("size", size)

    def _squares(self, x):
        """(B, side · side, D) -> (B, rows, size, columns, size, D) of the squares."""
        number, dim = x.shape[1:]
        side = math.isqrt(number)
        return ops.reshape(x, (-1, side // self.size, self.size, side // self.size, self.size, dim))


@register
class PoolPatches(OfPatches):
    """The mean of each square of patches: Gemma 3's vectors of an image."""

    def call(self, inputs):
        x = ops.mean(self._squares(inputs), axis=(2, 4))
        return ops.reshape(x, (-1, x.shape[1] * x.shape[2], x.shape[3]))


@register
class MergePatches(OfPatches):
    """The patches of each square, one after another along the features: the pixel shuffle of Idefics 3 and SmolVLM."""

    def call(self, inputs):
        x = ops.transpose(self._squares(inputs), (0, 1, 3, 2, 4, 5))
        _, rows, columns, *_, dim = x.shape
        return ops.reshape(x, (-1, rows * columns, self.size**2 * dim))
