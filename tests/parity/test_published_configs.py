"""config.json as people published it: a small model of random weights has the logits of transformers.

published_configs.json holds the files as they were found, and the place of each. Here their sizes shrink, and what says
how a model computes stays: keys that no class has, missing keys, null, old names, the forms of rope_scaling.
"""

import json
import pathlib

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
transformers.logging.set_verbosity_error()

FILE = json.loads((pathlib.Path(__file__).parent / "published_configs.json").read_text(encoding="utf-8"))
CONFIGS = FILE["configs"]
HEADS, HEAD, WIDTH, TOKENS, POSITIONS = 4, 40, 160, 70, 64
NAMES = {  # the keys of a size, in all families
    HEADS: ("num_attention_heads", "n_head", "num_heads"),
    HEAD: ("d_kv",),
    WIDTH: ("hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim"),
    96: ("intermediate_size", "ffn_dim", "d_ff"),
    24: ("embedding_size",), 20: ("moe_intermediate_size",), 28: ("shared_expert_intermediate_size",),
    6: ("num_experts", "num_local_experts"), 16: ("n_routed_experts",), 30: ("q_lora_rank",), 22: ("kv_lora_rank",),
    12: ("qk_nope_head_dim",), 8: ("qk_rope_head_dim",), 10: ("v_head_dim",),
    2: ("num_experts_per_tok",), 3: ("sliding_window",),
    TOKENS: ("vocab_size",),
}  # fmt: skip
LEARNED = ("gpt2", "opt", "bert", "albert", "gptj")  # families with a table of positions


def value(config, size, default=None):
    return next((config[name] for name in NAMES[size] if config.get(name)), default)


def small(config):
    """The same configuration of a small model: heads of 40, and as many layers as its pattern of windows needs."""
    found = dict(config)
    heads, width = value(config, HEADS), value(config, WIDTH)
    for size, names in NAMES.items():
        found |= {name: size for name in names if config.get(name)}
    layers = 1 + (config.get("sliding_window_pattern") or 1) + config.get("first_k_dense_replace", 0)
    found |= {name: layers for name in ("num_hidden_layers", "n_layer", "num_layers") if name in config}
    for name in ("num_key_value_heads", "num_kv_heads"):
        if config.get(name):
            found[name] = HEADS if config[name] == heads else 1 if config[name] == 1 else 2
    if config.get("head_dim"):
        found["head_dim"] = HEAD if config["head_dim"] * heads == width else 48
    if config.get("rotary_dim"):
        found["rotary_dim"] = config["rotary_dim"] * heads * HEAD // width
    if config["model_type"] in LEARNED:
        found |= {name: POSITIONS for name in ("max_position_embeddings", "n_positions", "n_ctx") if name in config}
    scaling = config.get("rope_scaling") or {}
    for name in ("short_factor", "long_factor"):
        if name in scaling:
            kept = int(HEAD * config.get("partial_rotary_factor", 1.0)) // 2
            found["rope_scaling"] = {**found["rope_scaling"], name: scaling[name][:kept]}
    for name in (name for name in config if name.endswith("_token_id")):
        ids = config[name]
        found[name] = [_small_id(one) for one in ids] if isinstance(ids, list) else _small_id(ids)
    return found


def _small_id(id):
    return id if id is None or id < 10 else TOKENS - 1 - id % 10


def folder_of(name, folder):
    """Writes the folder of a small model: tensors by transformers, and config.json as it was published."""
    config = small(CONFIGS[name]["config"])
    cls = getattr(transformers, config["architectures"][0])
    torch.manual_seed(4)
    model = cls(cls.config_class.from_dict(config)).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.tie_weights()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def outputs(model, ids):
    if isinstance(model, keras.Model):
        found = model({"source_ids": ids, "target_ids": ids[:, :5]} if len(model.inputs) == 2 else ids)
        found = found.get("logits", found.get("output")) if isinstance(found, dict) else found
        return keras.ops.convert_to_numpy(found)
    ids = torch.tensor(ids)
    with torch.no_grad():
        found = model(ids, decoder_input_ids=ids[:, :5]) if model.config.is_encoder_decoder else model(ids)
    return (found.logits if "logits" in found else found.last_hidden_state).numpy()


@pytest.mark.parametrize("name", [name for name, one in CONFIGS.items() if "refused" not in one])
def test_logits_are_those_of_transformers(name, tmp_path):
    theirs = folder_of(name, tmp_path)
    ids = np.random.default_rng(5).integers(10, 60, (2, 12))
    ours = txf.checkpoints.load(tmp_path, ignore=CONFIGS[name].get("ignore", ()))
    expected = outputs(theirs, ids)
    assert expected.std() > 0.01
    np.testing.assert_allclose(outputs(ours, ids), expected, atol=1e-4 * max(1, abs(expected).max()))


@pytest.mark.parametrize("name", [name for name, one in CONFIGS.items() if {"refused", "ignore"} & {*one}])
def test_what_is_refused_says_why(name, tmp_path):
    one = CONFIGS[name]
    if "ignore" in one:
        folder_of(name, tmp_path)
    else:  # before it reads a tensor
        save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(small(one["config"])))
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(tmp_path)
    assert [
        word for word in (*one.get("ignore", ()), one.get("refused", "ignore=")) if word not in str(error.value)
    ] == []


def test_each_config_has_a_source_and_a_licence():
    assert len(CONFIGS) >= 25
    for one in CONFIGS.values():
        source = FILE["sources"][one["source"].split(":")[0]]
        assert source["licence"] == "Apache-2.0" and source["file"] and one["config"]["model_type"]
