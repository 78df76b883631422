"""Keys of config.json that no family reads: passed over with a warning, or refused with a way out."""

import json

import keras
import numpy as np
import pytest
from folders import BERT, CONFIGS, GPT2, LLAMA, tensors, write
from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.config import NEUTRAL, OF_OTHER_CODE
from keras_txf.checkpoints.config_schema import KINDS
from keras_txf.checkpoints.transformers_keys import KEYS

load = txf.checkpoints.load
PUBLISHED = {  # keys of files on the Hub that no class of transformers reads
    "author": "me", "license": "mit", "name": "x", "emb_size": 768, "eos_token_ids": 2, "num_rnn_layer": 1,
    "student_type": "bert", "decoder_start_token_id": None, "kv_lora_rank": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write(tmp_path_factory.mktemp(name), config, tensors(config)) for name, config in CONFIGS.items()}


def with_config(folder, values):
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def weights(model):
    return {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}


def test_one_warning_names_all_keys_that_nothing_reads(folders, tmp_path):
    with pytest.warns(UserWarning) as found:
        model = load(with_config(folders["llama"], {**LLAMA, **PUBLISHED}))
    ours = [warning for warning in found if "config.json" in str(warning.message)]  # TensorFlow has some of its own
    assert len(ours) == 1 and ours[0].filename == __file__
    assert not [key for key in PUBLISHED if f"'{key}'" not in str(ours[0].message)]
    txf.checkpoints.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).items() >= PUBLISHED.items()
    with pytest.warns(UserWarning, match="emb_size"):
        load(tmp_path)


@pytest.mark.parametrize("config, changed", [
    (LLAMA, {"is_causal": False, "dual_chunk_attention_config": {"chunk_size": 262144}, "num_experts": 4,
             "quantization_config": {"quant_method": "gptq"}, "sliding_window": 3}),  # of Mistral
    (BERT, {"is_decoder": True, "is_encoder_decoder": True}),
    (GPT2, {"alibi": True}),
])  # fmt: skip
def test_a_key_that_changes_a_model_is_refused_but_for_ignore(folders, config, changed, tmp_path):
    folder = folders[config["model_type"]]
    for key, value in changed.items():
        with_config(folder, {**config, key: value})
        refused(lambda: load(folder), ["config.json", key, f"ignore=['{key}']"])
    with_config(folder, {**config, **changed})
    refused(lambda: load(folder, ignore=[*changed][1:]), [[*changed][0]])
    model = load(folder, ignore=[*changed])
    assert model.count_params() == load(with_config(folder, config)).count_params()
    txf.checkpoints.save(model, tmp_path)
    assert not changed.keys() & json.loads((tmp_path / "config.json").read_text()).keys()
    load(tmp_path)


def test_ignore_must_name_keys_of_the_file(folders):
    folder = with_config(folders["bert"], BERT)
    for wrong in ("is_causal", 3, [3], None):
        refused(lambda wrong=wrong: load(folder, ignore=wrong), ["`ignore` must be a list of keys"])
    refused(lambda: load(folder, ignore=["is_causal"]), ["`ignore` must name keys of config.json", "['is_causal']"])


@pytest.mark.parametrize("auto_map", [{"AutoConfig": "x.C"}, {"AutoModelForCausalLM": "x.M"}])
def test_code_in_the_folder_may_read_any_key(folders, auto_map):
    folder = with_config(folders["llama"], {**LLAMA, "auto_map": auto_map, "new_idea": 5})
    refused(lambda: load(folder), ["auto_map", "{'new_idea': 5}"])
    with pytest.warns(UserWarning, match="new_idea"):
        load(with_config(folder, {**LLAMA, "auto_map": {"AutoTokenizer": ["x.T", None]}, "new_idea": 5}))
    with pytest.warns(UserWarning, match="new_idea"):
        load(with_config(folder, {**LLAMA, "auto_map": auto_map, "new_idea": None}))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_without_a_model_type(folders, config, tmp_path):
    """The class has it, and a saved file has it again."""
    folder = folders[config["model_type"]]
    expected = load(with_config(folder, config))
    model = load(with_config(folder, {key: value for key, value in config.items() if key != "model_type"}))
    found = weights(model)
    for path, value in weights(expected).items():
        np.testing.assert_array_equal(found[path], value)
    txf.checkpoints.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == config["model_type"]
    config = {"architectures": ["BertModel", "GPT2LMHeadModel"]}
    refused(lambda: load(with_config(folder, config)), ["model_type"])


def test_the_names_of_keys_are_told_apart():
    assert len(KEYS) > 1000 and not KEYS & PUBLISHED.keys() - {"decoder_start_token_id", "kv_lora_rank"}
    assert not OF_OTHER_CODE & KEYS and not OF_OTHER_CODE & NEUTRAL
    assert len(KINDS.keys() - KEYS) < 12  # keys of old files
