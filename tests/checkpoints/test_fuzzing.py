"""Files and configurations with random damage: they are read, or refused with a ValueError, and nothing else
happens.
"""

import copy
import json
import random
import struct

import ml_dtypes
import numpy as np
import pytest
from folders import CONFIGS, GPT2, tensors, write
from mutations import BYTES, NUMBERS, THINGS, edit_text, lengthen
from safetensors.numpy import save

import keras_txf as txf
from keras_txf.checkpoints.files import open_tensors

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
ARRAYS = {
    "a.weight": np.arange(12, dtype="float32").reshape(3, 4),
    "a.bias": np.arange(4, dtype="float16"),
    "b": np.ones((2, 1, 3), ml_dtypes.bfloat16),
    "ids": np.arange(5, dtype="int64"),
    "flag": np.array(True),
    "none": np.zeros((0, 7), "float64"),
}
SOUND = save(ARRAYS, metadata={"format": "pt"})
UNKNOWN_KEYS = pytest.mark.filterwarnings("ignore:config.json has keys that its class")
TYPES = "BOOL F4 F6_E2M3 F8_E4M3 F8_E8M0 I8 U8 I16 U16 F16 BF16 I32 F32 C64 F64 U64 f32".split()


def edit(draw, content):
    """Values of the header changed; it is sound JSON, and its length is right."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    for _ in range(draw.choice([1, 1, 2, 3])):
        name = draw.choice(sorted(header)) if header else None
        entry = header.get(name)
        kind = draw.randrange(9)
        if kind == 0:
            header[draw.choice(["", "a.weight", "new", "\0", "é" * 99])] = copy.deepcopy(entry)
        elif kind == 1:
            header.pop(name, None)
        elif kind == 2:
            header[name] = draw.choice(THINGS)
        elif isinstance(entry, dict) and entry:
            field = draw.choice(sorted(entry))
            if kind == 3:
                entry[field] = draw.choice(THINGS)
            elif kind == 4:
                entry["dtype"] = draw.choice(TYPES)
            elif kind == 5:
                entry[draw.choice(["more", "dtype", "shape"])] = entry.pop(field)
            elif isinstance(entry.get(field), list) and entry[field]:
                if kind == 6:
                    entry[field][draw.randrange(len(entry[field]))] = draw.choice(NUMBERS)
                elif kind == 7:
                    entry[field].append(draw.choice([0, 1, 1, 2**40, 2**62]))
                else:
                    draw.shuffle(entry[field])
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def swap(draw, content):
    """Two tensors with each other's bytes."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    first, second = draw.sample(sorted(header.keys() - {"__metadata__"}), 2)
    header[first]["data_offsets"], header[second]["data_offsets"] = (
        header[second]["data_offsets"],
        header[first]["data_offsets"],
    )
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


DAMAGES = [*BYTES, lengthen, *[edit] * 5, swap]


def read_all(folder):
    """Whether it could be read; what is read has the shape that it should have."""
    try:
        with open_tensors(folder) as found:
            for name in found:
                shape, _ = found.shape(name), found.dtype(name)
                assert found.read(name).shape == shape
        return True
    except ValueError as error:
        assert ONE in str(error)
        return False


def read_damaged(folder, number, seed):
    draw, read = random.Random(seed), 0
    for _ in range(number):
        content = draw.choice(DAMAGES)(draw, SOUND)
        (folder / ONE).write_bytes(content)
        read += read_all(folder)
    return read


def test_damaged_files(tmp_path):
    assert 10 < read_damaged(tmp_path, 500, seed=1) < 250  # some damage does no harm: a bit of a number


@pytest.mark.slow
def test_many_damaged_files(tmp_path):
    assert 125 < read_damaged(tmp_path, 3_000, seed=2) < 1_500


VALUES = [
    -1, 0, 1, 2, 3, 4, 5, 8, 16, 12.0, 0.5, 1e9, 1e-300, 10**9, 2**24, 2**63, 10**400, float("nan"), float("inf"), True,
    False, None, "", "x", "32", "gelu", "relu", "é\0", [], [0], [1, 2], [None], ["full_attention"] * 2,
    ["sliding_attention"] * 2, {}, {"a": 1}, {"0": "x"}, [[]], {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn"}, {"rope_theta": -1.0},
]  # fmt: skip
# Keys that the tiny configurations do not have and a reader asks for, or must refuse.
MORE = [
    "pad_token_id", "classifier_dropout", "hidden_dropout_prob", "id2label", "num_labels", "rope_scaling",
    "rope_parameters", "rope_theta", "head_dim", "attention_bias", "mlp_bias", "attn_pdrop", "scale_attn_weights",
    "layer_norm_epsilon", "partial_rotary_factor", "is_decoder", "pruned_heads", "quantization_config",
    "position_embedding_type", "bos_token_id",
]  # fmt: skip


def damaged_config(draw, config):
    config = copy.deepcopy(config)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        key = draw.choice(sorted(config))
        kind = draw.randrange(6)
        if kind == 0:
            config.pop(key)
        elif kind == 1:
            config[draw.choice([key.upper(), key[1:], key + "s", "", "é"])] = config.pop(key)
        elif kind == 2:
            config[draw.choice(MORE)] = draw.choice(VALUES)
        elif kind == 3 and isinstance(config[key], int) and not isinstance(config[key], bool):
            config[key] += draw.choice([-1, 1, config[key]])
        else:
            config[key] = draw.choice(VALUES)
    return config


def load_damaged(base, number, seed):
    draw, loaded = random.Random(seed), 0
    folders = {name: write(base / name, config, tensors(config)) for name, config in CONFIGS.items()}
    for _ in range(number):
        name = draw.choice(sorted(folders))
        text = json.dumps(damaged_config(draw, CONFIGS[name]))
        (folders[name] / "config.json").write_text(text)
        try:
            txf.checkpoints.load(folders[name])
            loaded += 1
        except ValueError as error:
            assert "config.json" in str(error) or ONE in str(error), error
        except BaseException as error:
            raise AssertionError(f"{name}: {text}") from error
    return loaded


@UNKNOWN_KEYS
@pytest.mark.slow
def test_damaged_configurations(tmp_path):
    assert 0 < load_damaged(tmp_path, 40, seed=3) < 30


@UNKNOWN_KEYS
@pytest.mark.slow
def test_many_damaged_configurations(tmp_path):
    assert 5 < load_damaged(tmp_path, 100, seed=4) < 65


def load_damaged_index(base, number, seed):
    draw, loaded = random.Random(seed), 0
    folder = write(base / "sharded", GPT2, tensors(GPT2), shards=2)
    content = (folder / INDEX).read_bytes()
    for _ in range(number):
        (folder / INDEX).write_bytes(draw.choice([*BYTES, *[edit_text] * 6])(draw, content))
        try:
            with open_tensors(folder) as found:
                assert set(found) <= set(tensors(GPT2))  # an index may leave out a shard: `load` misses its tensors
                loaded += len(found) == len(tensors(GPT2))
        except ValueError as error:
            assert INDEX in str(error), error
    return loaded


def test_damaged_indexes(tmp_path):
    assert 0 < load_damaged_index(tmp_path, 200, seed=5) < 100


@pytest.mark.slow
def test_many_damaged_indexes(tmp_path):
    assert 20 < load_damaged_index(tmp_path, 1_000, seed=6) < 500


def load_damaged_folder(base, number, seed):
    """What has passed is the model of the sound folder, or one with other numbers in it."""
    draw, loaded = random.Random(seed), 0
    folder = write(base / "whole", GPT2, tensors(GPT2))
    content = (folder / ONE).read_bytes()
    for _ in range(number):
        (folder / ONE).write_bytes(draw.choice([*BYTES, edit, edit, swap])(draw, content))
        try:
            model = txf.checkpoints.load(folder)
            assert model.get_layer("embedding").vocab_size == GPT2["vocab_size"]
            loaded += 1
        except ValueError as error:
            assert ONE in str(error) and str(folder) in str(error), error
    return loaded


@pytest.mark.slow
def test_damaged_folders(tmp_path):
    assert 0 < load_damaged_folder(tmp_path, 40, seed=7) < 35


@pytest.mark.slow
def test_many_damaged_folders(tmp_path):
    assert 10 < load_damaged_folder(tmp_path, 200, seed=8) < 150
