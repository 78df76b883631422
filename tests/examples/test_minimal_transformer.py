"""examples/minimal_transformer.py: its blocks are the package's, and the script from start to end."""

import re

import keras
import minimal_transformer as minimal
import numpy as np
import pytest
from script_cases import run

NAMES = [(r"(coder_\d)_", r"\1/"), ("feed_forward_hidden", "feed_forward/intermediate"),
         ("feed_forward_output", "feed_forward/output")]  # fmt: skip


def path_in_block(path):
    for pattern, name in NAMES:
        path = re.sub(pattern, name, path)
    return path


def test_the_blocks_by_hand_compute_what_the_layers_do():
    by_hand, of_layers = minimal.transformer(), minimal.transformer(blocks=True)
    weights = {path_in_block(weight.path): weight for weight in by_hand.weights}
    assert weights.keys() == {weight.path for weight in of_layers.weights}
    for weight in of_layers.weights:
        weight.assign(weights[weight.path] + 0.1)
        weights[weight.path].assign(weight)
    questions, answers = minimal.sums()
    inputs = {"source_ids": minimal.encode(questions[:5], 6), "target_ids": minimal.encode(answers[:5], 4)}
    logits, expected = (keras.ops.convert_to_numpy(model(inputs)) for model in (by_hand, of_layers))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_the_loss_leaves_padding_out():
    logits, targets = np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32"), [[1, 2, 0], [3, 0, 0]]
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log([chances[0, 0, 1], chances[0, 1, 2], chances[1, 0, 3]]).mean()
    np.testing.assert_allclose(minimal.loss(np.array(targets), logits), expected, rtol=1e-5)


@pytest.mark.slow
def test_it_trains_and_adds():
    done = run("minimal_transformer", "--epochs", 1, "--held-out", 9900)
    assert done.returncode == 0, done.stderr
    *rows, last = done.stdout.splitlines()[-6:]
    assert all(re.fullmatch(r"\d+\+\d+ = [\d+]*", row) for row in rows), rows
    assert re.fullmatch(r"\d+\.\d% of 9,900 new sums are right", last)
