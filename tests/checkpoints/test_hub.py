"""Names of repositories on the Hub."""

import fnmatch
import inspect
import sys
import types
from unittest import mock

import pytest
from folders import GPT2, tensors, write

import keras_txf as txf

load = txf.checkpoints.load


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What a stand-in for the Hub's package was asked for; it has one repository."""
    folder, asked = write(tmp_path / "snapshot", GPT2, tensors(GPT2)), []

    def snapshot_download(repo_id, **arguments):
        asked.append((repo_id, arguments))
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    return asked


@pytest.mark.parametrize("revision", [None, "v1.0"])
def test_a_repository_is_fetched(asked, revision):
    assert load("openai-community/gpt2", revision=revision).get_layer("embedding").vocab_size == GPT2["vocab_size"]
    [(name, arguments)] = asked
    assert name == "openai-community/gpt2" and arguments["revision"] == revision


def test_a_task_fetches_the_revision_too(asked):
    with pytest.raises(ValueError, match="`path` must be a checkpoint with a tokenizer"):  # the repository has none
        txf.tasks.TextGenerator.from_checkpoint("org/name", revision="v1.0")
    assert asked[0][1]["revision"] == "v1.0"


def test_only_what_is_read_is_fetched(asked):
    load("org/name")
    arguments = asked[0][1]

    def fetched(file):  # as the package decides
        def matches(key):
            return any(fnmatch.fnmatch(file, pattern) for pattern in arguments[key])

        return matches("allow_patterns") and not matches("ignore_patterns")

    names = [
        "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "merges.txt",
        "model-00001-of-00002.safetensors", "vocab.txt", "spiece.model", "source.spm", "adapter_config.json",
        "adapter_model.safetensors", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
    ]  # fmt: skip
    others = [
        "pytorch_model.bin", "adapter_model.bin", "onnx/config.json", "onnx/model.safetensors", "run.py",
        "2_Dense/pytorch_model.bin", "consolidated.safetensors", "tf_model.h5",
    ]  # fmt: skip
    assert list(filter(fetched, names + others)) == names


def test_a_folder_goes_before_a_repository(asked, tmp_path, monkeypatch):
    write(tmp_path / "org", {}, {})
    write(tmp_path / "org" / "name", GPT2, tensors(GPT2))
    monkeypatch.chdir(tmp_path)
    load("org/name")
    assert not asked


def test_errors_of_the_hub_come_through(monkeypatch):
    hub = types.SimpleNamespace(snapshot_download=mock.Mock(side_effect=ConnectionError("no such repository")))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(ConnectionError, match="no such repository"):
        load("org/name")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"'org/name' is not a folder.*pip install huggingface_hub"):
        load("org/name")


def test_the_real_package_has_these_arguments():
    download = pytest.importorskip("huggingface_hub").snapshot_download
    assert {"revision", "allow_patterns", "ignore_patterns"} <= inspect.signature(download).parameters.keys()
