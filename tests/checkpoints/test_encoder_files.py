"""Files of encoders in the forms that they are published in, beside those that transformers writes today."""

import json

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN, expected
from folders import write
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf


def parts(family):
    return json.loads((GOLDEN / family / "config.json").read_text()), load_file(GOLDEN / family / "model.safetensors")


def outputs(folder, family):
    return keras.ops.convert_to_numpy(txf.checkpoints.load(folder)(expected(family)[0]))


STARRED = "esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"


def esm(**others):
    """A file of before, with the frequencies in each block, and positions that nothing reads."""
    config, arrays = parts("esm")
    frequencies = arrays.pop(STARRED)
    for i in range(2):
        arrays[STARRED.replace("*", str(i))] = frequencies
    arrays["esm.embeddings.position_embeddings.weight"] = np.zeros((26, 8), "float16")
    arrays["esm.embeddings.position_ids"] = np.arange(26)[None]
    return {**config, "classifier_dropout": None, "hidden_act": "gelu"}, {**arrays, **others}


def test_frequencies_of_esm_in_each_block(tmp_path):
    np.testing.assert_array_equal(outputs(write(tmp_path, *esm()), "esm"), outputs(GOLDEN / "esm", "esm"))


def test_frequencies_of_esm_that_differ_from_block_to_block_are_refused(tmp_path):
    other = {STARRED.replace("*", "1"): np.ones(2, "float16")}
    refused(lambda: txf.checkpoints.load(write(tmp_path, *esm(**other))), ["layer.1", "differ"])


@pytest.mark.parametrize("family, changed, words", [
    ("esm", {"is_folding_model": True}, ["'is_folding_model'"]),
    ("esm", {"pad_token_id": None}, ["`pad_token_id`"]),
    ("albert", {"inner_group_num": 2}, ["'inner_group_num'"]),
    ("albert", {"num_hidden_layers": 3}, ["`num_hidden_groups`", "divide", "3"]),
    ("m2m_100", {"pad_token_id": 0}, ["'pad_token_id'"]),
    ("mbart", {"normalize_before": False}, ["'normalize_before'"]),
    ("pegasus", {"static_position_embeddings": False}, ["'static_position_embeddings'"]),
    ("dinov2", {"image_size": [12, 8]}, ["`image_size`", "square"]),
    ("dinov3_vit", {"num_register_tokens": 0}, ["`num_register_tokens`", "from 1 on"]),
    ("dinov3_vit", {"value_bias": False}, ["'value_bias'", "False"]),
    ("beit", {"image_size": [12, 8]}, ["`image_size`", "square"]),
    ("dinov2_with_registers", {"num_register_tokens": 0}, ["`num_register_tokens`", "0"]),
    ("beit", {"use_shared_relative_position_bias": True}, ["use_shared_relative_position_bias", "both"]),
    ("eurobert", {"classifier_pooling": "max"}, ["'classifier_pooling'", "'max'"]),
    ("t5gemma", {"pad_token_id": 3}, ["'pad_token_id'", "3"]),
    ("t5gemma", {"encoder": 3}, ["`encoder`", "JSON object", "3"]),
])  # fmt: skip
def test_models_that_are_not_built_are_refused(family, changed, words, tmp_path):
    config, arrays = parts(family)
    refused(lambda: txf.checkpoints.load(write(tmp_path, {**config, **changed}, arrays)), ["config.json", *words])


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_keys_of_one_side_that_are_not_known_are_refused_there(side, tmp_path):
    config, arrays = parts("t5gemma")
    changed = {**config, side: {**config[side], "kv_lora_rank": 4}}
    refused(lambda: txf.checkpoints.load(write(tmp_path, changed, arrays)), [f"{side} of config.json", "kv_lora_rank"])


def test_a_decoder_that_attends_both_ways_is_no_language_model(tmp_path):
    config, arrays = parts("gemma3_text")
    folder = write(tmp_path, {**config, "use_bidirectional_attention": True}, arrays)
    refused(lambda: txf.checkpoints.load(folder), ["`use_bidirectional_attention`", "'causal_lm'", "task='encoder'"])
    model = txf.checkpoints.load(folder, "encoder")
    ids = np.array([[5, 6, 7, 8]])
    before, after = (keras.ops.convert_to_numpy(model(one)) for one in (ids, np.array([[5, 6, 7, 9]])))
    assert np.abs(before[:, 0] - after[:, 0]).max() > 1e-3


PUBLISHED = [  # what published files say besides, which changes nothing
    ("albert", {"gap_size": 0, "net_structure_type": 0, "down_scale_factor": 1, "num_memory_blocks": 0,
                "layers_to_keep": []}),
    ("mbart", {"add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True,
               "normalize_embedding": True, "static_position_embeddings": False, "num_hidden_layers": 12}),
    ("pegasus", {"add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True,
                 "normalize_embedding": False, "static_position_embeddings": True, "extra_pos_embeddings": 1}),
    ("eurobert", {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "pad_token": "<pad>"}),
]  # fmt: skip


@pytest.mark.parametrize("family, keys", PUBLISHED)
def test_keys_of_published_files(family, keys, tmp_path):
    config, arrays = parts(family)
    found = outputs(write(tmp_path, {**config, **keys}, arrays), family)
    np.testing.assert_array_equal(found, outputs(GOLDEN / family, family))


def test_both_heads_of_deit_get_new_classes():
    model = txf.checkpoints.load(GOLDEN / "deit", num_classes=7)
    assert {model.get_layer(name).units for name in ("logits", "distillation_logits")} == {7}
    assert model(expected("deit")[0]).shape[-1] == 7
    alone = txf.checkpoints.load(GOLDEN / "deit", "image_classification", num_classes=4)
    assert "distillation_logits" not in [layer.name for layer in alone.layers]


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_the_token_of_masked_patches_is_passed_over(family, tmp_path):
    """`ViTForMaskedImageModeling` has it within the body."""
    config, arrays = parts(family)
    heads = {name for name in arrays if not name.startswith(f"{family}.")}
    arrays = {name: value for name, value in arrays.items() if name not in heads}
    whole = txf.checkpoints.load(GOLDEN / family, "image_encoder")
    arrays |= {
        f"{family}.embeddings.mask_token": np.ones((1, 1, 8), "float16"),
        "decoder.0.bias": np.ones(3, "float16"),
    }
    model = txf.checkpoints.load(write(tmp_path, {**config, "architectures": ["Masked"]}, arrays), "image_encoder")
    found, known = (keras.ops.convert_to_numpy(one(expected(family)[0])) for one in (model, whole))
    np.testing.assert_array_equal(found, known)


def deberta():
    """A file as those of v3: no class in config.json, the decoder of pretraining beside the body."""
    config, arrays = parts("deberta-v2")
    arrays = {name: value for name, value in arrays.items() if not name.startswith("cls.")}
    head = {"dense.weight": (8, 8), "dense.bias": (8,), "LayerNorm.weight": (8,), "LayerNorm.bias": (8,), "bias": (61,)}
    rng = np.random.default_rng(0)
    for name, shape in head.items():
        arrays[f"lm_predictions.lm_head.{name}"] = rng.normal(size=shape).astype("float16")
    arrays["mask_predictions.dense.weight"] = np.zeros((8, 8), "float16")
    arrays["deberta.embeddings.position_embeddings.weight"] = np.zeros((26, 8), "float16")
    return {name: value for name, value in config.items() if name not in ("architectures", "legacy")}, arrays


def test_the_body_and_both_heads_of_a_file_of_deberta_v3(tmp_path):
    config, arrays = deberta()
    inputs, _, real = expected("deberta-v2")
    hidden = outputs(write(tmp_path, config, arrays), "deberta-v2")
    whole = txf.checkpoints.load(GOLDEN / "deberta-v2", "encoder")
    np.testing.assert_array_equal(hidden, keras.ops.convert_to_numpy(whole(inputs)))
    refused(lambda: txf.checkpoints.load(tmp_path, "masked_lm"), ["cls.predictions"])
    logits = txf.checkpoints.load(write(tmp_path, {**config, "legacy": False}, arrays), "masked_lm")(inputs)
    new = {name.rpartition("lm_head.")[2]: value.astype("float64") for name, value in arrays.items() if "lm_" in name}
    x = hidden.astype("float64") @ new["dense.weight"].T + new["dense.bias"]
    x = keras.ops.convert_to_numpy(keras.activations.gelu(x.astype("float32"))).astype("float64")
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + config["layer_norm_eps"])
    x = x * new["LayerNorm.weight"] + new["LayerNorm.bias"]
    table = arrays["deberta.embeddings.word_embeddings.weight"].astype("float64")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(logits)[real], (x @ table.T + new["bias"])[real], rtol=1e-4, atol=1e-4
    )
