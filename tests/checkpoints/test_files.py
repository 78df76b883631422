"""Folders that are broken or hostile: each a ValueError that names the file and what came."""

import json
import os
import shutil
import struct

import numpy as np
import pytest
from folders import GPT2, tensors, write
from refusals import refused
from safetensors.numpy import load_file, save

import keras_txf as txf
from keras_txf import reading
from keras_txf.checkpoints.files import open_tensors
from keras_txf.reading import read_json

CONFIG, ONE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path):
    """A sound one, to be broken."""
    return write(tmp_path / "sound", GPT2, tensors(GPT2))


@pytest.fixture
def sharded(tmp_path):
    return write(tmp_path / "sharded", GPT2, tensors(GPT2), shards=2)


def refuses(folder, *words):
    refused(lambda: txf.checkpoints.load(folder), words)


# Of config.json, and of an index in its place.
JSON = [
    (b"", ["Expecting value"]),
    (b"{", ["Expecting property name"]),
    (b'{"model_type": "gpt2"', ["delimiter"]),
    (b"\x80\x02}q\x00.", ["utf-8"]),  # a pickle
    ("{}".encode("utf-16"), ["utf-8"]),
    ("{}".encode("utf-8-sig"), ["BOM"]),
    (b'{"model_type": "\xff"}', ["utf-8"]),
    (b"[" * 10**6, ["recursion"]),
    (b'{"a":' * 10**5, ["recursion"]),
    (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", ["at most 32 deep"]),
    (b'{"a": ' + b"9" * 5000 + b"}", ["4300"]),
    (b'{"n_embd": 8, "n_embd": 9}', ["twice", "'n_embd'"]),
    (b"[]", ["object", "list"]),
    (b"null", ["object", "NoneType"]),
    (b'"gpt2"', ["object", "str"]),
    (b"7", ["object", "int"]),
]


@pytest.mark.parametrize("content, words", JSON)
def test_a_config_that_is_no_object(folder, content, words):
    (folder / CONFIG).write_bytes(content)
    refuses(folder, CONFIG, *words)


@pytest.mark.parametrize("content, words", JSON)
def test_an_index_that_is_no_object(sharded, content, words):
    (sharded / INDEX).write_bytes(content)
    refuses(sharded, INDEX, *words)


@pytest.mark.parametrize("name", [CONFIG, INDEX])
def test_no_file_where_json_should_be(sharded, name):
    (sharded / name).unlink()
    refuses(sharded, name)
    (sharded / name).mkdir()
    refuses(sharded, name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have names on POSIX only")
@pytest.mark.parametrize("name", [CONFIG, ONE])
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refuses(folder, name)


def test_a_config_without_end(folder, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST_JSON", 1000)
    (folder / CONFIG).write_text(json.dumps(GPT2) + " " * 1000)
    refuses(folder, CONFIG, "1000 are the most")


def test_no_weights(folder):
    (folder / ONE).unlink()
    refuses(folder, ONE, INDEX, str(folder), "['config.json']")


def test_pickled_weights_are_not_read(folder):
    (folder / ONE).rename(folder / "pytorch_model.bin")
    refuses(folder, ONE, "pytorch_model.bin", "can run code", "from_pretrained(folder).save_pretrained(new_folder)")


def test_a_folder_full_of_other_files(folder):
    (folder / ONE).unlink()
    for i in range(300):
        (folder / f"{i:03}.txt").touch()
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(folder)
    assert len(str(error.value)) < 1000


NOWHERE = [
    "no/folder/here", "nowhere", "", "/no/such", "../x", "..", "a b/c", "\0", "x" * 5000, "x/" * 5000, None, 7, b"x",
]  # fmt: skip


@pytest.mark.parametrize("path", NOWHERE)
def test_no_folder(path):
    if path == "..":  # a folder, but of no checkpoint
        refuses(path, CONFIG)
    else:
        refuses(path, "`path`", "folder", repr(path)[:50])


def test_a_file_is_no_folder(folder):
    refuses(folder / ONE, "`path`", "folder", ONE)


def test_a_directory_in_the_place_of_the_weights(folder):
    (folder / ONE).unlink()
    (folder / ONE).mkdir()
    refuses(folder, ONE, INDEX)


def header(entries, data=b"", length=None):
    """A safetensors file: the header's length, the header, the bytes."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, start, end, dtype="F32", **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


A = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
BROKEN = {
    "zero bytes": b"",
    "seven bytes": b"\0" * 7,
    "no header": header(b""),
    "a header longer than the file": header({}, length=100),
    "a header of 2 ** 63 bytes": header({}, length=2**63),
    "a header of 2 ** 64 - 1 bytes": header({}, length=2**64 - 1),
    "a header of a gigabyte": header({}, length=10**9),
    "a header that is not UTF-8": header(b'{"\xff\xfe": 1}'),
    "a header that is not JSON": header(b"{a: 1}"),
    "a header that is a list": header([]),
    "a deep header": header(b"[" * 10**5),
    "a deep header of objects": header(b'{"a":' * 10**5),
    "a pickle": b"\x80\x02}q\x00." + b"\0" * 100,
    "overlapping": header({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12),
    "the same bytes twice": header({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, b"\0" * 8),
    "negative": header({"a": entry([2], -8, 0)}, b"\0" * 8),
    "backwards": header({"a": entry([2], 8, 0)}, b"\0" * 8),
    "beyond the end": header({"a": entry([2], 0, 8)}, b"\0" * 4),
    "far beyond the end": header({"a": entry([2**40], 0, 2**42)}, b"\0" * 4),
    "bytes of no tensor at the end": header({"a": entry([2], 0, 8)}, b"\0" * 12),
    "bytes of no tensor between": header({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12),
    "fractions": header({"a": entry([2], 0.5, 8.5)}, b"\0" * 8),
    "another type's name": header({"a": entry([2], 0, 8, "F33")}, b"\0" * 8),
    "a type in small letters": header({"a": entry([2], 0, 8, "f32")}, b"\0" * 8),
    "a type that is a number": header({"a": entry([2], 0, 8, 32)}, b"\0" * 8),
    "a shape that overflows": header({"a": entry([2**40, 2**40], 0, 8)}, b"\0" * 8),
    "a shape of 64 bits and more": header({"a": entry([2**70], 0, 8)}, b"\0" * 8),
    "a shape of fewer numbers": header({"a": entry([1], 0, 8)}, b"\0" * 8),
    "a shape of more numbers": header({"a": entry([3], 0, 8)}, b"\0" * 8),
    "a negative shape": header({"a": entry([-2], 0, 8)}, b"\0" * 8),
    "a shape that is no list": header({"a": entry(2, 0, 8)}, b"\0" * 8),
    "three offsets": header({"a": {**entry([2], 0, 8), "data_offsets": [0, 4, 8]}}, b"\0" * 8),
    "no type": header({"a": {"shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8),
    "a shape twice": header(b'{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', b"\0" * 8),
    "a name twice": header(f"{{{A},{A.replace('[2]', '[1]').replace('[0,8]', '[8,12]')}}}".encode(), b"\0" * 12),
    "metadata that are no text": header({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_a_file_that_is_no_sound_safetensors(folder, content):
    (folder / ONE).write_bytes(content)
    refuses(folder, str(folder / ONE), "no sound safetensors file")


@pytest.mark.parametrize("content", [
    header({"a": entry([2], 0, 2, "F8_E4M3")}, b"\0" * 2),
    header({"a": entry([4], 0, 3, "F6_E2M3")}, b"\0" * 3),
    header({"a": entry([1] * 70, 0, 4)}, b"\0" * 4),
    header({"a": entry([0, 2**62], 0, 0)}),
], ids=["8 bits", "6 bits", "70 axes", "no numbers, along an endless axis"])  # fmt: skip
def test_tensors_that_numpy_does_not_have(tmp_path, content):
    (tmp_path / ONE).write_bytes(content)
    with open_tensors(tmp_path) as found:
        refused(lambda: found.read("a"), ["'a'", "cannot be read", str(tmp_path / ONE)])


def test_the_same_entry_twice_is_read_once(tmp_path):
    """The format's package takes the last of two entries; with any other offsets than these it finds a gap."""
    (tmp_path / ONE).write_bytes(header(f"{{{A},{A}}}".encode(), b"\0" * 8))
    with open_tensors(tmp_path) as found:
        assert list(found) == ["a"] and found.read("a").shape == (2,)


@pytest.mark.parametrize("length", [9, 500, -400, -1])
def test_a_truncated_file(folder, length):
    content = (folder / ONE).read_bytes()
    (folder / ONE).write_bytes(content[:length])
    refuses(folder, str(folder / ONE), "no sound safetensors file")


def test_a_file_that_shrinks_while_it_is_open(folder):
    """A file that is mapped into memory would end the process here."""
    with open_tensors(folder) as found:
        names = list(found)
        os.truncate(folder / ONE, 100)
        for name in names:
            refused(lambda name=name: found.read(name), [repr(name), "cannot be read", str(folder / ONE)])


def test_reading(tmp_path):
    arrays = {
        "a": np.arange(6, dtype="float16").reshape(2, 3),
        "b": np.array(7, "int64"),
        "c": np.zeros((0, 5), "float32"),
    }
    (tmp_path / ONE).write_bytes(save(arrays))
    with open_tensors(tmp_path) as found:
        assert set(found) == set(arrays) and len(found) == 3 and "a" in found and "x" not in found
        assert [found.dtype(name) for name in "abc"] == ["F16", "I64", "F32"]
        assert [found.size(name) for name in "abc"] == [6, 1, 0]
        for name, array in arrays.items():
            read = found.read(name)
            assert read.dtype == array.dtype and read.shape == found.shape(name) == array.shape
            np.testing.assert_array_equal(read, array)


def index_of(folder, **changed):
    """Writes the index anew with some tensors' files changed; None takes a tensor out."""
    index = read_json(folder / INDEX)
    index["weight_map"].update({name.replace("__", "."): place for name, place in changed.items()})
    index["weight_map"] = {name: place for name, place in index["weight_map"].items() if place is not None}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("places", [None, [], "x", 7, {"a": 1}, {"a": None}, {"a": ["x.safetensors"]}, {"a": {}}])
def test_a_weight_map_of_another_kind(sharded, places):
    (sharded / INDEX).write_text(json.dumps({"weight_map": places}))
    refuses(sharded, INDEX, "weight_map", repr(places))


def test_no_weight_map(sharded):
    (sharded / INDEX).write_text("{}")
    refuses(sharded, INDEX, "weight_map", "None")


def test_a_weight_map_of_nothing(sharded):
    (sharded / INDEX).write_text('{"weight_map": {}}')
    refuses(sharded, "file", "tensors")


def test_a_message_of_a_large_index_is_short(sharded):
    (sharded / INDEX).write_text(json.dumps({"weight_map": {f"tensor {i}": i for i in range(10**4)}}))
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(sharded)
    assert len(str(error.value)) < 2000


OUTSIDE = [
    "../out.safetensors", "./x.safetensors", "a/b.safetensors", "a/../b", "..\\x.safetensors", "C:\\x", "..", ".", "",
    "/",
]  # fmt: skip


@pytest.mark.parametrize("place", [*OUTSIDE, "{outside}"])
def test_an_index_that_leads_out_of_the_folder(sharded, place):
    outside = sharded.parent / "out.safetensors"
    outside.write_bytes(save({"transformer.wte.weight": np.ones((11, 8), "float32")}))
    place = place.format(outside=outside)
    index_of(sharded, transformer__wte__weight=place)
    refuses(sharded, INDEX, "its own folder", repr(place))


@pytest.mark.parametrize("place", ["model-00003-of-00002.safetensors", "\0", "\ud800", "x" * 5000, "NUL"])
def test_a_shard_that_is_missing(sharded, place):
    index_of(sharded, transformer__wte__weight=place)
    refuses(sharded, INDEX, repr(place)[:50], "not in", str(sharded))


def test_a_shard_that_is_a_directory(sharded):
    (sharded / "x.safetensors").mkdir()
    index_of(sharded, transformer__wte__weight="x.safetensors")
    refuses(sharded, INDEX, "'x.safetensors'", "not in")


def test_a_shard_that_is_broken(sharded):
    shard = sharded / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    refuses(sharded, str(shard), "no sound safetensors file")


def test_a_tensor_in_another_shard_than_the_index_says(sharded):
    places = read_json(sharded / INDEX)["weight_map"]
    other = next(place for place in places.values() if place != places["transformer.wte.weight"])
    index_of(sharded, transformer__wte__weight=other)
    refuses(sharded, INDEX, "differ", "'transformer.wte.weight'")


def test_a_tensor_that_the_index_does_not_name(sharded):
    index_of(sharded, transformer__wte__weight=None)
    refuses(sharded, INDEX, "differ", "'transformer.wte.weight'")


def test_a_tensor_that_no_shard_has(sharded):
    index_of(sharded, more="model-00001-of-00002.safetensors")
    refuses(sharded, INDEX, "differ", "'more'")


def test_one_file_goes_before_an_index(folder, sharded):
    """As in transformers: the index of an earlier save may still lie there."""
    shutil.copy(sharded / INDEX, folder / INDEX)
    txf.checkpoints.load(folder)


def test_links_of_the_hub_s_cache_are_followed(folder, tmp_path):
    """There the files of a snapshot are links to `../../blobs/`, which are named by their content."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1a2b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, name in enumerate([CONFIG, ONE]):
        (folder / name).rename(blobs / str(number))
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    txf.checkpoints.load(snapshot)


@pytest.mark.parametrize("target", ["nowhere", ONE])
def test_links_that_lead_nowhere(folder, target):
    (folder / ONE).unlink()
    (folder / ONE).symlink_to(target)  # the second to itself
    refuses(folder, ONE, INDEX)


def test_what_is_loaded_can_be_taken_away(folder):
    """Nothing of the files is read later."""
    model = txf.checkpoints.load(folder)
    arrays = load_file(folder / ONE)
    shutil.rmtree(folder)
    found = {weight.path: weight for weight in model.weights}["embedding/token/embeddings"].numpy()
    np.testing.assert_array_equal(found, arrays["transformer.wte.weight"])
