"""Which keys of config.json are read, against the configuration classes of transformers; and their defaults."""

import json
import re

import keras
import pytest

from keras_txf.checkpoints.config import FIXED, NEUTRAL, Config
from keras_txf.checkpoints.families import FAMILIES
from keras_txf.checkpoints.transformers_keys import KEYS

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
OF_BACKBONES = {"_out_features", "_out_indices"}  # which hidden states `AutoBackbone` returns


# Keys that a file of the family must have: no model is built for the default of its class.
NEEDED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dinov3_vit": {"num_register_tokens": 4},
    "esm": {"hidden_dropout_prob": 0.0, "vocab_size": 33, "pad_token_id": 1},
    "qwen3_moe": {"num_experts": 128},
}


def full_values(kind):
    return {**config_class(kind)().to_dict(), **NEEDED.get(kind, {})}


def config_class(kind):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind]


def read(kind, values):
    """The options of all tasks, as text, and the `Config`, which records the keys that were read."""
    family, config = FAMILIES[kind], Config(values)
    options = [family.options(config), *(task.options(config) for task in family.tasks.values())]
    body = options[0]
    if "head_dim" in body and body["head_dim"] is None:  # what the builder, and the class, make of null
        body["head_dim"] = body["dim"] // body["num_heads"]
    if "intermediate_dim" in body and body["intermediate_dim"] is None:
        body["intermediate_dim"] = 4 * body["dim"]
    text = json.dumps(options, default=lambda x: {**keras.saving.serialize_keras_object(x), "name": None})
    return re.sub(r'"shared_object_id": \d+', "", text), config


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_key_of_the_class_is_known(kind):
    declared = set(config_class(kind).__dataclass_fields__)
    base = set(transformers.PretrainedConfig.__dataclass_fields__)
    full = full_values(kind)
    _, config = read(kind, full)
    for name in {"encoder", "decoder"} & config.parts.keys():
        part = config.parts[name]
        declared_there = set(type(getattr(config_class(kind)(), name)).__dataclass_fields__)
        assert len(declared_there) > 15 and not declared_there - part.read - base - NEUTRAL
    known = (
        config.read | base | NEUTRAL | set(FIXED) | set(FAMILIES[kind].neutral) | OF_BACKBONES | {"tie_word_embeddings"}
    )
    assert len(declared) > 15 and not declared - known
    assert declared <= KEYS


@pytest.mark.parametrize("kind", FAMILIES)
def test_missing_keys_have_the_defaults_of_the_class(kind):
    full = full_values(kind)
    needed = {
        "id2label",
        *({"encoder", "decoder"} & full.keys()),
        *NEEDED.get(kind, ()),
        *(["rope_parameters"] if kind == "gpt_oss" else []),
    }
    found, _ = read(kind, {"model_type": kind, **{key: full[key] for key in needed}})
    assert found == read(kind, full)[0], "run tests/checkpoints/make_transformers_keys.py"
