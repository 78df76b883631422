"""Every key of every family's configuration counts: another value changes the model, or raises ValueError."""

import copy
import json
import re
import shutil

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN, expected

import keras_txf as txf
from keras_txf.checkpoints.config import NEUTRAL
from keras_txf.checkpoints.families import FAMILIES

FILE_DECIDES = {"tie_word_embeddings"}
BOTH = {"layer_types": ["full_attention", "sliding_attention"]}
WINDOW = {**BOTH, "use_sliding_window": True, "sliding_window": 3}
LOSS = {"output_router_logits": True}
INSTEAD = {  # values with which more of the keys have an effect
    "qwen2": WINDOW, "qwen3": WINDOW, "smollm3": {**WINDOW, "no_rope_layers": [1, 0]}, "gemma3_text": BOTH,
    "mixtral": LOSS, "qwen2_moe": {**LOSS, **WINDOW}, "qwen3_moe": LOSS, "olmoe": LOSS, "gpt_oss": LOSS,
    "qwen3_next": LOSS,
    "granitemoe": LOSS, "granitemoeshared": LOSS, "granitemoehybrid": LOSS,
}  # fmt: skip
OF_A_PAIR = {"siglip_text_model": {"projection_size"}, "siglip_vision_model": {"vision_use_head"}}  # read there alone
TIE = {"tie_word_embeddings"}  # the key of the whole model counts
OF_A_DECODER = {  # of images and texts, by its family: keys without an effect
    "llama": TIE,
    "gemma3_text": TIE | {"final_logit_softcapping"},
    "gemma": TIE | {"num_image_tokens", "use_bidirectional_attention"},
}
PARTS = {  # of a pair, and their keys whose values transformers overwrites
    side: {"is_decoder", "dropout_rate", "attention_dropout", "cross_attention_hidden_size"}
    for side in ("encoder", "decoder")
}
WITHOUT_EFFECT = {  # other values that are the same model; of the last four another key says it
    "distilbert": [("sinusoidal_pos_embds", True)],  # they are in the file all the same
    "modernbert": [("local_attention", 7)],  # half of it, rounded down, on either side
    "modernbert-decoder": [("local_attention", 7), ("local_attention", 12)],  # `sliding_window` goes before it
    "t5gemma": [("encoder.final_logit_softcapping", 6.125)],  # an encoder has no logits
    "falcon": [("multi_query", False)],  # new_decoder_architecture has groups of heads
    "llama4_text": [  # transformers writes `moe_layers` and `no_rope_layers` too
        ("interleave_moe_layer_step", 3),
        ("interleave_moe_layer_step", 4),
        ("no_rope_layer_interval", 5),
        ("no_rope_layer_interval", 8),
    ],
    "phi3": [("original_max_position_embeddings", 4097), ("original_max_position_embeddings", 8192)],  # of longrope
    # `layer_types` goes before it; two thirds of the other, rounded down
    "lfm2": [("full_attn_idxs", [2]), ("full_attn_idxs", [2]), ("intermediate_size", 13)],
    "qwen2": [("max_window_layers", 29), ("max_window_layers", 56)],
    "qwen2_moe": [("max_window_layers", 3), ("max_window_layers", 4)],
    "qwen3": [("max_window_layers", 29), ("max_window_layers", 56)],
    "smollm3": [("no_rope_layer_interval", 5), ("no_rope_layer_interval", 8)],
}


def others(value):
    """Values that a key could have instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2 or 2]
    if isinstance(value, float):
        return [value * 2 + 0.125]
    if isinstance(value, str):
        return ["relu" if value != "relu" else "tanh", "mean", "unheard-of"]
    if value is None:
        return [3, 1.5, True]
    if isinstance(value, list):
        return [value[:-1] + [other] for other in others(value[-1])] if value else [[1]]
    kind = value.get("model_type")  # of a model in a pair
    without = (
        NEUTRAL | set(FAMILIES[kind].neutral if kind in FAMILIES else ()) - OF_A_PAIR.get(kind, set())
        if kind
        else set()
    )
    without |= OF_A_DECODER.get(kind, set()) | ({"vision_use_head"} if value.get("vision_use_head") is False else set())
    return [{**value, key: other} for key in value if key not in without for other in others(value[key])] or [{"a": 1}]


def changes(values, neutral):
    """Yields each key with each other value, in the parts of a pair too: name, value and the whole configuration."""
    for key in sorted(values.keys() - neutral):
        if key in PARTS:
            for name, other, part in changes(values[key], NEUTRAL | FILE_DECIDES | PARTS[key]):
                yield f"{key}.{name}", other, {**values, key: part}
        else:
            for other in others(values[key]):
                yield key, other, {**copy.deepcopy(values), key: other}


def load(folder, task):
    """Returns the model for a task and its description; nothing if `load` raises ValueError."""
    classifier = task.endswith("classification")
    keras.utils.set_random_seed(1)  # for new heads
    try:
        model = txf.checkpoints.load(folder, task, num_classes=3 if classifier else None)
    except ValueError:
        return None, None
    config = model.get_config()
    del config["checkpoint"]  # config.json itself
    config = json.dumps(config, sort_keys=True)
    config = re.sub(r'"name": "\w+"', "", config)  # which differ from model to model
    return model, re.sub(r'("(?:keras_history|output_layers)": \["\w+?)(_\d+)?"', r'\1"', config)


def differs(before, after, inputs):
    """Whether a model computes something else than another, or says that it would elsewhere: in training, at length."""
    if after[0] is None or before[1] != after[1]:
        return True
    if isinstance(inputs, dict) and len(before[0].inputs) == 1:
        inputs = inputs.get("source_ids", inputs.get("images", inputs))  # of one part of a pair alone
    outputs = [keras.tree.flatten(model(inputs)) for model, _ in (before, after)]
    outputs = [[keras.ops.convert_to_numpy(output) for output in one] for one in outputs]
    return not all(np.allclose(*pair, atol=1e-6) for pair in zip(*outputs, strict=True))


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_counts(family, tmp_path):
    inputs, *_ = expected(family)
    values = {**json.loads((GOLDEN / family / "config.json").read_text()), **INSTEAD.get(family, {})}
    (tmp_path / "config.json").write_text(json.dumps(values))
    shutil.copy(GOLDEN / family / "model.safetensors", tmp_path)
    tasks = list(FAMILIES[family].tasks)
    originals = {task: load(tmp_path, task) for task in tasks}
    tried = list(changes(values, NEUTRAL | set(FAMILIES[family].neutral) | FILE_DECIDES))
    assert len(tried) > 12
    for task, original in originals.items():
        assert original[0] is None or not differs(original, load(tmp_path, task), inputs)
    without_effect = []
    for name, other, changed in tried:
        (tmp_path / "config.json").write_text(json.dumps(changed))
        found = (differs(originals[task], load(tmp_path, task), inputs) for task in tasks if originals[task][0])
        if not any(found):
            without_effect.append((name, other))
    assert without_effect == WITHOUT_EFFECT.get(family, [])
