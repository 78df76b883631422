"""Names and links in a stranger's folder do not lead outside: no file of the user is read or published."""

import json
import shutil
import zipfile

import pytest
from refusals import refused

import keras_txf as txf

embedder = txf.tasks.TextEmbedder


@pytest.fixture
def folder(bert, tmp_path):
    return shutil.copytree(bert, tmp_path / "models--me--bert" / "snapshots" / "0")


@pytest.mark.parametrize("where", ["../outside", "{}/outside", "link"])
@pytest.mark.parametrize("kind", ["Pooling", "Dense"])
def test_modules_stay_in_their_folder(kind, where, folder):
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text('{"pooling_mode": "max"}')
    (folder / "link").symlink_to(outside)
    modules = [("Transformer", ""), *([("Pooling", "1_Pooling")] if kind == "Dense" else [])]
    modules.append((kind, where.format(folder.parent)))
    content = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in modules]
    (folder / "modules.json").write_text(json.dumps(content))
    refused(lambda: embedder.from_checkpoint(folder), ["`folder` must contain its files", " leads out of it, to "])


def test_save_publishes_no_file_behind_a_link(folder, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (folder / "tokenizer_secret.json").symlink_to(tmp_path / "secret")
    model = txf.checkpoints.load(folder)
    for save in (lambda: txf.checkpoints.save(model, tmp_path / "new"),
                 lambda: embedder.from_checkpoint(folder).save(tmp_path / "new")):  # fmt: skip
        refused(save, ["tokenizer_secret.json', which leads out of it, to ", "secret'"])
    assert not (tmp_path / "new").exists()


def test_the_cache_of_the_hub_has_its_files_behind_links(folder, tmp_path):
    blobs = folder.parents[1] / "blobs"
    blobs.mkdir()
    for number, file in enumerate(file for file in folder.iterdir() if file.is_file()):
        shutil.move(file, blobs / str(number))
        file.symlink_to(f"../../blobs/{number}")
    embedder.from_checkpoint(folder).save(tmp_path / "new", format="huggingface")
    assert (tmp_path / "new" / "tokenizer_config.json").is_file()
    assert not any(file.is_symlink() for file in (tmp_path / "new").iterdir())


def test_links_of_an_older_folder_stay_links(bert, tmp_path):
    task = embedder.from_checkpoint(bert)
    task.save(tmp_path / "new")
    (tmp_path / "notes").mkdir()
    (tmp_path / "new" / "notes").symlink_to(tmp_path / "notes")
    (tmp_path / "new" / "gone").symlink_to("nowhere")
    task.save(tmp_path / "new")
    assert (tmp_path / "new" / "notes").readlink() == tmp_path / "notes" and (tmp_path / "new" / "gone").is_symlink()


def test_a_small_file_of_a_large_configuration_is_not_read(bert, tmp_path):
    embedder.from_checkpoint(bert).save(tmp_path / "new")
    with zipfile.ZipFile(tmp_path / "new" / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", " " * 2 * 10**7)
    refused(lambda: embedder.load(tmp_path / "new"), ["model.keras' cannot be read: 'config.json' in it has 20,0"])
