"""`save` that is killed at any change of the disk leaves the old checkpoint or the new one, whole."""

import concurrent.futures
import contextlib
import json
import shutil

import keras
import numpy as np
import pytest
from folders import GPT2, tensors, write
from kills import Killed, every_kill, full_disk, killed_at
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf
from keras_txf.checkpoints import saving
from keras_txf.checkpoints.files import INDEX, ONE, open_tensors
from keras_txf.disk import file_of

load, save = txf.checkpoints.load, txf.checkpoints.save
WRITER = (saving, "save_tensors", 1)
SHARDS, WHOLE = 1000, 10**9  # sizes of a file
SMALL = {**GPT2, "n_layer": 1}
DEEPER = {**GPT2, "n_layer": 2}
RELU = {**SMALL, "activation_function": "relu"}  # the same weights, and other outputs
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
USERS = {"notes.txt": "mine", "runs/log.txt": "mine, too", "model-00001-of-00009.safetensors": "of no index"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models from folders with their own tokenizers: dict of names -> the values that `load` must find."""
    found = {}
    configs = {"old": SMALL, "same": SMALL, "deeper": DEEPER, "relu": RELU, "third": SMALL}
    for seed, (name, config) in enumerate(configs.items(), start=1):
        folder = write(tmp_path_factory.mktemp("models") / name, config, tensors(config, seed=seed))
        for file in TOKENIZER:
            (folder / file).write_text(json.dumps({"of": name}))
        found[name] = load(folder)
    return found


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def of(model):
    """All that tells a checkpoint from another one."""
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    return {**weights, "outputs": keras.ops.convert_to_numpy(model(np.array([[1, 2, 3]])))}


def same(found, expected):
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def read(folder):
    """What `load` and `from_checkpoint` read: config.json, tensors and tokenizer."""
    files = [file_of(folder, file) for file in ("config.json", *TOKENIZER)]
    found = {file.name: np.array(file.read_text()) for file in files if file.is_file()}
    with open_tensors(folder) as opened:
        return {**found, **{name: opened.read(name) for name in opened}}


def which(folder, expected):
    """The one name among dicts of `read` that the folder holds."""
    found = read(folder)
    [name] = [name for name in expected if same(found, expected[name])]
    return name


def plainly(folder):
    """What transformers finds, which knows nothing of a save that was cut off: config.json and tensors, or None."""
    files = {ONE} if (folder / ONE).is_file() else set()
    if not files and (folder / INDEX).is_file():
        files = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    if not files or not all((folder / file).is_file() for file in ("config.json", *files)):
        return None
    found = {"config": np.array(sorted(map(str, json.loads((folder / "config.json").read_text()).items())))}
    for file in files:
        found |= load_file(folder / file)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("new", ["same", "deeper", "relu"])
@pytest.mark.parametrize("before", [SHARDS, WHOLE, None])
@pytest.mark.parametrize("after", [SHARDS, WHOLE])
def test_old_or_new_at_every_point(new, before, after, models, tmp_path):
    begin, clean, folder = tmp_path / "begin", tmp_path / "clean", tmp_path / "folder"
    begin.mkdir()
    if before:
        save(models["old"], begin, max_shard_size=before)
        for name, text in USERS.items():
            (begin / name).parent.mkdir(exist_ok=True)
            (begin / name).write_text(text)
    users = {name: text.encode() for name, text in USERS.items()} if before else {}
    save(models[new], clean, max_shard_size=after)
    names = {*contents(clean), *users}
    save(models["third"], tmp_path / "third")
    expected = {new: read(clean), "third": read(tmp_path / "third"), **({"old": read(begin)} if before else {})}
    old, whole, seen, plain = plainly(begin), plainly(clean), ["old"], []

    def run():
        save(models[new], folder, max_shard_size=after)

    shutil.copytree(begin, folder)
    for number, complete in every_kill(run, WRITER):
        assert users.items() <= contents(folder).items(), number
        if before or file_of(folder, "config.json").is_file():
            found = which(folder, expected)
            if found != seen[-1] or complete:
                assert same(of(load(folder)), of(models[new]))
        else:
            found = "old"
            refused(lambda: load(folder), ["config.json", str(folder)])
        seen.append(found)
        found = plainly(folder)
        assert found is None or same(found, whole) or (old is not None and same(found, old)), number
        plain.append("none" if found is None else "new" if same(found, whole) else "old")
        if complete:
            break
        # The next save finishes the one before, and may itself be killed.
        with contextlib.suppress(Killed), killed_at(1 + number % 7, WRITER):
            save(models["third"], folder)
        if before or file_of(folder, "config.json").is_file():
            assert which(folder, expected) in (seen[-1], "third"), number
        run()
        assert which(folder, expected) == new and contents(folder).keys() == names, number
        shutil.rmtree(folder)
        shutil.copytree(begin, folder)
    assert contents(folder).keys() == names and plain[-1] == "new"
    assert seen == sorted(seen, key=["old", new].index) and seen[-1] == new and len(seen) > 10
    assert all(file.name[0] != "." for file in folder.iterdir())


@pytest.mark.slow
def test_one_file_replaces_another_at_once(models, tmp_path):
    """With the same configuration and tokenizer no reader ever finds a folder without weights."""
    save(models["old"], tmp_path)
    model = load(tmp_path)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    for _, _ in every_kill(lambda: save(model, tmp_path), WRITER):
        assert plainly(tmp_path) is not None
    assert same(of(load(tmp_path)), of(model))


@pytest.mark.slow
def test_the_tokenizer_goes_with_the_weights(tmp_path):
    """A vocabulary and the file that says how it is meant are both of the old checkpoint, or both of the new one."""
    models, words = {}, {"old": ["hello", "Hello"], "new": ["more", "Hello", "hello"]}
    for seed, name in enumerate(words):
        folder = write(tmp_path / name, SMALL, tensors(SMALL, seed=seed))
        config = {"tokenizer_class": "BertTokenizer", "do_lower_case": name == "old"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words[name]]))
        models[name] = load(folder)

    def ids(folder):
        return np.asarray(txf.text.from_checkpoint(folder, length=3)("Hello")).tolist()

    assert {name: ids(tmp_path / name) for name in words} == {"old": [2, 4, 3], "new": [2, 5, 3]}
    begin, folder, seen, norm = tmp_path / "begin", tmp_path / "folder", [], "transformer.ln_f.weight"
    norms = {name: tensors(SMALL, seed=seed)[norm] for seed, name in enumerate(words)}
    save(models["old"], begin)
    shutil.copytree(begin, folder)
    for _, complete in every_kill(lambda: save(models["new"], folder), WRITER):
        [name] = [name for name in words if np.array_equal(read(folder)[norm], norms[name])]
        assert ids(folder) == ids(tmp_path / name)
        seen.append(name)
        if not complete:
            shutil.rmtree(folder)
            shutil.copytree(begin, folder)
    assert seen[0] == "old" and seen[-2] == seen[-1] == "new"


def test_old_shards_go(models, tmp_path):
    save(models["old"], tmp_path, max_shard_size=SHARDS)
    assert len(contents(tmp_path)) > 6
    save(models["same"], tmp_path)
    assert contents(tmp_path).keys() == {"config.json", ONE, *TOKENIZER}


@pytest.mark.parametrize("index", [
    "{", '{"weight_map": {"a": "../precious.safetensors", "b": "notes.txt", "c": "runs"}}',
    '{"weight_map": {"b": "notes.txt"}}',
])  # fmt: skip
def test_an_index_takes_no_other_files_along(index, models, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "precious.safetensors").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    (folder / INDEX).write_text(index)
    save(models["old"], folder)
    assert (tmp_path / "precious.safetensors").exists() and (folder / "notes.txt").exists()
    assert not (folder / INDEX).exists()


@pytest.mark.parametrize("name, size", [
    *((name, size) for name in (ONE, INDEX, "config.json", "tokenizer.json") for size in (SHARDS, WHOLE)),
    ("model-00002-of-00004.safetensors", SHARDS),
])  # fmt: skip
def test_a_directory_with_the_name_of_a_file_raises_value_error_before_writing(name, size, models, tmp_path):
    (tmp_path / name / "inner").mkdir(parents=True)
    words = ["`folder`", "no directory", name, str(tmp_path)]
    with killed_at(1, WRITER):
        refused(lambda: save(models["old"], tmp_path, max_shard_size=size), words)
    assert [path.name for path in tmp_path.rglob("*")] == [name, "inner"]


def test_shards_of_two_saves_raise_value_error(models, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    save(models["old"], one, max_shard_size=SHARDS)
    save(models["same"], two, max_shard_size=SHARDS)
    shard = "model-00002-of-00004.safetensors"
    shutil.copy(one / shard, two / shard)
    refused(lambda: load(two), ["one save", str(two), shard])
    # Files of others bear no mark: all of theirs are read, and none among ours.
    theirs = write(tmp_path / "theirs", SMALL, tensors(SMALL, seed=2), shards=6)
    assert same(of(load(theirs)), of(models["same"]))


@pytest.mark.parametrize("size", [SHARDS, WHOLE])
def test_a_full_disk_leaves_the_old_checkpoint(size, models, tmp_path):
    save(models["old"], tmp_path, max_shard_size=SHARDS)
    before, limit, refusals = contents(tmp_path), 1, 0
    while True:
        try:
            with full_disk(limit):
                save(models["deeper"], tmp_path, max_shard_size=size)
            break
        except ValueError as error:
            assert "`folder`" in str(error) and str(tmp_path) in str(error) and "\n" not in str(error)
        assert contents(tmp_path) == before, limit
        limit, refusals = limit * 2, refusals + 1
    assert refusals > 5 and same(of(load(tmp_path)), of(models["deeper"]))


def test_a_folder_that_cannot_be_written_to(models, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner"):
        refused(lambda: save(models["old"], folder), ["`folder`", str(folder)])
    save(models["old"], tmp_path / "folder")
    before = contents(tmp_path)

    def read_only(path, *args, **kwargs):  # for a superuser no folder is
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("os.mkdir", read_only)
    refused(lambda: save(models["same"], tmp_path / "folder"), ["`folder`", str(tmp_path / "folder"), "Read-only"])
    monkeypatch.undo()
    assert contents(tmp_path) == before


def test_threads_that_save_to_one_folder(models, tmp_path):
    names, sizes, expected = ["old", "same", "deeper", "relu"] * 2, [SHARDS, WHOLE] * 4, {}
    for name in names[:4]:
        save(models[name], tmp_path / name)
        expected[name] = read(tmp_path / name)
    folder = tmp_path / "all"
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name, size: save(models[name], folder, max_shard_size=size), names, sizes))
    assert which(folder, expected)
    assert all(path.name[0] != "." for path in folder.iterdir())
