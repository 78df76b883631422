"""Which keys of config.json are read, against the configuration classes of transformers."""

import copy
import json

import keras
import pytest
from checkpoints import make_transformers_keys
from checkpoints.test_golden import GOLDEN

from keras_txf.checkpoints.config import FIXED, NEUTRAL, Config, transformers_keys
from keras_txf.checkpoints.families import FAMILIES

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hub_errors = pytest.importorskip("huggingface_hub.errors")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
IMAGES = ("llava", "paligemma", "gemma3", "smolvlm", "idefics3")  # whose parts have most keys
OF_BACKBONES = {"_out_features", "_out_indices"}  # which hidden states `AutoBackbone` returns


# Keys that a file of the family must have: no model is built for the default of its class.
NEEDED = {**make_transformers_keys.INSTEAD, "qwen3_moe": {"num_experts": 128}}


def config_class(kind):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[kind]


def read(kind, values):
    """The options of all tasks, as text, and the `Config`, which records the keys that were read."""
    family, config = FAMILIES[kind], Config(values)
    tables = [family, *family.tasks.values()]
    options = [table.options(config) for table in tables]
    body = options[0]
    if "head_dim" in body and body["head_dim"] is None:  # what the builder, and the class, make of null
        body["head_dim"] = body["dim"] // body["num_heads"]
    if "intermediate_dim" in body and body["intermediate_dim"] is None:
        body["intermediate_dim"] = 4 * body["dim"]
    rows = [{path: getattr(row, "name", row) for path, row in table.rows(config).items()} for table in tables]
    return json.dumps([options, rows, config("tie_word_embeddings", True)], default=serialized), config


def serialized(layer):
    found = keras.saving.serialize_keras_object(layer)
    return {**found, "name": None, "config": {**found["config"], "name": None}}


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_key_of_the_class_is_known(kind):
    declared = set(config_class(kind).__dataclass_fields__)
    base = set(transformers.PretrainedConfig.__dataclass_fields__)
    full = {**config_class(kind)().to_dict(), **NEEDED.get(kind, {})}
    _, config = read(kind, full)
    for name in {"encoder", "decoder"} & config.parts.keys():
        part = config.parts[name]
        declared_there = set(type(getattr(config_class(kind)(), name)).__dataclass_fields__)
        assert len(declared_there) > 15 and not declared_there - part.read.keys() - base - NEUTRAL
    known = config.read.keys() | base | NEUTRAL | OF_BACKBONES
    known |= {*FIXED, *FAMILIES[kind].neutral, *config.synonyms, "tie_word_embeddings"}
    assert len(declared) > 15 and not declared - known
    assert declared <= transformers_keys()


def golden(kind):
    """Returns the config.json of a small file. Transformers reads an object as a number that is infinite."""
    text = (GOLDEN / kind / "config.json").read_text()
    return json.loads(text, object_hook=lambda x: float(x["__float__"]) if [*x] == ["__float__"] else x)


def paths(values):
    """Returns the paths of all keys, in the models of a pair too."""
    for key, value in values.items():
        yield (key,)
        if isinstance(value, dict) and "model_type" in value:
            yield from ((key, *path) for path in paths(value))


# Keys, and models of a pair, that a file must have.
MUST_SAY = {
    "qwen3_moe": ["num_local_experts"],
    "gpt_oss": ["rope_parameters"],
    "t5gemma": ["encoder", "decoder"],
    **dict.fromkeys(IMAGES, ["vision_config", "text_config"]),
}


def outcome(kind, values):
    try:
        return read(kind, values)[0]
    except (ValueError, ArithmeticError):  # no model is built for the default, such as none of a size
        return "refused"


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_missing_key_has_the_value_that_the_class_gives_it(kind):
    """Of a small file: some defaults follow from other keys."""
    values, compared = golden(kind), []
    for path in paths(values):
        if path[-1] in ("model_type", "architectures"):
            continue
        without = copy.deepcopy(values)
        part = without
        for key in path[:-1]:
            part = part[key]
        del part[path[-1]]
        try:
            full = config_class(kind).from_dict(copy.deepcopy(without)).to_dict()
        except hub_errors.StrictDataclassError:  # of keys that no longer go together
            continue
        expected, found = outcome(kind, full), outcome(kind, without)
        assert found == expected or found == "refused" and path[0] in MUST_SAY.get(kind, ()), path
        compared.append(expected)
    assert len(compared) - compared.count("refused") > 10


ROTARY = [kind for kind in FAMILIES if "rope_parameters" in (GOLDEN / kind / "config.json").read_text()]


@pytest.mark.parametrize("scaling", [
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5, "original_max_position_embeddings": 16},
    {"rope_type": "linear", "factor": 2.0},
])  # fmt: skip
@pytest.mark.parametrize(
    "kind", sorted({*ROTARY} - {"t5gemma", "phi3", *IMAGES})
)  # whose parts have it; which has other kinds
def test_scaling_next_to_parameters_of_rotary_positions(kind, scaling):
    """What adding YaRN by hand to a file of transformers 5 gives."""
    values = {**golden(kind), "rope_scaling": scaling}
    values.update({"layer_types": ["sliding_attention", "full_attention"]} if kind == "gemma3_text" else {})
    expected = outcome(kind, config_class(kind).from_dict(copy.deepcopy(values)).to_dict())
    assert outcome(kind, values) == expected != outcome(kind, {**values, "rope_scaling": None})
