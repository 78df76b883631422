"""image_processor: reads an `ImageProcessor` from the `preprocessor_config.json` of a checkpoint."""

import os

from keras_txf.checkpoints.files import find
from keras_txf.checkpoints.images import FILTERS, ImageProcessor
from keras_txf.checks import short_repr
from keras_txf.disk import file_of, read_json

NAMES = "preprocessor_config.json", "processor_config.json"
SIZES = ("height", "width"), ("shortest_edge",)
HALF, CLIP_MEAN, CLIP_STD = (0.5,) * 3, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SQUARE, CROP = {"height": 224, "width": 224}, {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
OF_CLIP = {"resample": 3, "image_mean": CLIP_MEAN, "image_std": CLIP_STD, "size": {"shortest_edge": 224}, **CROP}
OF_VIT = {"resample": 2, "image_mean": HALF, "image_std": HALF, "size": SQUARE}
OF_TILES = {
    "resample": 1, "image_mean": HALF, "image_std": HALF, "size": {"longest_edge": 1456},
    "max_image_size": {"longest_edge": 364}, "do_image_splitting": True,
}  # fmt: skip
OF_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
DEFAULTS = {  # class in transformers -> values of the keys that a file lacks
    **dict.fromkeys(["CLIPImageProcessor", "LlavaImageProcessor", "BitImageProcessor"], OF_CLIP),
    **dict.fromkeys(["ViTImageProcessor", "Gemma3ImageProcessor"], OF_VIT),
    **dict.fromkeys(["Idefics3ImageProcessor", "SmolVLMImageProcessor"], OF_TILES),
    "SiglipImageProcessor": {**OF_VIT, "resample": 3},
    "DeiTImageProcessor": {**OF_IMAGENET, "resample": 3, "size": {"height": 256, "width": 256}, **CROP},
    "DINOv3ViTImageProcessor": {**OF_IMAGENET, "resample": 2, "size": SQUARE},
}
NEUTRAL = {
    "processor_class", "image_processor_type", "feature_extractor_type", "data_format", "device", "disable_grouping",
    "input_data_format", "return_tensors", "image_seq_length", "_valid_processor_keys", "auto_map", "do_convert_rgb",
    "default_to_square", "do_pad", "return_row_col_info", "image_seq_len", "valid_kwargs",
    "model_input_names", "pan_and_scan_max_num_crops", "pan_and_scan_min_crop_size",
    "pan_and_scan_min_ratio_to_activate",
}  # fmt: skip
KNOWN = {
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
    "image_mean", "image_std", "do_image_splitting", "max_image_size",
}  # fmt: skip


def image_processor(path: str | os.PathLike, revision: str | None = None) -> ImageProcessor:
    """Reads how a checkpoint's images are resized, cropped and normalized.

    Args:
        path: a folder with `preprocessor_config.json`, or `processor_config.json` of transformers 5; or the name of a
            repository on the Hub, as for `load`.
        revision: branch, tag or commit of a repository.

    Returns:
        An `ImageProcessor`, whose results equal those of the processor in transformers (without torchvision, which
        rounds otherwise) within 1e-5.

    Raises:
        ValueError: no such folder or file; a processor of another kind, or with values that change images in a way that
            is not built, such as Gemma 3's `do_pan_and_scan`.

    Example:

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> values = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 16, "width": 16}}
    >>> _ = (folder / "preprocessor_config.json").write_text(json.dumps(values))
    >>> txf.checkpoints.image_processor(folder)([np.zeros((20, 30, 3), "uint8")]).shape
    (1, 16, 16, 3)
    """
    folder = find(path, revision)
    files = [file_of(folder, name) for name in NAMES]
    file = next((file for file in files if os.path.isfile(file)), files[0])
    values = read_json(file)
    values = values.get("image_processor", values) if os.path.basename(file) == NAMES[1] else values
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type"))
    kind = kind.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast")
    if kind not in DEFAULTS:
        raise ValueError(
            f"{os.path.basename(file)} must have an `image_processor_type` of {sorted(DEFAULTS)}; received "
            f"{short_repr(values.get('image_processor_type'))}."
        )
    unknown = {key: value for key, value in values.items() if key not in NEUTRAL | KNOWN and value not in (None, False)}
    refused = {"LlavaImageProcessor": "do_pad", "Gemma3ImageProcessor": "do_center_crop"}.get(kind)
    if values.get(refused):
        unknown[refused] = True
    if unknown:
        raise ValueError(
            f"{os.path.basename(file)} has keys that may change images and are not known: {short_repr(unknown)}."
        )
    values = {**DEFAULTS[kind], **{key: value for key, value in values.items() if value is not None}}
    tile = _as_size(values, "max_image_size", ["longest_edge"])["longest_edge"] if "max_image_size" in values else None
    crop = _as_size(values, "crop_size", SQUARE) if values.get("do_center_crop") else None
    normalizes, resample = values.get("do_normalize", True), values["resample"]
    if resample not in [*FILTERS]:
        raise ValueError(
            f"{os.path.basename(file)} must have a number of {sorted(FILTERS)} as `resample`; received "
            f"{short_repr(resample)}."
        )
    return ImageProcessor(
        _as_size(values, "size", DEFAULTS[kind]["size"], SIZES) if values.get("do_resize", True) else None,
        FILTERS[resample],
        None if crop is None else (crop["height"], crop["width"]),
        values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0,
        values["image_mean"] if normalizes else None,
        values["image_std"] if normalizes else None,
        tile,
        values.get("do_image_splitting", True),
    )


def _as_size(values, key, default, others=()):
    """A size in a file as a dict: older files have one number for the keys of the default.

    Args:
        others: lists of keys that a dict may have instead, unless the default has one of the longest edge.
    """
    value = values[key]
    known = [{*default}, *(set(keys) for keys in others if "longest_edge" not in default)]
    if isinstance(value, dict) and {*value} in known:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"The image processor's file must have a number, or a dict of {short_repr([*default])}, as `{key}`; "
            f"received {short_repr(value)}."
        )
    return dict.fromkeys(default, value)
