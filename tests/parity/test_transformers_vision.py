"""ViT is a row of options of image_encoder and image_classifier: logits, hidden states and scores agree."""

import numpy as np
import pytest
import torch
import transformers
from parity.weights import attention_table, block_table, close, copy_weights, normal, numbered, randomize, state_of

import keras_txf as txf
from keras_txf.models import image_classifier, image_encoder

pytestmark = pytest.mark.parity

DIM, HEADS, WIDTH, LAYERS, CLASSES, CHANNELS, BATCH = 12, 3, 20, 2, 5, 4, 2

BLOCKS = numbered(
    block_table(attention_table("block/attention", "attention", ("q_proj", "k_proj", "v_proj", "o_proj")),
                "layernorm_before", {"intermediate": "mlp.fc1", "output": "mlp.fc2"}, "layernorm_after"), "encoder_*",
    "layers.*",
)  # fmt: skip
MODEL = {**BLOCKS, "encoder_norm": "layernorm"}
CLASSIFIER = {ours: f"vit.{theirs}" for ours, theirs in MODEL.items()} | {"logits": "classifier"}


def their_model(cls, image_size, patch_size, **options):
    config = transformers.ViTConfig(
        hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=WIDTH,
        image_size=image_size, patch_size=patch_size, num_channels=CHANNELS, num_labels=CLASSES, layer_norm_eps=1e-2,
        attn_implementation="eager",
    )  # fmt: skip
    return randomize(cls(config, **options))


def our_options(activation="gelu", **options):
    return dict(
        channels=CHANNELS, intermediate_dim=WIDTH, norm_epsilon=1e-2, activation=activation, return_hidden_states=True,
        return_attention_scores=True, **options,
    )  # fmt: skip


def copy_vit(theirs, ours, table, prefix=""):
    """The embedding by the layout that PatchEmbedding documents, and the rest by its table."""
    state = state_of(theirs)
    embedding, their_embedding = ours.get_layer("embedding"), f"{prefix}embeddings."
    kernel = state.pop(f"{their_embedding}patch_embeddings.projection.weight")  # (dim, channels, height, width)
    rows = kernel.transpose(2, 3, 1, 0).reshape(-1, DIM)
    back = rows.reshape(*embedding.patch_size, CHANNELS, DIM).transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(back, kernel)
    embedding.patch.kernel.assign(rows)
    embedding.patch.bias.assign(state.pop(f"{their_embedding}patch_embeddings.projection.bias"))
    embedding.class_vector.assign(state.pop(f"{their_embedding}cls_token").reshape(DIM))
    embedding.position.embeddings.assign(state.pop(f"{their_embedding}position_embeddings")[0])
    copy_weights(state, [weight for weight in ours.weights if not weight.path.startswith("embedding/")], table)


def pixels(images):
    """Their images have channels first."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def all_agree(outputs, expected, last):
    """Every hidden state, of which ours is normed at the last, and every block's scores."""
    *hidden_states, _ = expected.hidden_states
    for depth, hidden in enumerate([*hidden_states, last]):
        close(outputs[f"hidden_states_{depth}"], hidden)
    assert len(expected.attentions) == LAYERS
    for depth, scores in enumerate(expected.attentions):
        close(outputs[f"attention_scores_{depth}"], scores)


@pytest.mark.parametrize("image_size, patch_size", [((6, 8), (2, 4)), (6, 2)], ids=["oblong", "square"])
def test_vit_for_image_classification(image_size, patch_size):
    theirs = their_model(transformers.ViTForImageClassification, image_size, patch_size)
    ours = image_classifier(image_size, patch_size, CLASSES, LAYERS, DIM, HEADS, **our_options())
    copy_vit(theirs, ours, CLASSIFIER, "vit.")
    images = normal(BATCH, *ours.input.shape[1:])
    expected = theirs(pixels(images), output_hidden_states=True, output_attentions=True)
    outputs = ours(images)
    close(outputs["logits"], expected.logits)
    all_agree(outputs, expected, theirs.vit(pixels(images)).last_hidden_state)


def test_vit_at_another_resolution():
    """Trained with 3 x 3 patches, used with 5 x 4: positions are interpolated, the weights are the same."""
    theirs = their_model(transformers.ViTForImageClassification, 6, 2)
    ours = image_classifier(6, 2, CLASSES, LAYERS, DIM, HEADS, interpolate_positions=True, **our_options())
    copy_vit(theirs, ours, CLASSIFIER, "vit.")
    for size in ((10, 8), (2, 4), (6, 6)):
        images = normal(BATCH, *size, CHANNELS)
        arguments = {"pixel_values": pixels(images), "interpolate_pos_encoding": True}
        expected = theirs(**arguments, output_hidden_states=True, output_attentions=True)
        outputs = ours(images)
        close(outputs["logits"], expected.logits)
        all_agree(outputs, expected, theirs.vit(**arguments).last_hidden_state)


def test_dinov3_at_another_resolution(tmp_path):
    """Rotary positions go from edge to edge of every image: the weights are the same, the grid is another one."""
    config = transformers.DINOv3ViTConfig(
        hidden_size=24, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=WIDTH, image_size=8,
        patch_size=4, num_channels=CHANNELS, num_register_tokens=2,
    )  # fmt: skip
    theirs = randomize(transformers.DINOv3ViTModel(config))
    theirs.save_pretrained(tmp_path)
    for size, grid in (((8, 8), (2, 2)), ((12, 20), (3, 5))):
        position = txf.layers.AxialRotary(grid, tokens_before=3)
        ours = txf.checkpoints.load(tmp_path, image_size=size, position=position)
        images = normal(BATCH, *size, CHANNELS)
        close(ours(images), theirs(pixels(images)).last_hidden_state)


def test_vit_model():
    theirs = their_model(transformers.ViTModel, (6, 8), (2, 4), add_pooling_layer=False)
    ours = image_encoder((6, 8), (2, 4), LAYERS, DIM, HEADS, **our_options())
    copy_vit(theirs, ours, MODEL)
    images = normal(BATCH, 6, 8, CHANNELS)
    expected = theirs(pixels(images), output_hidden_states=True, output_attentions=True)
    outputs = ours(images)
    close(outputs["output"], expected.last_hidden_state)
    all_agree(outputs, expected, expected.last_hidden_state)
