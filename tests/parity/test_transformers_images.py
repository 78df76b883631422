"""Images as processors of transformers make them, from the files that these write."""

import json

import numpy as np
import pytest
from PIL import Image
from refusals import refused

import keras_txf as txf

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SIZES = ((40, 61), (75, 30), (24, 24), (20, 90))
PLAIN = {
    "CLIP": {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 20}},
    "Siglip": {"size": {"height": 24, "width": 30}}, "Gemma3": {"size": {"height": 28, "width": 28}},
    "ViT": {"size": {"height": 24, "width": 24}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.3, 0.4, 0.5]},
    "DeiT": {"size": {"height": 30, "width": 30}, "crop_size": {"height": 35, "width": 22}},
    "Llava": {"size": {"shortest_edge": 30}, "crop_size": {"height": 28, "width": 28}, "do_normalize": False},
}  # fmt: skip
TILES = {"size": {"longest_edge": 72}, "max_image_size": {"longest_edge": 24}}


def images():
    """Noise over a ramp, of several sizes."""
    rng = np.random.default_rng(0)
    ramps = [np.linspace(0, 200, h * w * 3).reshape(h, w, 3) for h, w in SIZES]
    return [(ramp + rng.integers(0, 56, ramp.shape)).astype("uint8") for ramp in ramps]


def theirs(name, folder, **options):
    processor = getattr(transformers, f"{name}ImageProcessorPil")(**options)
    processor.save_pretrained(folder)
    return processor


@pytest.mark.parametrize("name", PLAIN)
def test_images_are_those_of_transformers(name, tmp_path):
    processor = theirs(name, tmp_path, **PLAIN[name])
    ours = txf.checkpoints.image_processor(tmp_path)
    for given in (images(), [Image.fromarray(x) for x in images()]):
        expected = processor(given, return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
        np.testing.assert_allclose(ours(given), expected, atol=1e-5)
    rows = ours([images()[:1], images()[1:3]])
    np.testing.assert_array_equal(rows[1], ours(images()[1:3]))
    np.testing.assert_array_equal(rows[0, 1], np.zeros_like(rows[0, 1]))


@pytest.mark.parametrize("name", ["SmolVLM", "Idefics3"])
@pytest.mark.parametrize("split", [True, False])
def test_tiles_are_those_of_transformers(name, split, tmp_path):
    processor = theirs(name, tmp_path, **TILES, do_image_splitting=split)
    ours = txf.checkpoints.image_processor(tmp_path)
    rows = [[image] for image in images()]
    expected = processor(rows, return_tensors="np", return_row_col_info=True)
    np.testing.assert_allclose(ours(rows), expected["pixel_values"].transpose(0, 1, 3, 4, 2), atol=1e-5)
    grids = [(row[0], column[0]) for row, column in zip(expected["rows"], expected["cols"])]
    assert [ours.grid(image) for image in images()] == grids


def test_transparent_and_grey_images(tmp_path):
    processor = theirs("Siglip", tmp_path, **PLAIN["Siglip"])
    ours = txf.checkpoints.image_processor(tmp_path)
    rgba = np.concatenate([images()[0], images()[0][..., :1]], axis=-1)
    for image in (Image.fromarray(rgba), Image.fromarray(images()[0][..., 0]), Image.fromarray(rgba).convert("P")):
        expected = processor(image, return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
        np.testing.assert_allclose(ours([image]), expected, atol=1e-5)


def test_what_is_not_known_raises_an_error(tmp_path):
    theirs("Gemma3", tmp_path, do_pan_and_scan=True)
    refused(lambda: txf.checkpoints.image_processor(tmp_path), ["'do_pan_and_scan'"])
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "OwlImageProcessor"}))
    refused(lambda: txf.checkpoints.image_processor(tmp_path), ["`image_processor_type`", "Owl"])
    ours = txf.checkpoints.ImageProcessor({"shortest_edge": 8})
    refused(lambda: ours([images()[0] / 255]), ["`images`", "uint8", "float64"])
    refused(lambda: ours(images()), ["`images`", "one size"])
    refused(lambda: ours(images()[0]), ["`images`", "list"])
    tiles = txf.checkpoints.ImageProcessor({"longest_edge": 16}, tile_size=8)
    refused(lambda: tiles(images()), ["`images`", "list of lists"])
    refused(lambda: txf.checkpoints.ImageProcessor({"width": 8}), ["`size`", "'width'"])


@pytest.mark.parametrize("values, words", [
    ({"size": "large"}, ["`size`", "'large'"]), ({"size": {"depth": 8}}, ["`size`", "'depth'"]),
    ({"resample": 9}, ["`resample`", "9"]), ({"resample": None, "size": [8]}, ["`size`", "[8]"]),
    ({"crop_size": {"shortest_edge": 8}, "do_center_crop": True}, ["`crop_size`", "'shortest_edge'"]),
    ({"image_processor_type": "Gemma3ImageProcessor", "do_center_crop": True}, ["'do_center_crop'"]),
    ({"size": {"longest_edge": 8}}, ["`size`", "'longest_edge'"]),
    ({"image_processor_type": "SmolVLMImageProcessor", "size": {"shortest_edge": 8}}, ["`size`", "'shortest_edge'"]),
    ({"max_image_size": 8.5}, ["`max_image_size`", "8.5"]), ({"image_mean": 0.5}, ["`mean`", "0.5"]),
])  # fmt: skip
def test_values_of_other_types_raise_an_error(values, words, tmp_path):
    values = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 8, "width": 8}, **values}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    refused(lambda: txf.checkpoints.image_processor(tmp_path), words)
