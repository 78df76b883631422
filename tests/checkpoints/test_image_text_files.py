"""Folders of CLIP and SigLIP as they were published: older keys, buffers and names, one tower alone."""

import json

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN, answers, expected
from refusals import refused
from safetensors.numpy import load_file, save_file

import keras_txf as txf

# What the parts of CLIP's first config.json hold beside their sizes.
OF_TRANSFORMERS_4 = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None, "bad_words_ids": None,
    "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "decoder_start_token_id": None,
    "diversity_penalty": 0.0, "do_sample": False, "dropout": 0.0, "early_stopping": False, "finetuning_task": None,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_factor": 1.0, "is_decoder": False,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "num_beams": 1, "prefix": None,
    "pruned_heads": {}, "return_dict": True, "sep_token_id": None, "tie_encoder_decoder": False,
    "tie_word_embeddings": True, "tokenizer_class": None, "torch_dtype": None, "torchscript": False,
    "transformers_version": "4.16.0.dev0", "use_bfloat16": False,
}  # fmt: skip


def read(family):
    return json.loads((GOLDEN / family / "config.json").read_text()), load_file(GOLDEN / family / "model.safetensors")


def write(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def same(family, folder, **options):
    inputs, *_ = expected(family)
    found = (answers(txf.checkpoints.load(one, **options), inputs) for one in (GOLDEN / family, folder))
    for before, after in zip(*found, strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_first_files_of_clip(tmp_path):
    config, tensors = read("clip")
    for side in ("text", "vision"):
        config[f"{side}_config"] = {**OF_TRANSFORMERS_4, **config[f"{side}_config"]}
        config[f"{side}_config_dict"] = None
        tensors[f"{side}_model.embeddings.position_ids"] = np.arange(7)[None]
    same("clip", write(tmp_path, config, tensors))


def test_the_older_key_of_a_part_has_the_say(tmp_path):
    config, tensors = read("clip")
    part = config["text_config"]
    config["text_config_dict"] = {**part}
    config["text_config"] = {**part, "hidden_size": 99, "hidden_act": "relu"}
    same("clip", write(tmp_path, config, tensors))


def test_a_tower_under_the_names_of_transformers_4(tmp_path):
    config, tensors = read("clip_vision_model")
    before = {f"vision_model.{name}": tensor for name, tensor in tensors.items()}
    same("clip_vision_model", write(tmp_path, config, before))


def test_a_projection_beside_a_tower_is_passed_over(tmp_path):
    config, tensors = read("clip_text_model")
    tensors = {f"text_model.{name}": tensor for name, tensor in tensors.items()}
    tensors["text_projection.weight"] = np.zeros((5, 8), "float16")
    config["architectures"] = ["CLIPTextModelWithProjection"]
    same("clip_text_model", write(tmp_path, config, tensors))


@pytest.mark.parametrize("family, part, changes, words", [
    ("clip", "text_config", {"kv_lora_rank": 4}, ["text_config of config.json", "{'kv_lora_rank': 4}"]),
    ("clip", "vision_config", {"hidden_size": "wide"}, ["vision_config of config.json", "`hidden_size`", "'wide'"]),
    ("clip", "vision_config", {"image_size": [12, 8]}, ["`image_size`", "12 and 8"]),
    ("siglip", "vision_config", {"vision_use_head": False}, ["vision_config of config.json", "'vision_use_head'"]),
    ("siglip", "text_config", {"num_hidden_layers": 4000}, ["4000 blocks"]),
])  # fmt: skip
def test_what_is_not_built_is_refused(family, part, changes, words, tmp_path):
    config, tensors = read(family)
    config[part] = {**config[part], **changes}
    refused(lambda: txf.checkpoints.load(write(tmp_path, config, tensors)), words)


def test_a_model_of_the_builder_is_saved(tmp_path):
    config, _ = read("clip")
    vision, text = config["vision_config"], config["text_config"]
    texts = dict(
        num_layers=text["num_hidden_layers"], dim=text["hidden_size"], num_heads=text["num_attention_heads"],
        intermediate_dim=text["intermediate_size"], activation="silu", norm_epsilon=text["layer_norm_eps"],
        position_encoding="learned", max_length=text["max_position_embeddings"], scale_embedding=False, pad_id=None,
    )  # fmt: skip
    model = txf.models.dual_encoder(
        vision["image_size"], vision["patch_size"], text["vocab_size"], vision["num_hidden_layers"],
        vision["hidden_size"], vision["num_attention_heads"], config["projection_dim"],
        end_id=text["eos_token_id"], intermediate_dim=vision["intermediate_size"], activation="gelu",
        norm_epsilon=vision["layer_norm_eps"], image_options={"embedding_norm": True, "patch_bias": False},
        text_options=texts,
    )  # fmt: skip
    txf.checkpoints.save(model, tmp_path, config)
    inputs, *_ = expected("clip")
    again = txf.checkpoints.load(tmp_path)
    for before, after in zip(answers(model, inputs), answers(again, inputs), strict=True):
        np.testing.assert_allclose(before, after, atol=1e-6)
    config["projection_dim"] += 1
    refused(lambda: txf.checkpoints.save(model, tmp_path, config), ["`config` must describe the model"])


def test_every_layer_has_the_dtype_of_load():
    model = txf.checkpoints.load(GOLDEN / "siglip", dtype="bfloat16")
    assert {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights} == {"bfloat16"}
    inputs, logits, _ = expected("siglip")
    np.testing.assert_allclose(answers(model, inputs)[0].astype("float32"), logits, atol=0.05)
