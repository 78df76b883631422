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
from keras_txf import disk
from keras_txf.checkpoints.files import open_tensors
from keras_txf.disk import read_json

CONFIG, ONE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
WTE = "transformer.wte.weight"


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
    (b"", ["Expecting value"]), (b"{", ["Expecting property name"]), (b'{"model_type": "gpt2"', ["delimiter"]),
    (b"\x80\x02}q\x00.", ["utf-8"]),  # a pickle
    ("{}".encode("utf-16"), ["utf-8"]), ("{}".encode("utf-8-sig"), ["BOM"]), (b'{"model_type": "\xff"}', ["utf-8"]),
    (b"[" * 10**6, ["recursion"]), (b'{"a":' * 10**5, ["recursion"]),
    (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", ["at most 32 deep"]), (b'{"a": ' + b"9" * 5000 + b"}", ["4300"]),
    (b'{"n_embd": 8, "n_embd": 9}', ["twice", "'n_embd'"]), (b"[]", ["object", "list"]),
    (b"null", ["object", "NoneType"]), (b'"gpt2"', ["object", "str"]), (b"7", ["object", "int"]),
]  # fmt: skip


@pytest.mark.parametrize("name", [CONFIG, INDEX])
def test_json_that_is_no_object(sharded, name):
    for content, words in JSON:
        (sharded / name).write_bytes(content)
        refuses(sharded, name, *words)
    (sharded / name).unlink()
    refuses(sharded, name)
    (sharded / name).mkdir()
    refuses(sharded, name)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 548105171\n"


@pytest.mark.parametrize("name", [CONFIG, INDEX, "model-00002-of-00002.safetensors"])
def test_a_pointer_of_git_lfs(sharded, name):
    """The pointer that a clone has instead of a large file, before Git LFS fetches the file."""
    (sharded / name).write_bytes(POINTER)
    refuses(sharded, name, "Git LFS", "`git lfs pull`")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have names on POSIX only")
@pytest.mark.parametrize("name", [CONFIG, ONE])
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refuses(folder, name)


def test_a_config_without_end(folder, monkeypatch):
    monkeypatch.setattr(disk, "LARGEST_JSON", 1000)
    (folder / CONFIG).write_text(json.dumps(GPT2) + " " * 1000)
    refuses(folder, CONFIG, "the limit is 1000")


def test_no_weights(folder):
    (folder / ONE).rename(folder / "pytorch_model.bin")  # which is not read
    refuses(folder, ONE, "pytorch_model.bin", "can run code", "from_pretrained(folder).save_pretrained(new_folder)")
    (folder / "pytorch_model.bin").unlink()
    refuses(folder, ONE, INDEX, str(folder), "['config.json']")
    (folder / ONE).symlink_to("nowhere")
    refuses(folder, ONE, INDEX)
    (folder / ONE).unlink()
    (folder / ONE).symlink_to(ONE)
    refuses(folder, ONE, INDEX)
    (folder / ONE).unlink()
    (folder / ONE).mkdir()
    refuses(folder, ONE, INDEX)
    for i in range(300):
        (folder / f"{i:03}.txt").touch()
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(folder)
    assert len(str(error.value)) < 1000


NOWHERE = [
    "no/folder/here", "nowhere", "", "/no/such", "../x", "a b/c", "\0", "x" * 5000, "x/" * 5000, None, 7, b"x",
]  # fmt: skip


@pytest.mark.parametrize("path", NOWHERE)
def test_no_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(path, "`path`", "folder", repr(path)[:50])


def test_a_folder_of_no_checkpoint_and_a_file(folder):
    refuses("..", CONFIG)
    refuses(folder / ONE, "`path`", "folder", ONE)


def header(entries, data=b"", length=None):
    """A safetensors file: the header's length, the header, the bytes."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


A = '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
BROKEN = {  # a row for each thing that the package `safetensors` checks before it uses a header
    "zero bytes": b"", "a header of 2 ** 64 - 1 bytes": header({}, length=2**64 - 1),
    "a header that is not JSON": header(b"{a: 1}"), "a deep header": header(b"[" * 10**5),
    "a pickle": b"\x80\x02}q\x00." + b"\0" * 100,
    "overlapping": header({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12),
    "far beyond the end": header({"a": entry([2**40], 0, 2**42)}, b"\0" * 4),
    "bytes of no tensor between": header({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12),
    "another type's name": header({"a": entry([2], 0, 8, "F33")}, b"\0" * 8),
    "a shape that overflows": header({"a": entry([2**40, 2**40], 0, 8)}, b"\0" * 8),
    "a shape of more numbers": header({"a": entry([3], 0, 8)}, b"\0" * 8),
    "a name twice": header(f"{{{A},{A.replace('[2]', '[1]').replace('[0,8]', '[8,12]')}}}".encode(), b"\0" * 12),
}  # fmt: skip


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


def test_a_file_that_shrinks_while_it_is_open(folder):
    """A file that is mapped into memory would end the process here."""
    with open_tensors(folder) as found:
        names = list(found)
        os.truncate(folder / ONE, 100)
        for name in names:
            refused(lambda name=name: found.read(name), [repr(name), "cannot be read", str(folder / ONE)])


def test_reading(tmp_path):
    arrays = {"a": np.arange(6, dtype="float16").reshape(2, 3), "b": np.array(7, "int64")}
    arrays["c"] = np.zeros((0, 5), "float32")
    (tmp_path / ONE).write_bytes(save(arrays))
    with open_tensors(tmp_path) as found:
        assert set(found) == set(arrays) and len(found) == 3 and "a" in found and "x" not in found
        assert [found.dtype(name) for name in "abc"] == ["F16", "I64", "F32"]
        assert [found.size(name) for name in "abc"] == [6, 1, 0]
        for name, array in arrays.items():
            read = found.read(name)
            assert read.dtype == array.dtype and read.shape == found.shape(name) == array.shape
            np.testing.assert_array_equal(read, array)


def index_of(folder, name, place):
    """Writes the index anew with another file of a tensor; None takes the tensor out."""
    places = {**read_json(folder / INDEX)["weight_map"], name: place}
    places = {name: place for name, place in places.items() if place is not None}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def test_a_weight_map_of_another_kind_or_of_much(sharded):
    for places in (None, [], "x", 7, {}, {"a": 1}, {"a": None}, {"a": ["x.safetensors"]}, {"a": {}}):
        (sharded / INDEX).write_text(json.dumps({"weight_map": places}))
        refuses(sharded, INDEX, "weight_map", repr(places))
    (sharded / INDEX).write_text(json.dumps({"weight_map": {f"tensor {i}": i for i in range(10**4)}}))
    with pytest.raises(ValueError) as error:
        txf.checkpoints.load(sharded)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize("place", [
    "../out.safetensors", "./x.safetensors", "a/b.safetensors", "a/../b", "..\\x.safetensors", "C:\\x", "..", ".", "",
    "/", "{outside}",
])  # fmt: skip
def test_an_index_that_leads_out_of_the_folder(sharded, place):
    outside = sharded.parent / "out.safetensors"
    outside.write_bytes(save({WTE: np.ones((11, 8), "float32")}))
    place = place.format(outside=outside)
    index_of(sharded, WTE, place)
    refuses(sharded, INDEX, "its own folder", repr(place))


@pytest.mark.parametrize("place", ["model-00003-of-00002.safetensors", "\0", "\ud800", "x" * 5000, "NUL"])
def test_a_shard_that_is_missing(sharded, place):
    index_of(sharded, WTE, place)
    refuses(sharded, INDEX, repr(place)[:50], "not in", str(sharded))


def test_a_shard_that_is_no_file_or_broken(sharded):
    shard = sharded / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    refuses(sharded, str(shard), "no sound safetensors file")
    (sharded / "x.safetensors").mkdir()
    index_of(sharded, WTE, "x.safetensors")
    refuses(sharded, INDEX, "'x.safetensors'", "not in")


def test_an_index_and_shards_that_differ(sharded):
    places = read_json(sharded / INDEX)["weight_map"]
    other = next(place for place in places.values() if place != places[WTE])
    for name, place in ((WTE, other), (WTE, None), ("more", other)):
        index_of(sharded, name, place)
        refuses(sharded, INDEX, "differ", repr(name))
        index_of(sharded, name, places.get(name))


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


def test_what_is_loaded_can_be_taken_away(folder):
    """Nothing of the files is read later."""
    model = txf.checkpoints.load(folder)
    arrays = load_file(folder / ONE)
    shutil.rmtree(folder)
    found = {weight.path: weight for weight in model.weights}["embedding/token/embeddings"].numpy()
    np.testing.assert_array_equal(found, arrays[WTE])
