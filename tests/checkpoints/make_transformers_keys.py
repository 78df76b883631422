"""Writes `transformers_keys.json` and `transformers_defaults.json` of the checkpoints.

Run it with a new transformers, or after a new family:

python tests/checkpoints/make_transformers_keys.py
"""

import dataclasses
import json
import pathlib
import re

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from keras_txf.checkpoints import config
from keras_txf.checkpoints.families import FAMILIES

GETATTR = re.compile(r'getattr\((?:self\.)?(?:text_)?config, "(\w+)"')
INSTEAD = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dinov3_vit": {"num_register_tokens": 4},
    **dict.fromkeys(["idefics3", "smolvlm"], {"scale_factor": 1}),
    "gemma3": {"mm_tokens_per_image": 49},
    "lfm2_moe": {"layer_types": ["full_attention"] * 32},
    "esm": {"hidden_dropout_prob": 0.0, "vocab_size": 33, "pad_token_id": 1},
}  # where no model is built for the class's own default
# Other names of keys that a class reads outside of its `attribute_map`.
LFM2 = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
SYNONYMS = {"lfm2": LFM2, "lfm2_moe": {"tie_embedding": "tie_word_embeddings"}}


def declared(kind):
    """The keys that the class of a `model_type` declares, other names of them too."""
    cls = CONFIG_MAPPING[kind]
    return {*cls.__dataclass_fields__, *cls.attribute_map, *cls.attribute_map.values()}


def keys():
    found = set()
    for kind in CONFIG_MAPPING.keys():
        own = declared(kind)
        if own & {"vocab_size", "patch_size"} or kind in FAMILIES:
            found |= own
    root = pathlib.Path(transformers.__file__).parent
    for pattern in ("*.py", "integrations/*.py", "models/*/modeling_*.py"):
        for file in root.glob(pattern):
            found |= set(GETATTR.findall(file.read_text(encoding="utf-8")))
    return sorted(found)


class Recording(config.Config):
    """A `Config` that records the defaults in our tables."""

    def __init__(self, *values):
        super().__init__(*values)
        self.defaults = {}

    def __call__(self, key, default=config.REQUIRED):
        self.defaults.setdefault(key, []).append(default)
        return super().__call__(key, default)


def defaults(kind):
    """The defaults of the class that our tables lack, or have otherwise, by `model_type`; those of its parts too.

    The type of a part is that of `Config.part`.
    """
    cls = CONFIG_MAPPING[kind]
    recording = Recording({**cls().to_dict(), **INSTEAD.get(kind, {})})
    for table in (FAMILIES[kind], *FAMILIES[kind].tasks.values()):
        table.options(recording)
        table.rows(recording)
    recording("tie_word_embeddings", True)
    labels = {} if cls().num_labels == 2 else {"num_labels": cls().num_labels}
    parts = {
        part.values["model_type"]: differing(type(getattr(cls(), name)), part)
        for name, part in sorted(recording.parts.items())
        if name in ("encoder", "decoder") or part.kind not in FAMILIES and name == "vision_config"
    }
    return {kind: {**labels, **differing(cls, recording)}, **parts}


def differing(cls, recording):
    """The defaults of a class that differ from those that were recorded; not those that it derives from other keys."""
    found = {}
    for key, ours in sorted(recording.defaults.items()):
        theirs = cls.__dataclass_fields__[key].default if key in cls.__dataclass_fields__ else dataclasses.MISSING
        aliased = key in {*cls.attribute_map, *cls.attribute_map.values()}  # a file may have the other name
        if (
            aliased
            and config.REQUIRED not in ours
            or theirs is None
            and config.REQUIRED in ours
            or not isinstance(theirs, (int, float, str, type(None)))
        ):
            continue
        if any(own is config.REQUIRED or own != theirs for own in ours):
            found[key] = theirs
    return found


def tables():
    """What `transformers_defaults.json` holds."""
    kinds = sorted(FAMILIES.keys() & CONFIG_MAPPING.keys())
    of_classes = {kind: found for family in kinds for kind, found in defaults(family).items() if found}
    synonyms = {kind: {**CONFIG_MAPPING[kind].attribute_map, **SYNONYMS.get(kind, {})} for kind in kinds}
    return {"defaults": of_classes, "synonyms": {kind: names for kind, names in synonyms.items() if names}}


def write(name, **content):
    text = json.dumps({"transformers": transformers.__version__, **content}, indent=1)
    (config.DATA / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write("transformers_keys.json", keys=keys())
    write("transformers_defaults.json", **tables())
