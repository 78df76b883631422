"""Values of config.json that raise ValueError, and keys that no family reads: ignored with a warning, or an error."""

import ast
import json
import pathlib

import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN, answers, changed_folder
from checkpoints.test_loading import same
from folders import BERT, CONFIGS, GPT2, LLAMA, tensors, write
from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.config import NEUTRAL, OF_OTHER_CODE, Config, transformers_keys
from keras_txf.checkpoints.config_schema import KEYS, NULL, VALUE_CHECKS
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.family import SIZES
from keras_txf.checks import short_repr


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write(tmp_path_factory.mktemp(name), config, tensors(config)) for name, config in CONFIGS.items()}


def configured(folder, config, **changed):
    (folder / "config.json").write_text(json.dumps({**config, **changed}))
    return folder


def load(folder, config, **changed):
    return txf.checkpoints.load(configured(folder, config, **changed))


HUGE = [2**24 + 1, 10**9, 2**31, 2**63, 2**64, 10**30, 10**400]
NOT_SIZES = ["32", "", None, -1, 0, 8.0, 1.5, 1e9, True, False, [], [8], {}, float("nan"), float("inf"), *HUGE]
NOT_RATES = ["0.1", None, -0.1, 1, 1.5, True, [], {}, float("nan"), float("inf")]
NOT_POSITIVE = ["1e-5", None, -1e-5, 0, True, [], {}, float("nan"), float("inf")]
NOT_BOOLEAN = ["true", None, 0, 1, 1.0, [], {}]
WRONG = [
    *((BERT, key, NOT_SIZES) for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                                         "intermediate_size", "max_position_embeddings")),
    *((GPT2, key, NOT_SIZES) for key in ("n_embd", "n_layer", "n_head", "n_positions")),
    (GPT2, "n_inner", [x for x in NOT_SIZES if x is not None]),
    (LLAMA, "num_key_value_heads", [x for x in NOT_SIZES if x is not None]),
    (LLAMA, "head_dim", [x for x in NOT_SIZES if x is not None]),
    (BERT, "type_vocab_size", [x for x in NOT_SIZES if x != 0]),
    (BERT, "hidden_dropout_prob", NOT_RATES),
    (BERT, "classifier_dropout", [x for x in NOT_RATES if x is not None]),
    (BERT, "layer_norm_eps", NOT_POSITIVE),
    (LLAMA, "rms_norm_eps", NOT_POSITIVE),
    (LLAMA, "rope_theta", NOT_POSITIVE),
    (LLAMA, "attention_bias", NOT_BOOLEAN),
    (LLAMA, "tie_word_embeddings", NOT_BOOLEAN),
    (BERT, "pad_token_id", ["0", -2, 1.0, True, [], {}]),
    (BERT, "hidden_act", ["golu", "", None, 7, [], {}, True]),
    (LLAMA, "rope_scaling", ["linear", 2.0, [], True]),
    (LLAMA, "rope_parameters", ["linear", 2.0, [], True]),
    (BERT, "id2label", ["x", 3, [], {}, True]),
    (BERT, "num_labels", NOT_SIZES),
    (BERT, "architectures", ["BertForMaskedLM", 7, {}, [7], [None], True]),
    (BERT, "model_type", ["birt", "", None, 7, [], {}, True]),
]  # fmt: skip


@pytest.mark.parametrize(
    "config, key, values", [pytest.param(*row, id=f"{row[0]['model_type']}-{row[1]}") for row in WRONG]
)
def test_a_value_of_another_kind(folders, config, key, values):
    for value in values:
        words = ["config.json", key]
        if key != "model_type":
            words.append(short_repr(value))
        refused(lambda value=value: load(folders[config["model_type"]], config, **{key: value}), words)


@pytest.mark.parametrize("config, key, shape", [
    (BERT, "vocab_size", "30522"), (BERT, "hidden_size", "768"), (BERT, "num_hidden_layers", "encoder.layer.11."),
    (GPT2, "n_embd", "768"), (LLAMA, "vocab_size", "32000"),
])  # fmt: skip
def test_a_size_that_is_missing(folders, config, key, shape):
    """It has transformers' default, which the tensors do not have."""
    rest = {name: value for name, value in config.items() if name != key}
    refused(lambda: load(folders[config["model_type"]], rest), ["config.json", shape])


def test_missing_keys_have_the_defaults_of_transformers(folders):
    values = {key: value for key, value in LLAMA.items() if key not in ("max_position_embeddings", "rms_norm_eps")}
    model = load(folders["llama"], values)  # and no warning
    assert model.get_layer("decoder_norm").epsilon == 1e-6
    assert model.get_layer("embedding").max_length is None  # the default, 2048, limits nothing in transformers


def test_a_family_without_defaults(folders):
    config = Config({"model_type": "none of transformers"})
    refused(lambda: config("hidden_size"), ["config.json must have 'hidden_size'"])
    values = {**BERT, "architectures": None, "model_type": None}
    refused(lambda: load(folders["bert"], values), ["`model_type`", "`architectures`", "neither"])


@pytest.mark.parametrize("config, changed, words", [
    (BERT, {"num_attention_heads": 3}, ["num_attention_heads=3", "hidden_size=8"]),
    (BERT, {"num_attention_heads": 16}, ["num_attention_heads=16", "hidden_size=8"]),
    (GPT2, {"n_head": 3}, ["n_head=3", "n_embd=8"]), (GPT2, {"n_head": 16}, ["n_head=16", "n_embd=8"]),
    (LLAMA, {"num_key_value_heads": 3}, ["num_key_value_heads=3", "num_attention_heads=4"]),
    (LLAMA, {"rope_scaling": {"type": "linear", "factor": "2"}}, ["rope_scaling={'factor': '2'", "factor"]),
    (LLAMA, {"rope_scaling": {"type": "conic", "factor": 2.0}}, ["rope_scaling=", "conic"]),
    (LLAMA, {"rope_scaling": {"type": ["linear"]}}, ["rope_scaling="]),
    (LLAMA, {"rope_scaling": {"type": "linear", "factor": None}}, ["rope_scaling="]),
    (LLAMA, {"rope_parameters": {"rope_theta": "1"}}, ["rope_parameters={'rope_theta': '1'"]),
    (LLAMA, {"head_dim": 3}, ["head_dim=3"]), (BERT, {"pad_token_id": 11}, ["pad_token_id=11", "vocab_size=11"]),
])  # fmt: skip
def test_values_that_do_not_go_together(folders, config, changed, words):
    """A builder finds out; its arguments have other names than the keys."""
    refused(lambda: load(folders[config["model_type"]], config, **changed), ["config.json must describe", *words])


@pytest.mark.parametrize("config, changed, words", [
    (BERT, {"hidden_size": 16}, ["'bert.embeddings.word_embeddings.weight'", "(11, 8)", "(11, 16)"]),
    (BERT, {"hidden_size": 2**24}, ["(11, 8)", "(11, 16777216)"]),
    (BERT, {"vocab_size": 2**24}, ["(11, 8)", "(16777216, 8)"]),
    (BERT, {"max_position_embeddings": 2**24}, ["(7, 8)", "(16777216, 8)"]),
    (BERT, {"intermediate_size": 2**24}, ["(12, 8)", "(8, 16777216)"]),
    (GPT2, {"n_embd": 2**24}, ["(8, 24)", "(16777216, 16777216)"]),
    (LLAMA, {"head_dim": 2**24}, ["(8, 8)", "(8, 67108864)"]),
    (BERT, {"num_hidden_layers": 1}, ["'bert.encoder.layer.1.attention.output.LayerNorm.bias'"]),
    (BERT, {"num_hidden_layers": 3}, ["'encoder.layer.2.attention.output.LayerNorm.bias'"]),
    (BERT, {"num_hidden_layers": 4096}, ["4096 blocks", "tensors"]),
])  # fmt: skip
def test_sizes_that_the_tensors_do_not_have(folders, config, changed, words):
    """No memory is asked for: the model gets its numbers from the file, which lacks them."""
    refused(lambda: load(folders[config["model_type"]], config, **changed), words)


@pytest.mark.parametrize("changed", [
    {"partial_rotary_factor": 0.5}, {"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
])  # fmt: skip
def test_a_llama_that_turns_some_features(folders, changed):
    """The class in transformers reads no such key and turns them all; a model that did would answer otherwise."""
    refused(lambda: load(folders["llama"], LLAMA, **changed), ["config.json must have", "partial_rotary_factor", "0.5"])
    load(folders["llama"], LLAMA, rope_parameters={"rope_theta": 100.0, "partial_rotary_factor": 1.0})


@pytest.mark.parametrize("config, changed", [
    (BERT, {"hidden_dropout_prob": 0, "pad_token_id": None, "classifier_dropout": None, "layer_norm_eps": 1e-12}),
    (GPT2, {"pad_token_id": -1}), (GPT2, {"n_inner": 12, "pad_token_id": None, "architectures": None}),
    (LLAMA, {"head_dim": None, "num_key_value_heads": 2, "rope_scaling": None, "rope_theta": 10000}),
])  # fmt: skip
def test_what_published_files_say(folders, config, changed):
    load(folders[config["model_type"]], config, **changed)


def keys_asked_for():
    """The keys in calls of a `Config`, wherever a family makes them, and in calls of `sizes`."""
    yield from SIZES.values()
    for file in pathlib.Path(llama.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                caller = node.func.value if method in ("each", "activation", "part") else node.func
                if isinstance(caller, ast.Name) and caller.id == "c":
                    yield node.args[0].value
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sizes":
                yield from (k.value.value for k in node.keywords if k.value.value is not None)


OF_OTHER_FILES = {  # keys that loading.py, config.py and functions of families ask for by other means
    "model_type", "architectures", "id2label", "num_labels", "tie_word_embeddings", "text_config", "vision_config",
    "text_config_dict", "vision_config_dict", "rotary_emb_base", "bos_token_id", "value_bias", "cls_dropout",
}  # fmt: skip


def test_each_key_has_one_kind_and_is_asked_for():
    asked = set(keys_asked_for())
    assert len(asked) > 80 and asked <= VALUE_CHECKS.keys(), (
        f"add to config_schema.KEYS: {sorted(asked - VALUE_CHECKS.keys())}"
    )
    assert sum(map(len, KEYS.values())) == len(VALUE_CHECKS)
    assert NULL <= VALUE_CHECKS.keys() <= asked | OF_OTHER_FILES


def test_null_where_there_is_no_such_thing():
    config = Config({"head_dim": None, "hidden_size": None, "n_inner": None})
    assert config("head_dim", 128) is None and config("n_inner", None) is None
    refused(lambda: config("hidden_size"), ["config.json", "`hidden_size`", "None"])
    refused(lambda: config("n_inner", 5), ["config.json", "`n_inner`", "None"])
    refused(lambda: config("dim"), ["config.json", "'dim'", "hidden_size"])


def test_a_start_token_that_is_padding_has_no_position_in_m2m_100(tmp_path):
    folder = changed_folder("m2m_100", tmp_path, decoder_start_token_id=1)
    refused(lambda: txf.checkpoints.load(folder), ["`decoder_start_token_id`", "`pad_token_id`", "received 1"])


def test_the_width_of_heads_in_both_deepseeks(tmp_path):
    """The class of V2 takes `qk_rope_head_dim` whatever `head_dim` says, the class of V3 takes `head_dim`."""
    folder = changed_folder("deepseek_v2", tmp_path / "deepseek_v2", head_dim=64)
    models = [txf.checkpoints.load(one) for one in (GOLDEN / "deepseek_v2", folder)]
    np.testing.assert_array_equal(*(answers(model, np.array([[5, 6, 7]]))[0] for model in models))
    folder = changed_folder("deepseek_v3", tmp_path / "deepseek_v3", head_dim=64)
    refused(lambda: txf.checkpoints.load(folder), ["'head_dim'", "64"])


PUBLISHED = {  # keys of files on the Hub that no class of transformers reads
    "author": "me", "license": "mit", "name": "x", "emb_size": 768, "eos_token_ids": 2, "num_rnn_layer": 1,
    "student_type": "bert", "decoder_start_token_id": None, "kv_lora_rank": None,
}  # fmt: skip


def test_one_warning_names_all_keys_that_nothing_reads(folders, tmp_path):
    with pytest.warns(UserWarning) as found:
        model = load(folders["llama"], {**LLAMA, **PUBLISHED})
    ours = [warning for warning in found if "config.json" in str(warning.message)]  # TensorFlow gives other warnings
    assert len(ours) == 1 and ours[0].filename == __file__
    assert not [key for key in PUBLISHED if f"'{key}'" not in str(ours[0].message)]
    txf.checkpoints.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).items() >= PUBLISHED.items()
    with pytest.warns(UserWarning, match="emb_size"):
        txf.checkpoints.load(tmp_path)


@pytest.mark.parametrize("config, changed", [
    (LLAMA, {"qk_layernorm": True, "dual_chunk_attention_config": {"chunk_size": 262144}, "num_experts": 4,
             "quantization_config": {"quant_method": "gptq"}, "sliding_window": 3}),  # of Mistral
    (BERT, {"is_decoder": True, "is_encoder_decoder": True}),
    (GPT2, {"alibi": True}),
])  # fmt: skip
def test_a_key_that_changes_a_model_raises_value_error_without_ignore(folders, config, changed, tmp_path):
    folder = folders[config["model_type"]]
    for key, value in changed.items():
        configured(folder, {**config, key: value})
        refused(lambda: txf.checkpoints.load(folder), ["config.json", key, f"ignore=['{key}']"])
    configured(folder, {**config, **changed})
    refused(lambda: txf.checkpoints.load(folder, ignore=[*changed][1:]), [[*changed][0]])
    model = txf.checkpoints.load(folder, ignore=[*changed])
    assert model.count_params() == load(folder, config).count_params()
    txf.checkpoints.save(model, tmp_path)
    assert not changed.keys() & json.loads((tmp_path / "config.json").read_text()).keys()
    txf.checkpoints.load(tmp_path)


def test_ignore_must_name_keys_of_the_file(folders):
    folder = configured(folders["bert"], BERT)
    for wrong in ("is_causal", 3, [3], None):
        refused(lambda wrong=wrong: txf.checkpoints.load(folder, ignore=wrong), ["`ignore` must be a list of keys"])
    refused(
        lambda: txf.checkpoints.load(folder, ignore=["is_causal"]),
        ["`ignore` must name keys of config.json", "['is_causal']"],
    )


def test_keys_of_positions_that_their_type_does_not_read(folders, tmp_path):
    """Transformers reads no such key: a key of no type is ignored, a key of another type raises ValueError."""
    scaling = {"type": "linear", "factor": 2.0, "beta_fast": 32, "attn_factor": 0.9, "finetuned": True}
    folder = configured(folders["llama"], {**LLAMA, "rope_scaling": scaling})
    named = "rope_scaling.beta_fast"
    refused(lambda: txf.checkpoints.load(folder), ["'linear'", "take no ['beta_fast']", f"ignore=['{named}']"])
    with pytest.warns(UserWarning, match="'rope_scaling.attn_factor': 0.9, 'rope_scaling.finetuned': True"):
        model = txf.checkpoints.load(folder, ignore=[named])
    found = model.get_layer("decoder_0").attention.position_layer.scaling
    assert found == {"type": "linear", "factor": 2.0}
    txf.checkpoints.save(model, tmp_path)
    del scaling["beta_fast"]
    assert json.loads((tmp_path / "config.json").read_text())["rope_scaling"] == scaling
    refused(lambda: txf.checkpoints.load(folder, ignore=["rope_scaling.x"]), ["['rope_scaling.x']", "missing"])
    for form in ({"rope_scaling": {"factor": 2.0}}, {"rope_parameters": {"rope_theta": 50.0, "factor": 2.0}}):
        [place] = form
        refused(lambda form=form: load(folder, LLAMA, **form), ["'default'", f"ignore=['{place}.factor']"])


@pytest.mark.parametrize("auto_map", [{"AutoConfig": "x.C"}, {"AutoModelForCausalLM": "x.M"}])
def test_code_in_the_folder_may_read_any_key(folders, auto_map):
    folder = configured(folders["llama"], {**LLAMA, "auto_map": auto_map, "new_idea": 5})
    refused(lambda: txf.checkpoints.load(folder), ["auto_map", "{'new_idea': 5}"])
    with pytest.warns(UserWarning, match="new_idea"):
        load(folder, {**LLAMA, "auto_map": {"AutoTokenizer": ["x.T", None]}, "new_idea": 5})
    with pytest.warns(UserWarning, match="new_idea"):
        load(folder, {**LLAMA, "auto_map": auto_map, "new_idea": None})


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_without_a_model_type(folders, config, tmp_path):
    """The class has it, and a saved file has it again."""
    folder = folders[config["model_type"]]
    expected = load(folder, config)
    model = load(folder, {key: value for key, value in config.items() if key != "model_type"})
    same(model, expected)
    txf.checkpoints.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == config["model_type"]
    config = {"architectures": ["BertModel", "GPT2LMHeadModel"]}
    refused(lambda: load(folder, config), ["model_type"])


def test_the_names_of_keys_are_told_apart():
    theirs = transformers_keys()
    assert len(theirs) > 1000 and not theirs & PUBLISHED.keys() - {"decoder_start_token_id", "kv_lora_rank"}
    assert not OF_OTHER_CODE & theirs and not OF_OTHER_CODE & NEUTRAL
    assert len(VALUE_CHECKS.keys() - theirs) < 12  # keys of old files
