"""examples/classify_digits.py: its data, its two nets, and the script from start to end."""

import os

import numpy as np
import pytest
from script_cases import assert_kept, output

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import classify_digits


def test_no_image_is_both_in_training_and_held_out():
    (images, labels), (others, held_out) = classify_digits.load(seed=3)
    assert images.shape == (9 * 1437, 8, 8, 1) and others.shape == (360, 8, 8, 1)
    assert (images.min(), images.max()) == (-1, 1) and len(labels) == 9 * 1437
    assert set(labels) == set(held_out) == set(range(10))
    unmoved = {image.tobytes() for image in images[4 * 1437 : 5 * 1437]}
    assert not unmoved & {image.tobytes() for image in others}
    assert not np.array_equal(held_out, classify_digits.load(seed=4)[1][1])


def test_shifts_are_by_one_pixel_and_bring_in_background():
    image = np.arange(64, dtype="float32").reshape(1, 8, 8, 1)
    moved = classify_digits.with_shifts(image)[..., 0]
    assert len(moved) == 9
    np.testing.assert_array_equal(moved[4], image[0, ..., 0])
    np.testing.assert_array_equal(moved[0, 1:, 1:], image[0, :-1, :-1, 0])  # down and to the right
    assert (moved[0, 0] == -1).all() and (moved[0, :, 0] == -1).all()


@pytest.mark.slow
def test_both_nets_are_of_one_size():
    transformer, convolutions = classify_digits.build_transformer(), classify_digits.build_convolutions()
    assert transformer.output_shape == convolutions.output_shape == (None, 10)
    assert abs(transformer.count_params() / convolutions.count_params() - 1) < 0.05


@pytest.mark.slow
def test_the_script_trains_both_and_draws(tmp_path):
    folder = tmp_path / "new" / "folder"
    printed = output("classify_digits", "--out", folder, "--epochs", 2)
    assert_kept(folder, printed, transformer=2, convolutions=2)
    names = [f"{name}.{ending}" for name in ("convolutions", "transformer") for ending in ("csv", "keras")]
    assert sorted(os.listdir(folder)) == sorted([*names, "attention.png", "results.txt"])
    assert (folder / "attention.png").read_bytes().startswith(b"\x89PNG")
    result = printed.splitlines()[-1].split()
    accuracies = {name: float(result[result.index(name) + 1].rstrip("%")) for name in ("transformer", "convolutions")}
    assert accuracies["transformer"] > 40 and accuracies["convolutions"] > 90  # by chance 10
