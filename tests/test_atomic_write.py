"""A write that is killed at any change of the disk leaves the old file or folder, or the new one."""

import os
import pathlib

import numpy as np
import pytest
from kills import every_kill, full_disk

from keras_txf.disk import atomic_file, atomic_folder, check_room, save_tensors, writing


def write_file(path, text="new"):
    with writing("file", path), atomic_file(path) as temporary:
        temporary.write_text(text)


def write_folder(folder, text="new"):
    with writing("folder", folder), atomic_folder(folder) as temporary:
        for name in ("a", "b"):
            (temporary / name).write_text(text)


def texts(folder):
    return {file.read_text() for file in folder.iterdir()}


@pytest.mark.parametrize("older", [True, False])
def test_a_killed_file_is_old_or_new(older, tmp_path):
    path, found = tmp_path / "deep" / "file.txt", []
    if older:
        write_file(path, "old")
    for number, complete in every_kill(lambda: write_file(path)):
        found.append(path.read_text() if path.exists() else None)
        assert complete or found[-1] == ("old" if older else None), number
    assert found[-1] == "new" and len(found) > 3 and os.listdir(path.parent) == ["file.txt"]


def test_a_killed_new_folder_is_complete_or_missing(tmp_path):
    folder, found = tmp_path / "deep" / "model", []
    for _, _ in every_kill(lambda: write_folder(folder)):
        found.append(folder.exists() and texts(folder))
        assert found[-1] in (False, {"new"})
    assert found[-1] == {"new"} and len(found) > 5 and os.listdir(folder.parent) == ["model"]


def test_a_killed_folder_is_old_or_new_or_between_two_renames(tmp_path):
    folder, missing = tmp_path / "model", []
    write_folder(folder, "old")
    for number, complete in every_kill(lambda: write_folder(folder)):
        if not folder.exists():  # the older folder is beside it
            missing.append(number)
            assert [texts(left) for left in tmp_path.glob(".replaced-*.model")] == [{"old"}]
        else:
            assert len(texts(folder)) == 1 and sorted(os.listdir(folder)) == ["a", "b"]
        if not complete:
            write_folder(folder, "old")
            assert os.listdir(tmp_path) == ["model"] and texts(folder) == {"old"}
    assert len(missing) == 1 and os.listdir(tmp_path) == ["model"] and texts(folder) == {"new"}


@pytest.mark.parametrize("write, name", [(write_file, "file"), (write_folder, "folder")])
def test_an_error_leaves_what_was_there(write, name, tmp_path):
    target = tmp_path / "target"
    write(target, "old")
    with pytest.raises(ValueError, match=f"`{name}` must be a writable path; received '.*target': "):
        with full_disk(2):
            write(target, "longer")
    assert os.listdir(tmp_path) == ["target"]
    assert target.read_text() == "old" if name == "file" else texts(target) == {"old"}
    with pytest.raises(KeyError), (atomic_file if name == "file" else atomic_folder)(target):
        raise KeyError("of the caller")
    assert os.listdir(tmp_path) == ["target"]


def test_a_message_has_no_temporary_path(tmp_path):
    (tmp_path / "file").write_text("mine")
    for write in (write_file, write_folder):
        with pytest.raises(ValueError, match="must be a writable path") as error:
            write(tmp_path / "file" / "inner")
        assert "unfinished" not in str(error.value) and "\n" not in str(error.value)


def test_other_folders_stay(tmp_path):
    others = [f".replaced-{'0' * 31}.model", f".unfinished-{'0' * 32}.models", f".kept-{'0' * 32}.model"]
    for name in others:
        (tmp_path / name).mkdir()
    write_folder(tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "model"])


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="only where the system can reserve room")
def test_room(tmp_path):
    check_room(tmp_path / "file", 10)
    assert (tmp_path / "file").stat().st_size == 10
    with pytest.raises(OSError), full_disk(9):
        check_room(pathlib.Path(tmp_path / "other"), 10)


def test_a_file_of_tensors_has_the_mode_of_other_files(tmp_path):
    """safetensors 0.8 gives it to its owner alone: a server that runs as another user could not read the weights."""
    (tmp_path / "a.txt").touch()
    save_tensors({"a": np.zeros(3)}, tmp_path / "a.safetensors", {"format": "pt"})
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "a.txt").stat().st_mode
