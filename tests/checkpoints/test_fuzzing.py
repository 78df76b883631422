"""Files and configurations with random damage: they are read, or raise ValueError, and nothing else
happens.
"""

import copy
import json
import random
import re
import struct

import ml_dtypes
import numpy as np
import pytest
from folders import CONFIGS, GPT2, tensors, write
from mutations import BYTES, NUMBERS, THINGS, edit_text, lengthen
from safetensors.numpy import save

import keras_txf as txf
from keras_txf.checkpoints.config_schema import VALUE_CHECKS
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
TYPES = "BOOL F4 F6_E2M3 F8_E4M3 F8_E8M0 I8 U8 I16 U16 F16 BF16 I32 F32 C64 F64 U64 f32".split()


def header_of(content):
    """The header of a `.safetensors` file, and the bytes of its tensors."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def edit(draw, content):
    """Values of the header changed; it is sound JSON, and its length is right."""
    header, data = header_of(content)
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
    return with_header(header, data)


def swap(draw, content):
    """Two tensors with each other's bytes."""
    header, data = header_of(content)
    one, other = (header[name] for name in draw.sample(sorted(header.keys() - {"__metadata__"}), 2))
    one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
    return with_header(header, data)


DAMAGES = [*BYTES, lengthen, *[edit] * 5, swap]


def read_all(folder):
    """What is read has the shape that it should have."""
    with open_tensors(folder) as found:
        for name in found:
            assert found.dtype(name) and found.read(name).shape == found.shape(name)


def count_read(folder, file, contents, read, pattern=None):
    """How many damaged contents of a file can be read; messages about the others match the pattern, or name the file.

    Nothing else than a ValueError is raised.
    """
    count = 0
    for content in contents:
        (folder / file).write_bytes(content)
        try:
            read(folder)
            count += 1
        except ValueError as error:
            assert re.search(pattern or re.escape(file), str(error)), error
        except BaseException as error:
            raise AssertionError(content) from error
    return count


@pytest.mark.parametrize("number", [500, pytest.param(3_000, marks=pytest.mark.slow)])
def test_damaged_files(number, tmp_path):
    draw = random.Random(number)
    contents = (draw.choice(DAMAGES)(draw, SOUND) for _ in range(number))
    # Some damage does no harm: a bit of a number.
    assert 0.02 * number < count_read(tmp_path, ONE, contents, read_all) < 0.5 * number


VALUES = [
    *THINGS, "gelu", 12.0, 10**400, ["full_attention"] * 2, {"0": "x"}, {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn"}, {"rope_theta": -1.0},
]  # fmt: skip


def damaged_config(draw, config):
    """Half of them have another key that a reader asks for, or must raise ValueError for."""
    if draw.random() < 0.5:
        config = {**config, draw.choice([*VALUE_CHECKS, "is_decoder", "pruned_heads"]): draw.choice(VALUES)}
    return edit_text(draw, json.dumps(config).encode())


@pytest.mark.filterwarnings("ignore:config.json has keys that its class")
@pytest.mark.parametrize("number", [12, pytest.param(45, marks=pytest.mark.slow)])
def test_damaged_configurations(number, tmp_path):
    draw, count = random.Random(number), 0
    for name, config in CONFIGS.items():
        folder = write(tmp_path / name, config, tensors(config))
        contents = (damaged_config(draw, config) for _ in range(number))
        count += count_read(folder, "config.json", contents, txf.checkpoints.load, f"config.json|{ONE}")
    assert 0 < count < 0.7 * 3 * number


@pytest.mark.parametrize("number", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_damaged_indexes(number, tmp_path):
    draw, folder, names = random.Random(number), write(tmp_path, GPT2, tensors(GPT2), shards=2), set(tensors(GPT2))
    content = (folder / INDEX).read_bytes()

    def read(folder):
        with open_tensors(folder) as found:
            assert set(found) <= names  # an index may leave out a shard: `load` misses its tensors
            whole.append(set(found) == names)

    whole, damages = [], [*BYTES, *[edit_text] * 6]
    count_read(folder, INDEX, (draw.choice(damages)(draw, content) for _ in range(number)), read)
    assert 0.02 * number < sum(whole) < 0.5 * number
