"""config.json as people published it: a small model of random weights has the logits of transformers.

published_configs.json holds the files as they were found, and the place of each. Here their sizes shrink, and what says
how a model computes stays: keys that no class has, missing keys, null, old names, the forms of rope_scaling.
"""

import json
import pathlib

import checkpoint_cases
import image_text_cases
import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_txf as txf
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.families import FAMILIES
from keras_txf.checkpoints.text_parts import TEXT_PARTS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

FILE = json.loads((pathlib.Path(__file__).parent / "published_configs.json").read_text(encoding="utf-8"))
CONFIGS = FILE["configs"]
HEADS, HEAD, WIDTH, TOKENS, POSITIONS = 4, 40, 160, 70, 64
NAMES = {  # the keys of a size, in all families
    HEADS: ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
    HEAD: ("d_kv",),
    WIDTH: ("hidden_size", "out_hidden_size", "n_embd", "n_embed", "d_model", "word_embed_proj_dim", "projection_dim"),
    96: ("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "block_ff_dim"),
    13: ("max_source_positions",), 104: ("intermediate_size_mlp",),
    24: ("embedding_size",), 20: ("moe_intermediate_size",),
    28: ("shared_expert_intermediate_size", "shared_intermediate_size"),
    6: ("num_experts", "num_local_experts"), 16: ("n_routed_experts",), 30: ("q_lora_rank",), 22: ("kv_lora_rank",),
    12: ("qk_nope_head_dim",), 8: ("qk_rope_head_dim", "linear_key_head_dim", "linear_value_head_dim"),
    10: ("v_head_dim",),
    2: ("num_experts_per_tok",), 3: ("sliding_window",),
    TOKENS: ("vocab_size",),
}  # fmt: skip
LEARNED = ("gpt2", "opt", "bert", "albert", "gptj", "clip_text_model")  # families with a table of positions
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "depth")
PARTS = ("vision_config", "text_config", "vision_config_dict", "text_config_dict")
PATTERNS = {"gemma3_text": 6, "lfm2": 2, "llama4_text": 4, "olmo3": 4}  # layers of a pattern that no key says
RENAMED = {"Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM"}  # classes that files had before transformers
IMAGE_TEXT = ("llava", "paligemma", "gemma3", "smolvlm", "idefics3")
SIZES = (*(name for names in NAMES.values() for name in names), *LAYERS, "num_key_value_heads", "image_size")


def value(config, size, default=None):
    return next((config[name] for name in NAMES[size] if config.get(name)), default)


def filled(part):
    """A part of a configuration with the sizes that its file leaves to the defaults of the class."""
    cls = transformers.CONFIG_MAPPING[part["model_type"]]
    defaults = {name: getattr(cls, name, None) for name in SIZES}
    return {**{name: size for name, size in defaults.items() if isinstance(size, int)}, **part}


def small(config):
    """The same configuration of a small model: heads of 40, and as many layers as its pattern of windows needs."""
    found = dict(config)
    complete = filled if config["model_type"] in IMAGE_TEXT else dict
    found |= {name: small({"model_type": None, **complete(config[name])}) for name in PARTS if name in config}
    heads, width = value(config, HEADS), value(config, WIDTH)
    for size, names in NAMES.items():
        found |= {name: size for name in names if config.get(name)}
    pattern = config.get("sliding_window_pattern") or PATTERNS.get(config["model_type"], 1)
    layers = 1 + (len(pattern) if isinstance(pattern, str) else pattern) + config.get("first_k_dense_replace", 0)
    layers = config.get("full_attention_interval", layers)
    found |= {name: layers for name in LAYERS if name in config}
    if "layer_types" in config:
        found["layer_types"] = config["layer_types"][:layers]
    if "linear_num_key_heads" in config:
        shared = config["linear_num_value_heads"] // config["linear_num_key_heads"]
        found |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2 * shared}
    if "mamba_n_heads" in config:
        found |= {"mamba_n_heads": 2 * HEADS, "mamba_d_head": HEAD}
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
    if "stage_names" in config:
        stages = ["stem", *(f"stage{i + 1}" for i in range(layers))]
        found |= {"stage_names": stages, "out_features": stages[-1:], "out_indices": [layers]}
    if isinstance(config.get("conv_dim"), int):  # LFM2
        found |= {name: WIDTH for name in ("block_dim", "conv_dim", "conv_dim_out") if name in config}
    elif "conv_dim" in config:
        found["conv_dim"] = [24] * len(config["conv_dim"])
    if "image_size" in config:
        found["image_size"] = 3 * config["patch_size"]
    if config["model_type"] in IMAGE_TEXT:  # an image has 9 vectors, or 4 if it has fewer vectors than patches
        vision, text = found["vision_config"], found["text_config"]
        if "mm_tokens_per_image" in config:
            found["mm_tokens_per_image"] = 4
            vision["image_size"], text["sliding_window"] = 4 * vision["patch_size"], 5
        if "scale_factor" in config:
            vision["image_size"] = 2 * config["scale_factor"] * vision["patch_size"]
    for name in (name for name in config if name.endswith(("_token_id", "_token_index", "suppress_tokens"))):
        ids = config[name]
        found[name] = [_small_id(one) for one in ids] if isinstance(ids, list) else _small_id(ids)
    if config.get("forced_decoder_ids"):
        found["forced_decoder_ids"] = [[place, _small_id(id)] for place, id in config["forced_decoder_ids"]]
    return {name: one for name, one in found.items() if name != "model_type" or one is not None}


def _small_id(id):
    return id if id is None or id < 10 else TOKENS - 1 - id % 10


def folder_of(name, folder, **changes):
    """Writes the folder of a small model: tensors by transformers, and config.json as it was published."""
    config = small(CONFIGS[name]["config"])
    config |= {key: {**config[key], **value} if key in PARTS else value for key, value in changes.items()}
    [architecture] = config["architectures"]
    cls = getattr(transformers, RENAMED.get(architecture, architecture))
    torch.manual_seed(4)
    model = cls(cls.config_class.from_dict(config)).eval().float()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key != "model.encoder.embed_positions.weight":  # sinusoids of Whisper
                parameter += 0.05 * torch.randn_like(parameter)
    model.tie_weights()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


def inputs_of(config):
    """What a model reads, by the names of transformers: ids, images, both, waveforms, or spectrograms and ids."""
    rng = np.random.default_rng(5)
    ids = rng.integers(10, 60, (2, 12))
    if config.model_type in TEXT_PARTS:
        return {"input_ids": ids}
    vision = getattr(config, "vision_config", config)
    if vision is not config:  # CLIP
        ids[:, 7] = config.text_config.vocab_size - 1  # the end token
    if hasattr(vision, "patch_size"):
        images = rng.normal(size=(2, vision.num_channels, vision.image_size, vision.image_size)).astype("float32")
        return {"pixel_values": images, **({"input_ids": ids} if vision is not config else {})}
    if hasattr(config, "num_mel_bins"):
        frames = rng.normal(size=(2, config.num_mel_bins, 2 * config.max_source_positions)).astype("float32")
        return {"input_features": frames, "decoder_input_ids": ids[:, :5]}
    if hasattr(config, "conv_stride"):
        return {"input_values": rng.normal(size=(2, 1700)).astype("float32")}
    return {"input_ids": ids, **({"decoder_input_ids": ids[:, :5]} if config.is_encoder_decoder else {})}


OURS = {
    "pixel_values": "images", "decoder_input_ids": "target_ids", "input_features": "source_features",
    "input_values": "features",
}  # fmt: skip


def ours(model, values):
    names = {**OURS, "input_ids": "source_ids" if "decoder_input_ids" in values else "token_ids"}
    values = {
        names[name]: x.transpose(0, *range(2, x.ndim), 1) if x.dtype == "float32" else x for name, x in values.items()
    }
    found = model(values if len(values) > 1 else next(iter(values.values())))
    return keras.ops.convert_to_numpy(found.get("logits", found.get("output")) if isinstance(found, dict) else found)


def theirs(model, values):
    if model.config.model_type == "llama4":  # the whole class raises an error in transformers 5.24
        model = model.language_model
    with torch.no_grad():
        return checkpoint_cases.answer_of(model(**{name: torch.tensor(x) for name, x in values.items()})).numpy()


def answers(model, folder, ignore=()):
    """The logits of our model of a folder, and those of the model of transformers."""
    loaded = txf.checkpoints.load(folder, ignore=ignore)
    if model.config.model_type in IMAGE_TEXT:
        values, given = image_text_cases.inputs(model.config, np.random.default_rng(5))
        return keras.ops.convert_to_numpy(loaded(given)), theirs(model, values)
    values = inputs_of(model.config)
    return ours(loaded, values), theirs(model, values)


@pytest.mark.parametrize("name", [name for name, one in CONFIGS.items() if "refused" not in one])
def test_logits_are_those_of_transformers(name, tmp_path):
    model = folder_of(name, tmp_path)
    found, expected = answers(model, tmp_path, CONFIGS[name].get("ignore", ()))
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, abs(expected).max()))


SIZES_OF_PARTS = {
    "image": {"dim": "hidden_size", "num_heads": "num_attention_heads", "intermediate_dim": "intermediate_size",
              "norm_epsilon": "layer_norm_eps", "image_size": "image_size", "patch_size": "patch_size"},
    "text": {"dim": "hidden_size", "num_heads": "num_attention_heads", "intermediate_dim": "intermediate_size",
             "norm_epsilon": "rms_norm_eps", "num_layers": "num_hidden_layers", "vocab_size": "vocab_size",
             "num_key_value_heads": "num_key_value_heads", "head_dim": "head_dim"},
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, one in CONFIGS.items() if one["config"]["model_type"] in IMAGE_TEXT
                                  and "refused" not in one])  # fmt: skip
def test_sizes_that_a_file_leaves_out_are_those_of_transformers(name):
    config = CONFIGS[name]["config"]
    whole = getattr(transformers, config["architectures"][0]).config_class.from_dict(config)
    options = FAMILIES[config["model_type"]].options(Config(config))
    assert options["placeholder_id"] == whole.image_token_id
    for part, theirs in (("image", whole.vision_config), ("text", whole.text_config)):
        expected = {ours: getattr(theirs, key) for ours, key in SIZES_OF_PARTS[part].items()}
        assert {key: options[part][key] for key in expected} == expected


R1 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attn_factor": 0.8782488562869419}
CHANGES = [  # what other published files of the family say
    ("Qwen3 0.6B", {"rope_scaling": R1}),  # DeepSeek R1 0528
    ("Llama 2 7B", {"rope_scaling": {"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn",
                                     "finetuned": True}}),
    # Other names of keys; each counts before the class's own.
    ("gpt2", {"hidden_size": 120, "num_attention_heads": 5, "num_hidden_layers": 1, "max_position_embeddings": 40}),
    ("GPT-J 6B", {"hidden_size": 160, "num_attention_heads": 2}),
    ("T5", {"hidden_size": 120, "num_attention_heads": 5, "head_dim": 24}),
    ("Whisper large v2", {"hidden_size": 120, "num_attention_heads": 5}),
    ("BLOOM", {"num_attention_heads": 5, "num_hidden_layers": 1}),
    ("GPT-NeoX", {"rope_theta": 10000.0, "partial_rotary_factor": 0.25, "rotary_pct": 0.25, "rotary_emb_base": 10000}),
    ("Qwen2 0.5B", {"architectures": ["Qwen2Model"], "is_causal": False}),  # embedders
    ("LLaVA 1.5 7B", {"text_config": {"tie_word_embeddings": True}}),  # counts for the whole model
    ("SmolVLM2 500M", {"vision_config": {"model_type": "siglip_vision_model"}}),  # counts not
]  # fmt: skip


@pytest.mark.parametrize("name, changes", CHANGES, ids=[f"{name}: {', '.join(keys)}" for name, keys in CHANGES])
def test_keys_of_other_files(name, changes, tmp_path):
    found, expected = answers(folder_of(name, tmp_path, **changes), tmp_path)
    np.testing.assert_allclose(found, expected, atol=1e-4 * max(1, abs(expected).max()))


@pytest.mark.parametrize("name", [name for name, one in CONFIGS.items() if {"refused", "ignore"} & {*one}])
def test_an_error_for_a_published_config_names_the_reason(name, tmp_path):
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
        assert source["licence"] in ("Apache-2.0", "BSD-2-Clause", "ISC", "MIT")
        assert source["file"] and one["config"]["model_type"]
