"""PatchEmbedding: an image as a sequence of patches."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.tensors import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import get_initializer, own_initializer, register
from keras_txf.ops.positions import interpolate_grid, sinusoid
from keras_txf.ops.tensors import wide_dtype, widen


@register
class PatchEmbedding(Layer):
    """Projects the patches of images, and adds a class token and positions: the input of a ViT.

    Patches are ordered row by row, from the top left. Images have their channels last, with any
    `keras.config.image_data_format`.

    The kernel `patch/kernel` has one row for each number in a patch, (patch height · patch width ·
    channels, dim). `kernel.reshape(height, width, channels, dim)` is the kernel of a convolution in Keras. Its
    `transpose(3, 2, 0, 1)` is the kernel of PyTorch and Hugging Face, (dim, channels, height, width). The
    first row of `position/embeddings` belongs to the class token.

    Args:
        patch_size: height and width of a patch in pixels, a pair or one number for both.
        dim: width of the output.
        image_size: height and width of the images in pixels, a pair or one number for both. Images of
            another size raise ValueError. None accepts every size that the patches divide.
        class_token: whether a learned class token precedes the patches.
        distillation_token: whether a learned token for the prediction of a teacher follows the class token (DeiT).
        register_tokens: number of learned register tokens before the patches, without positions. A deep model stores
            global information in them.
        position_encoding: "learned" (as in the paper, one vector for each patch and for the class token),
            "sinusoidal" (the sinusoid of the patch's row in the first half of the features, of its column in the
            second half, zeros for the class token), "fixed" (a table that is not trained: these sinusoids, or the
            table of a file after `load`), or None if attention applies positions.
        interpolate_positions: whether to accept images of other sizes than `image_size`. The learned
            positions are interpolated between the patches of `image_size` (bicubic). The weights are the same.
        use_bias: whether the projection has a bias.
        drop_remainder: whether to drop pixels at the right and at the bottom that fill no patch, as a convolution does.
            With False such an image raises ValueError.
        kernel_initializer: initializer of the projection.
        embeddings_initializer: initializer of learned positions and of the tokens before the patches; default normal
            with standard deviation 0.02.

    Call arguments:
        inputs: float (B, height, width, channels).

    Returns:
        (B, tokens, dim): the class token, the distillation token, the registers, the patches.

    Raises:
        ValueError: learned or fixed positions without `image_size`, a size that the patches do not divide,
            images of another size than `image_size` or of another number of channels than in `build`, integers; a
            distillation token without a class token.

    Reference:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), section 3.1, and 3.2 for
        the interpolation; [DeiT](https://arxiv.org/abs/2012.12877) for the distillation token;
        [Masked Autoencoders](https://arxiv.org/abs/2111.06377) for "sinusoidal";
        [Vision Transformers Need Registers](https://arxiv.org/abs/2309.16588).

    Example:

    >>> embedding = txf.layers.PatchEmbedding(patch_size=8, dim=32, image_size=(16, 24))
    >>> embedding(keras.random.normal((2, 16, 24, 3))).shape
    (2, 7, 32)
    """

    weight_splits = dict.fromkeys(
        ("patch", "position", "class_token", "distillation_token", "register_tokens"), "whole"
    )

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        dim: int,
        image_size: int | tuple[int, int] | None = None,
        class_token: bool = True,
        distillation_token: bool = False,
        position_encoding: str | None = "learned",
        interpolate_positions: bool = False,
        use_bias: bool = True,
        drop_remainder: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        embeddings_initializer: Any = None,
        register_tokens: int = 0,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.patch_size = checks.pair("patch_size", patch_size)
        self.dim = checks.size("dim", dim)
        self.image_size = checks.optional(checks.pair, "image_size", image_size)
        self.class_token = checks.boolean("class_token", class_token)
        self.distillation_token = checks.boolean("distillation_token", distillation_token)
        self._tokens_before = class_token + distillation_token
        self.register_tokens = checks.count("register_tokens", register_tokens)
        self.position_encoding = checks.one_of("position_encoding", position_encoding, (*POSITIONS, None))
        self.interpolate_positions = checks.boolean("interpolate_positions", interpolate_positions)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.drop_remainder = checks.boolean("drop_remainder", drop_remainder)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.embeddings_initializer = get_initializer("embeddings_initializer", embeddings_initializer)
        checks.combinations(self, "PatchEmbedding")
        if image_size is not None:
            self._check_divisible("image_size", self.image_size, f"image_size={self.image_size}")

    def build(self, inputs_shape):
        self._check_shape(inputs_shape)
        height, width = self.patch_size
        self._channels = inputs_shape[-1]
        self.patch = make_projection(self, "patch", self.dim, (None, None, height * width * self._channels))
        if self.class_token:
            self.class_vector = self.add_weight(
                name="class_token", shape=(self.dim,), initializer=self._initializer("class_token")
            )
        if self.distillation_token:
            self.distillation_vector = self.add_weight(
                name="distillation_token", shape=(self.dim,), initializer=self._initializer("distillation_token")
            )
        if self.register_tokens:
            self.register_vectors = self.add_weight(
                name="register_tokens",
                shape=(self.register_tokens, self.dim),
                initializer=self._initializer("register_tokens"),
            )
        if self.position_encoding == "learned":
            rows, columns = self._grid(*self.image_size)
            self.position = keras.layers.Embedding(
                rows * columns + self._tokens_before,
                self.dim,
                embeddings_initializer=self._initializer("position"),
                dtype=self.dtype_policy,
                name="position",
            )
            self.position.build()
        if self.position_encoding == "fixed":
            rows, columns = self._grid(*self.image_size)
            self.position_vectors = self.add_weight(
                name="position",
                shape=(rows * columns + self._tokens_before, self.dim),
                initializer=lambda shape, dtype=None: ops.cast(_sinusoidal(self, rows, columns), dtype),
                trainable=False,
            )

    def _initializer(self, name):
        return own_initializer(self.embeddings_initializer or keras.initializers.RandomNormal(stddev=0.02), self, name)

    def call(self, inputs):
        self._check(inputs)
        rows, columns = self._grid(*ops.shape(inputs)[1:3])
        x = self.patch(self._cut(inputs, rows, columns))
        if self.class_token:
            vectors = [self.class_vector] + ([self.distillation_vector] if self.distillation_token else [])
            shape = (ops.shape(x)[0], 1, self.dim)
            x = ops.concatenate([*(ops.broadcast_to(ops.cast(one, x.dtype), shape) for one in vectors), x], axis=1)
        if self.position_encoding is not None:
            x = x + ops.cast(POSITIONS[self.position_encoding](self, rows, columns), x.dtype)
        if not self.register_tokens:
            return x
        registers = ops.cast(self.register_vectors, x.dtype)[None]
        registers = ops.broadcast_to(registers, (ops.shape(x)[0], self.register_tokens, self.dim))
        return ops.concatenate([x[:, : self._tokens_before], registers, x[:, self._tokens_before :]], axis=1)

    def _grid(self, height, width):
        """The numbers of rows and columns of patches, or None for an unknown size."""
        sizes = zip((height, width), self.patch_size)
        return tuple(None if image is None else image // patch for image, patch in sizes)

    def _cut(self, images, rows, columns):
        """(B, height, width, channels) -> the patches (B, rows · columns, numbers in a patch)."""
        height, width = self.patch_size
        if self.drop_remainder:
            images = images[:, : rows * height, : columns * width]
        # The numbers of a row of a patch stay together, so only two axes are swapped. The batch size is explicit:
        # with -1 the reshape would accept some images that the patches do not divide.
        strips = ops.reshape(images, (ops.shape(images)[0] * rows, height, columns, width * self._channels))
        patches = ops.transpose(strips, (0, 2, 1, 3))
        return ops.reshape(patches, (-1, rows * columns, height * width * self._channels))

    def _check(self, images):
        self._check_shape(images.shape)
        dtype = keras.backend.standardize_dtype(images.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise ValueError(
                "`inputs` must be images of floats: scale integers first, for example to images / 255; "
                f"received dtype {dtype}."
            )

    def _check_shape(self, shape):
        received = f"shape {tuple(shape)}"
        if len(shape) != 4:
            raise ValueError(f"`inputs` must be images, (batch, height, width, channels); received {received}.")
        size, channels = tuple(shape[1:3]), shape[3]
        if channels is None:
            raise ValueError(f"`inputs` must have a known number of channels, their last axis; received {received}.")
        if self.built and channels != self._channels:
            raise ValueError(
                f"`inputs` must be images (batch, height, width, channels) of {self._channels} channels, as when the "
                f"layer was built; received {received}."
            )
        expected = None if self.interpolate_positions else self.image_size
        if expected is not None and any(a not in (None, b) for a, b in zip(size, expected)):
            hint = " Pass interpolate_positions=True for other sizes." if self.position_encoding == "learned" else ""
            raise ValueError(
                f"`inputs` must be images (batch, height, width, channels) of image_size={expected}; received "
                f"{received}.{hint}"
            )
        self._check_divisible("inputs", size, received)

    def _check_divisible(self, name, size, received):
        if self.drop_remainder:
            too_small = any(image is not None and image < patch for image, patch in zip(size, self.patch_size))
            if too_small:
                raise ValueError(
                    f"`{name}` must have room for a patch; received patch_size={self.patch_size} and {received}."
                )
        elif any(image is not None and image % patch for image, patch in zip(size, self.patch_size)):
            raise ValueError(
                f"`patch_size` must divide the height and width of `{name}`; received "
                f"patch_size={self.patch_size} and {received}."
            )

    def compute_output_shape(self, inputs_shape):
        # On some backends Keras' default would try numbers for unknown sizes that the patches do not divide.
        rows, columns = self._grid(*inputs_shape[1:3])
        length = None if None in (rows, columns) else rows * columns + self._tokens_before + self.register_tokens
        return (inputs_shape[0], length, self.dim)

    def compute_output_spec(self, inputs):
        self._check(inputs)
        return super().compute_output_spec(inputs)


def _learned(layer, rows, columns):
    vectors = layer.position(ops.arange(layer.position.input_dim, dtype="int32"))
    if not layer.interpolate_positions:
        return vectors
    first, others = vectors[: layer._tokens_before], vectors[layer._tokens_before :]
    grid = ops.reshape(others, (*layer._grid(*layer.image_size), layer.dim))
    others = ops.reshape(interpolate_grid(grid, rows, columns), (-1, layer.dim))
    return ops.concatenate([widen(first), others], axis=0)


def _sinusoidal(layer, rows, columns):
    widths = (layer.dim - layer.dim // 2, layer.dim // 2)
    wide = wide_dtype(layer.compute_dtype)
    sides = zip((rows, columns), widths)
    down, across = (sinusoid(ops.arange(size, dtype="int32"), width, dtype=wide) for size, width in sides)
    parts = (down[:, None], across[None])
    parts = [ops.broadcast_to(part, (rows, columns, width)) for part, width in zip(parts, widths)]
    vectors = ops.reshape(ops.concatenate(parts, axis=-1), (-1, layer.dim))
    return ops.concatenate([ops.zeros((layer._tokens_before, layer.dim), wide), vectors], axis=0)


def _fixed(layer, rows, columns):
    return current_value(layer.position_vectors)


POSITIONS = {"learned": _learned, "sinusoidal": _sinusoidal, "fixed": _fixed}
