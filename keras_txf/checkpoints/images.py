"""ImageProcessor: images as the model of a checkpoint reads them.

Legend: B images, H height, W width, n images of a row.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr

FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # numbers of Pillow
LARGEST_SIDE = 4096  # of an image that is divided into tiles


@dataclasses.dataclass
class ImageProcessor:
    """Resizes, crops and normalizes images as a checkpoint's processor in transformers does, by Pillow.

    Use `txf.checkpoints.image_processor(path)`, which reads the values from a folder.

    Args:
        size: dict of "height" and "width", "shortest_edge", or "longest_edge"; None: images keep their size.
        resample: filter of Pillow: "nearest", "lanczos", "bilinear", "bicubic", "box" or "hamming".
        crop_size: pair of height and width that is cut out of the middle after the resizing; None: no crop.
        rescale_factor: factor on the bytes of an image.
        mean, std: three numbers each, which are subtracted from the channels and divide them; None: no normalization.
        tile_size: side of the squares that a larger image is divided into, followed by the whole image in one square
            (SmolVLM, Idefics 3); None: no tiles.
        split: whether an image becomes several tiles. False: it becomes the whole image in one tile.

    Call arguments:
        images: list of images: uint8 arrays (H, W, 3) or (H, W), or images of Pillow; or a list of lists, the images of
            each row of a batch.

    Returns:
        float32 (B, H, W, 3), or (rows, n, H, W, 3) with zeros for missing images; the images of a row are its tiles, in
        their order, if there are tiles.

    Raises:
        ValueError: an image of another type or shape; images that keep different sizes; a list of images, not of
            lists, for a processor that makes tiles.

    Example:

    >>> processor = txf.checkpoints.ImageProcessor({"height": 8, "width": 8}, mean=[0.5] * 3, std=[0.5] * 3)
    >>> image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")
    >>> processor([image, image]).shape, processor([[image], [image, image]]).shape
    ((2, 8, 8, 3), (2, 2, 8, 8, 3))
    """

    size: dict[str, int] | None = None
    resample: str = "bicubic"
    crop_size: tuple[int, int] | None = None
    rescale_factor: float = 1 / 255
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    tile_size: int | None = None
    split: bool = True

    def __post_init__(self):
        if self.size is not None:
            known = {"height", "width"}, {"shortest_edge"}, {"longest_edge"}
            if not isinstance(self.size, dict) or {*self.size} not in known:
                raise ValueError(
                    "`size` must be a dict of 'height' and 'width', of 'shortest_edge', or of 'longest_edge'; received "
                    f"{short_repr(self.size)}."
                )
            for name, value in self.size.items():
                checks.size(name, value)
        checks.one_of("resample", self.resample, tuple(FILTERS.values()))
        if self.crop_size is not None:
            self.crop_size = checks.pair("crop_size", self.crop_size)
        checks.positive_number("rescale_factor", self.rescale_factor)
        checks.optional(checks.size, "tile_size", self.tile_size)
        checks.boolean("split", self.split)
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, (list, tuple)) or len(value) != 3:
                raise ValueError(f"`{name}` must be a list of three numbers; received {short_repr(value)}.")
            for number in value:
                (checks.positive_number if name == "std" else checks.finite_number)(name, number)

    def __call__(self, images: Any) -> np.ndarray:
        if not isinstance(images, (list, tuple)) or not images:
            raise ValueError(f"`images` must be a list of images, or of lists; received {short_repr(images)}.")
        if not isinstance(images[0], (list, tuple)):
            if self.tile_size is not None and self.split:
                raise ValueError("`images` must be a list of lists, one for each row, for images in tiles.")
            return _stacked([self._finish(self._tiles(self._fit(_pillow(image)))[0]) for image in images])
        rows = [[self._finish(x) for image in row for x in self._tiles(self._fit(_pillow(image)))] for row in images]
        shape = next((row[0].shape for row in rows if row), None)
        if shape is None:
            raise ValueError("`images` must have an image in at least one row; received none.")
        most = max(map(len, rows))
        return np.stack([_stacked([*row, *[np.zeros(shape, "float32")] * (most - len(row))]) for row in rows])

    def grid(self, image: Any) -> tuple[int, int]:
        """The numbers of rows and columns of an image's tiles, (0, 0) for one tile, as the text of a prompt names them.

        Args:
            image: see the call.
        """
        if self.tile_size is None or not self.split:
            return 0, 0
        fitted = self._fit(_pillow(image))
        rows, columns = (math.ceil(side / self.tile_size) for side in (fitted.height, fitted.width))
        return (0, 0) if rows == columns == 1 else (rows, columns)

    def _fit(self, image):
        """Resizes and crops an image."""
        if self.size is not None:
            image = self._resize(image, *self._new_size(image.height, image.width))
        if self.crop_size is not None:
            image = _crop(image, *self.crop_size)
        if self.tile_size is not None and self.split:
            image = self._resize(image, *self._size_of_tiles(image.height, image.width))
        return image

    def _new_size(self, height, width):
        if "height" in self.size:
            return self.size["height"], self.size["width"]
        if "shortest_edge" in self.size:
            short = self.size["shortest_edge"]
            long = int(short * max(height, width) / min(height, width))
            return (long, short) if width <= height else (short, long)
        ratio, long = width / height, self.size["longest_edge"]
        height, width = (_even(long / ratio), long) if width >= height else (long, _even(long * ratio))
        if max(height, width) > LARGEST_SIDE:
            height, width = _below(height, width, width / height, LARGEST_SIDE)
        return max(height, 1), max(width, 1)

    def _size_of_tiles(self, height, width):
        """The multiples of the side of a tile that an image is resized to."""
        ratio, side = width / height, self.tile_size
        if width >= height:
            width = math.ceil(width / side) * side
            return math.ceil(int(width / ratio) / side) * side, width
        height = math.ceil(height / side) * side
        return height, math.ceil(int(height * ratio) / side) * side

    def _tiles(self, image):
        if self.tile_size is None or (image.height, image.width) == (self.tile_size,) * 2:
            return [image]
        side = self.tile_size
        if not self.split:
            return [self._resize(image, side, side)]
        corners = [(x, y) for y in range(0, image.height, side) for x in range(0, image.width, side)]
        return [*(image.crop((x, y, x + side, y + side)) for x, y in corners), self._resize(image, side, side)]

    def _resize(self, image, height, width):
        numbers = {name: number for number, name in FILTERS.items()}
        return image.resize((width, height), resample=numbers[self.resample])

    def _finish(self, image):
        x = (np.asarray(image).astype("float64") * self.rescale_factor).astype("float32")
        if self.mean is not None:
            x = x - np.asarray(self.mean, "float32")
        return x if self.std is None else x / np.asarray(self.std, "float32")


def _even(side):
    return int(side) + int(side) % 2


def _below(height, width, ratio, most):
    return (int(most / ratio), most) if width >= height else (most, int(most * ratio))


def _stacked(images):
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise ValueError(f"`images` must have one size after the resizing; received {shapes[:3]}.")
    return np.stack(images)


def _pillow(image):
    """An image as an image of Pillow with three channels; transparent parts become white."""
    from PIL import Image

    if isinstance(image, Image.Image):
        if "A" not in image.getbands() and image.info.get("transparency") is None:
            return image.convert("RGB")
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (255,) * 4), image).convert("RGB")
    array = np.asarray(image)
    if array.dtype != "uint8" or array.ndim not in (2, 3) or array.ndim == 3 and array.shape[2] != 3 or not array.size:
        raise ValueError(
            "`images` must be images of Pillow, or uint8 arrays of shape (height, width, 3) or (height, width); "
            f"received {array.dtype} of shape {array.shape}."
        )
    return Image.fromarray(array).convert("RGB")


def _crop(image, height, width):
    """Cuts the middle out of an image; zeros surround a smaller image."""
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))
