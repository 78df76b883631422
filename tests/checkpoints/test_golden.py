"""A small checkpoint of each family, and the logits that transformers had for it."""

import json
import pathlib
import re

import checkpoint_cases
import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_txf as txf
from keras_txf.checkpoints.families import FAMILIES

GOLDEN = pathlib.Path(__file__).parent / "golden"


def expected(family):
    """Inputs, logits, and where they count."""
    with np.load(GOLDEN / family / "expected.npz") as file:
        values = dict(file)
    logits, real = values.pop("logits"), values.pop("real")
    return values.get("inputs", values), logits, real


def answers(model, inputs):
    """The outputs of a model as arrays, the logits first."""
    outputs = model(inputs)
    if isinstance(outputs, dict):
        outputs = [outputs["logits"], *(outputs[name] for name in sorted(outputs) if name != "logits")]
    return [keras.ops.convert_to_numpy(output) for output in keras.tree.flatten(outputs)]


@pytest.fixture(scope="module", params=FAMILIES)
def loaded(request):
    """A family, and its model."""
    yield request.param, txf.checkpoints.load(GOLDEN / request.param)
    keras.backend.clear_session()


def test_logits_are_those_of_transformers(loaded):
    family, model = loaded
    inputs, logits, real = expected(family)
    ours = answers(model, inputs)[0]
    where = real if real.ndim else slice(None)
    np.testing.assert_allclose(ours[where], logits[where], atol=1e-4)


def test_a_saved_model_is_the_same_again(loaded, tmp_path):
    family, model = loaded
    txf.checkpoints.save(model, tmp_path)
    again = txf.checkpoints.load(tmp_path)
    for before, after in zip(model.weights, again.weights, strict=True):
        tolerance = 2e-7 if "gemma" in family else 0  # 1 is added to norms, and taken away
        np.testing.assert_allclose(after, before, atol=tolerance)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == family


@pytest.mark.slow
def test_greedy_answers_are_those_of_transformers(loaded):
    family, model = loaded
    path = GOLDEN / family / "greedy.json"
    assert path.exists() == hasattr(model, "generate")
    if path.exists():
        greedy = json.loads(path.read_text())
        answers = checkpoint_cases.answers(model, greedy["prompts"], greedy["forbidden"])
        np.testing.assert_array_equal(answers, greedy["answers"])


@pytest.mark.slow
def test_a_keras_file_keeps_the_model(loaded, tmp_path):
    family, model = loaded
    inputs, *_ = expected(family)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for before, after in zip(answers(model, inputs), answers(again, inputs), strict=True):
        np.testing.assert_array_equal(before, after)


def changed_folder(family, folder, **changes):
    """A folder whose config.json has other values; None takes a key away."""
    values = json.loads((GOLDEN / family / "config.json").read_text())
    values = {name: value for name, value in {**values, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "model.safetensors").write_bytes((GOLDEN / family / "model.safetensors").read_bytes())
    return folder


FULL, SLIDING = "full_attention", "sliding_attention"
BASES = {FULL: {"rope_theta": 50.0, "rope_type": "default"}, SLIDING: {"rope_theta": 7.0, "rope_type": "default"}}
OLDER = [  # what files of today say, and what older ones did: of keys by other names, or of none
    ("llama", {"rope_parameters": BASES[FULL]}, {"rope_parameters": None, "rope_theta": 50.0}),
    ("llama", {"rope_parameters": {**BASES[FULL], "rope_type": "linear", "factor": 4.0}},
     {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "mlp_bias": None},
        {"rope_parameters": None}),
    ("gemma2", {"layer_types": [SLIDING, FULL], "sliding_window": 2}, {"layer_types": None, "sliding_window": 2}),
    ("gemma3_text", {"layer_types": [SLIDING, FULL], "rope_parameters": BASES},
     {"layer_types": [SLIDING, FULL], "rope_parameters": None, "rope_theta": 50.0, "rope_local_base_freq": 7.0}),
    ("gemma3_text", {"layer_types": [SLIDING, FULL], "_sliding_window_pattern": None},
     {"layer_types": None, "_sliding_window_pattern": None, "sliding_window_pattern": 2}),
    ("modernbert", {"rope_parameters": BASES},
        {"rope_parameters": None, "global_rope_theta": 50.0, "local_rope_theta": 7.0}),
    ("modernbert", {"layer_types": [FULL, FULL]}, {"layer_types": None, "global_attn_every_n_layers": 1}),
    ("modernbert", {"layer_types": [FULL, SLIDING]}, {"layer_types": None}),
    ("modernbert-decoder", {"sliding_window": 2}, {"sliding_window": None, "local_attention": 4}),
    ("smollm3", {"no_rope_layers": [1, 0]}, {"no_rope_layers": None, "no_rope_layer_interval": 2}),
    ("smollm3", {"no_rope_layers": [1, 1]}, {"no_rope_layers": None}),
    ("gemma3_text", {"layer_types": [SLIDING, FULL], "_sliding_window_pattern": None},
     {"layer_types": None, "_sliding_window_pattern": 6, "sliding_window_pattern": 2}),
    ("gpt_neox", {"rope_parameters": {**BASES[FULL], "partial_rotary_factor": 1.0}},
     {"rope_parameters": None, "rotary_emb_base": 50.0, "rotary_pct": 1.0}),
    ("phi", {"rope_parameters": {**BASES[FULL], "partial_rotary_factor": 0.5}},
     {"rope_parameters": None, "rope_theta": 50.0}),
    ("bloom", {"n_embed": 8}, {"hidden_size": None, "n_embed": 8, "n_head": None, "num_attention_heads": 2}),
    ("qwen3_moe", {}, {"num_local_experts": None, "num_experts": 3}),
    ("deberta-v2", {}, {"pos_att_type": "p2c|c2p"}),
]  # fmt: skip
AS_BEFORE = [2, 8, 11, 14, 15, 16, 17]  # rows that say what the file of the tests says


@pytest.mark.slow
@pytest.mark.parametrize("row", range(len(OLDER)))
def test_older_files_are_the_same_model(row, tmp_path):
    family, new, old = OLDER[row]
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    models = [
        changed_folder(family, tmp_path / "new", **new),
        changed_folder(family, tmp_path / "old", **old),
        GOLDEN / family,
    ]
    inputs, *_ = expected(family)
    found, again, before = (keras.ops.convert_to_numpy(txf.checkpoints.load(folder)(inputs)) for folder in models)
    np.testing.assert_array_equal(again, found)
    assert np.allclose(before, found, atol=1e-6) == (row in AS_BEFORE)


PUBLISHED = [  # what published files say besides, which changes nothing
    ("bert", {"_num_labels": 9, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
              "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
              "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
    ("bert", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}}),
    ("gpt2", {"_num_labels": 1, "n_special": 0, "predict_special_tokens": True}),
    ("marian", {"_num_labels": 3}), ("bart", {"_num_labels": 3}),
    ("qwen2", {"use_mrope": False}), ("qwen3", {"_attn_implementation_autoset": True}),
    ("llama", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}},
               "unsloth_fixed": True, "unsloth_version": "2024.9"}),
    ("gemma2", {"sliding_window_size": 4096}),
    ("modernbert", {"position_embedding_type": "sans_pos"}),
    ("gpt_neox", {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "is_decoder": False}),
    ("gptj", {"rotary": True, "scale_attn_weights": True, "summary_type": "cls_index"}),
    ("falcon", {"apply_residual_connection_post_layernorm": False, "ff_factor": 4}),
    ("bloom", {"attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "masked_softmax_fusion": True,
               "n_inner": None, "offset_alibi": 100, "pretraining_tp": 4, "seq_length": 2048, "skip_bias_add": True,
               "skip_bias_add_qkv": False, "slow_but_exact": False, "n_embed": 8, "num_attention_heads": 2}),
    ("cohere", {"model_max_length": 131072}), ("phi3", {"embd_pdrop": 0.0, "original_max_position_embeddings": 4096}),
    ("gpt_oss", {"initial_context_length": 4096, "experts_per_token": 4}),
    ("deberta", {"padding_idx": 0}), ("deberta-v2", {"attention_head_size": 4, "conv_groups": 1}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family, keys", PUBLISHED)
def test_keys_of_published_files(family, keys, tmp_path):
    inputs, *_ = expected(family)
    folders = changed_folder(family, tmp_path, **keys), GOLDEN / family
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(txf.checkpoints.load(folder)(inputs)) for folder in folders)
    )


@pytest.mark.parametrize("family, key, value", [
    ("qwen2", "use_mrope", True),
    ("llama", "rope_interleaved", True),
    ("bert", "position_embedding_type", "relative_key"),
])  # fmt: skip
def test_keys_that_ask_for_another_model(family, key, value, tmp_path):
    with pytest.raises(ValueError, match=f"config.json must have '{key}' in"):
        txf.checkpoints.load(changed_folder(family, tmp_path, **{key: value}))


@pytest.mark.parametrize("family, changes, words", [
    ("stablelm", {"hidden_dropout": 0.1}, "'hidden_dropout' in"),
    ("falcon", {"alibi": True}, "'alibi' in"),
    ("falcon", {"parallel_attn": False}, "'parallel_attn' in"),
    ("falcon", {"attention_dropout": 0.1}, "'attention_dropout' in"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "'apply_residual_connection_post_layernorm' in"),
    ("phi3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'longrope' in Phi-3"),
    ("olmoe", {"clip_qkv": 8.0}, "'clip_qkv' in"),
    ("mixtral", {"router_jitter_noise": 0.1}, "'router_jitter_noise' in"),
    ("deberta", {"talking_head": True}, "'talking_head' in"),
    ("deberta", {"pos_att_type": ["c2p", "p2p"]}, "'pos_att_type' in"),
    ("deberta", {"pos_att_type": None}, "`content_to_position` and `position_to_content`"),
    ("deberta", {"relative_attention": False}, "'pos_att_type' in"),
    ("deberta-v2", {"embedding_size": 6}, "'embedding_size' in"),
    ("deberta-v2", {"conv_groups": 2}, "'conv_groups' in"),
    ("deberta-v2", {"legacy": False, "tie_word_embeddings": False}, "'tie_word_embeddings' in"),
    ("gpt_oss", {"swiglu_alpha": 1.5}, "'swiglu_alpha' in"),
    ("gpt_oss", {"rope_parameters": None}, "'rope_parameters' or 'rope_scaling'"),
])  # fmt: skip
def test_what_is_not_built_is_refused(family, changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        txf.checkpoints.load(changed_folder(family, tmp_path, **changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_of_other_models_is_refused(family, tmp_path):
    folder = changed_folder(family, tmp_path, index_n_heads=4)
    with pytest.raises(ValueError, match=re.escape("{'index_n_heads': 4}")):
        txf.checkpoints.load(folder)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "vit"])
def test_a_new_head_needs_the_number_of_classes(family):
    task = "image_classification" if family == "vit" else "sequence_classification"
    if family != "vit":
        with pytest.raises(ValueError, match="no head for 'sequence_classification'"):
            txf.checkpoints.load(GOLDEN / family, task)
    inputs, *_ = expected(family)
    model = txf.checkpoints.load(GOLDEN / family, task, num_classes=7)
    assert model(inputs).shape[-1] == 7


@pytest.mark.slow
def test_a_head_of_another_number_of_classes_is_a_new_one(tmp_path):
    model = txf.checkpoints.load(GOLDEN / "bert", "token_classification", num_classes=5)
    txf.checkpoints.save(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"] and len(config["id2label"]) == 5
    same = txf.checkpoints.load(tmp_path)
    np.testing.assert_array_equal(same.get_layer("logits").kernel, model.get_layer("logits").kernel)
    other = txf.checkpoints.load(tmp_path, num_classes=3)
    assert other.get_layer("logits").units == 3
    np.testing.assert_array_equal(
        other.get_layer("embedding").token.embeddings, model.get_layer("embedding").token.embeddings
    )


def test_unknown_families_and_tasks_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`model_type` of .*'bert'.*; received 'elephant'"):
        txf.checkpoints.load(changed_folder("bert", tmp_path, model_type="elephant"))
    with pytest.raises(ValueError, match="`task` must be one of .*; received 'poetry'"):
        txf.checkpoints.load(GOLDEN / "bert", "poetry")
    with pytest.raises(ValueError, match="`num_classes` is for classifiers"):
        txf.checkpoints.load(GOLDEN / "llama", num_classes=3)


def test_what_config_json_cannot_say_is_not_saved(tmp_path):
    model = txf.checkpoints.load(GOLDEN / "llama", window=3)
    with pytest.raises(ValueError, match=r"options that config.json cannot hold: \['window'\]"):
        txf.checkpoints.save(model, tmp_path)
    plain = txf.models.encoder(100, 1, 8, 2)
    with pytest.raises(ValueError, match="`config` must describe the checkpoint"):
        txf.checkpoints.save(plain, tmp_path)
    typed = txf.models.encoder(100, 1, 8, 2, token_types=2)
    with pytest.raises(ValueError, match="weights that its checkpoint's family has no tensors for"):
        txf.checkpoints.save(typed, tmp_path, GOLDEN / "llama")
    with pytest.raises(ValueError, match="it asks for 'decoder_0/attention/key/kernel'"):
        txf.checkpoints.save(plain, tmp_path, GOLDEN / "llama")
    assert not list(tmp_path.iterdir())


def test_blocks_that_predict_further_tokens_are_written_back(tmp_path):
    folder = changed_folder("deepseek_v3", tmp_path, num_nextn_predict_layers=1)
    name, tensor = "model.layers.61.eh_proj.weight", np.arange(6, dtype="float16").reshape(2, 3)
    save_file({**load_file(folder / "model.safetensors"), name: tensor}, folder / "model.safetensors")
    txf.checkpoints.save(txf.checkpoints.load(folder), tmp_path / "again")
    np.testing.assert_array_equal(load_file(tmp_path / "again" / "model.safetensors")[name], tensor)


@pytest.mark.slow
def test_shards(tmp_path):
    model = txf.checkpoints.load(GOLDEN / "gpt2")
    txf.checkpoints.save(model, tmp_path)
    txf.checkpoints.save(model, tmp_path, max_shard_size=2000)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert "model.safetensors" not in names and "model.safetensors.index.json" in names and len(names) > 4
    inputs, *_ = expected("gpt2")
    again = txf.checkpoints.load(tmp_path)
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(one(inputs)) for one in (model, again)))
    txf.checkpoints.save(model, tmp_path)
    assert "model.safetensors.index.json" not in [path.name for path in tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_folder_of_half_precision(dtype, tmp_path):
    model = txf.checkpoints.load(GOLDEN / "qwen3")
    txf.checkpoints.save(model, tmp_path, dtype=dtype)
    again = txf.checkpoints.load(tmp_path)
    for before, after in zip(model.weights, again.weights, strict=True):
        before = keras.ops.convert_to_numpy(keras.ops.cast(keras.ops.cast(before, dtype), "float32"))
        np.testing.assert_array_equal(after, before)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
