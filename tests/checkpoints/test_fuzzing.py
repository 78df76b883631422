"""Files and configurations with random damage: they are read, or refused with a ValueError, and nothing else happens."""

import copy
import json
import random
import struct

import ml_dtypes
import numpy as np
import pytest
from folders import CONFIGS, tensors, write
from safetensors.numpy import save

import keras_txf as txf
from keras_txf.checkpoints.files import open_tensors

ONE = "model.safetensors"
ARRAYS = {
    "a.weight": np.arange(12, dtype="float32").reshape(3, 4),
    "a.bias": np.arange(4, dtype="float16"),
    "b": np.ones((2, 1, 3), ml_dtypes.bfloat16),
    "ids": np.arange(5, dtype="int64"),
    "flag": np.array(True),
    "none": np.zeros((0, 7), "float64"),
}
SOUND = save(ARRAYS, metadata={"format": "pt"})
NUMBERS = [-1, 0, 1, 2, 3, 4, 7, 8, 48, 100, 2**31, 2**32, 2**53 + 1, 2**62, 2**63, 2**64 - 1, 2**64, 10**30, 0.5, 1e300]
THINGS = [*NUMBERS, None, True, False, "", "F32", "x", "\0", "\ud7ff", [], [0], [1, 2], {}, {"a": 1}, [[]], float("nan")]
TYPES = "BOOL F4 F6_E2M3 F8_E4M3 F8_E8M0 I8 U8 I16 U16 F16 BF16 I32 F32 C64 F64 U64 f32".split()


def flip(draw, content):
    for _ in range(draw.choice([1, 1, 2, 5])):
        place = draw.randrange(len(content)) if draw.random() < 0.3 else draw.randrange(min(len(content), 400))
        content = content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]
    return content


def truncate(draw, content):
    return content[: draw.randrange(len(content))]


def insert(draw, content):
    place = draw.randrange(len(content))
    return content[:place] + draw.randbytes(draw.choice([1, 2, 8, 100])) + content[place:]


def delete(draw, content):
    place = draw.randrange(len(content))
    return content[:place] + content[place + draw.choice([1, 2, 8, 100]) :]


def lengthen(draw, content):
    """Another length of the header."""
    length = draw.choice([0, 1, 8, len(content) - 8, len(content), 10**8, 10**8 + 1, 2**63, 2**64 - 1, draw.randrange(600)])
    return struct.pack("<Q", length) + content[8:]


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
    header[first]["data_offsets"], header[second]["data_offsets"] = header[second]["data_offsets"], header[first]["data_offsets"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


DAMAGES = [flip, truncate, insert, delete, lengthen, edit, edit, edit, swap]


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
    -1, 0, 1, 2, 3, 4, 5, 8, 16, 12.0, 0.5, 1e9, 1e-300, 10**9, 2**24, 2**63, 10**400, float("nan"), float("inf"), True, False,
    None, "", "x", "32", "gelu", "relu", "é\0", [], [0], [1, 2], [None], ["full_attention"] * 2, ["sliding_attention"] * 2, {},
    {"a": 1}, {"0": "x"}, [[]], {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn"}, {"rope_theta": -1.0},
]  # fmt: skip
# Keys that the tiny configurations do not have and a reader asks for, or must refuse.
MORE = [
    "pad_token_id", "classifier_dropout", "hidden_dropout_prob", "id2label", "num_labels", "rope_scaling", "rope_parameters",
    "rope_theta", "head_dim", "attention_bias", "mlp_bias", "attn_pdrop", "scale_attn_weights", "layer_norm_epsilon",
    "partial_rotary_factor", "is_decoder", "pruned_heads", "quantization_config", "position_embedding_type", "bos_token_id",
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
        except ValueError:
            pass
        except BaseException as error:
            raise AssertionError(f"{name}: {text}") from error
    return loaded


def test_damaged_configurations(tmp_path):
    assert 0 < load_damaged(tmp_path, 40, seed=3) < 30


@pytest.mark.slow
def test_many_damaged_configurations(tmp_path):
    assert 5 < load_damaged(tmp_path, 100, seed=4) < 65
