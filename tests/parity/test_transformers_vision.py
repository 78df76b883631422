"""Images of other sizes than a model was trained on, and attention scores, equal transformers."""

import pytest
import torch
import transformers
from parity.weights import close, normal, randomize

import keras_txf as txf

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

CHANNELS, BATCH = 4, 2
SIZES = dict(num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, num_channels=CHANNELS)


def pixels(images):
    """Their images have channels first."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def test_vit_at_another_resolution(tmp_path):
    """Trained with 3 x 3 patches, used with 5 x 4: positions are interpolated, the weights are the same."""
    config = transformers.ViTConfig(
        hidden_size=12, image_size=6, patch_size=2, num_labels=5, attn_implementation="eager", **SIZES
    )
    theirs = randomize(transformers.ViTForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = txf.checkpoints.load(
        tmp_path, interpolate_positions=True, return_hidden_states=True, return_attention_scores=True
    )
    for size in ((10, 8), (2, 4), (6, 6)):
        images = normal(BATCH, *size, CHANNELS)
        expected = theirs(
            pixels(images), interpolate_pos_encoding=True, output_hidden_states=True, output_attentions=True
        )
        outputs = ours(images)
        close(outputs["logits"], expected.logits)
        for depth, hidden in enumerate(expected.hidden_states[:-1]):
            close(outputs[f"hidden_states_{depth}"], hidden)
        for depth, scores in enumerate(expected.attentions):
            close(outputs[f"attention_scores_{depth}"], scores)


def test_dinov3_at_another_resolution(tmp_path):
    """Rotary positions go from edge to edge of every image: the weights are the same, the grid is another one."""
    config = transformers.DINOv3ViTConfig(hidden_size=24, image_size=8, patch_size=4, num_register_tokens=2, **SIZES)
    theirs = randomize(transformers.DINOv3ViTModel(config))
    theirs.save_pretrained(tmp_path)
    for size, grid in (((8, 8), (2, 2)), ((12, 20), (3, 5))):
        position = txf.layers.AxialRotary(grid, tokens_before=3)
        ours = txf.checkpoints.load(tmp_path, image_size=size, position=position)
        images = normal(BATCH, *size, CHANNELS)
        close(ours(images), theirs(pixels(images)).last_hidden_state)
