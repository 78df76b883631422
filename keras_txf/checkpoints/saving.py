"""Saves a model as a folder that transformers loads."""

import contextlib
import filecmp
import os
import uuid
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checkpoints.building import describe, find_family, table_of
from keras_txf.checkpoints.checkpoint_info import (
    check_unique_paths,
    companion_files,
    find_checkpoint_info,
    info_of_config,
    write_companion_files,
)
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.derived_config import derive_config
from keras_txf.checkpoints.differences import differences
from keras_txf.checkpoints.files import INDEX, ONE, SAVE_ID, shards_of
from keras_txf.checkpoints.saved_config import dtype_of, new_config, update_generation_config, write_json
from keras_txf.checkpoints.weight_map import links
from keras_txf.checks import short_repr
from keras_txf.disk import COMPLETE, atomic_folder, save_tensors, writing
from keras_txf.layers.adapters import adapters_of

DTYPES = ("float32", "float16", "bfloat16")


def save(
    model: keras.Model,
    folder: str | os.PathLike,
    config: dict[str, Any] | str | os.PathLike | None = None,
    dtype: str | None = None,
    max_shard_size: int = 5 * 10**9,
    family: str | None = None,
) -> None:
    """Writes a model as a Hugging Face folder, which transformers loads with the same logits.

    Use it for a model from `load`, fine-tuned or not. The new folder gets the tokenizer files of the model's folder,
    but a copy from a `.keras` file has no such files. A model from a builder, or a clone, needs a `family` or a
    `config`.

    Args:
        model: a model from `load`, or its copy from a `.keras` file; with `config` or `family` any model of ours.
        folder: path of the new folder. A checkpoint in it is replaced once the new one is complete: a killed process
            leaves the old one or the new one, for `load` and for `txf.text.from_checkpoint`. Other files stay.
        config: dict of a `config.json`, or path of a folder that has one; its `architectures` name the class. Default:
            the config of the checkpoint that the model was loaded from.
        dtype: "float32", "float16" or "bfloat16"; default: the dtype of the model's variables.
        max_shard_size: bytes of a file; larger checkpoints have several files and an index.
        family: `model_type` of a family, such as "llama", instead of `config`. The config.json is derived from the
            model. To verify it, the model that `load` would build runs next to `model`, on random weights and ids.

    A model wired by hand needs the layer names of a builder's model: `embedding` (or `source_embedding` and
    `target_embedding`), the blocks `encoder_0`, `encoder_1` ... or `decoder_0`, `decoder_1` ..., the last norm
    `encoder_norm` or `decoder_norm`, and `logits` for a head with its own kernel, a `keras.layers.Dense`.

    A model without a limit of positions (`max_length=None`) gets no `max_position_embeddings`, and `load` builds it
    without a limit again. Transformers then has the default of its class, which limits no rotary or relative positions;
    GPT-J and other classes with a table of positions are limited to it.

    Raises:
        ValueError: a model of unknown origin without `config` or `family`; both of them; an option or a wiring of the
            model that the family cannot express; weights for which the family has no tensors; weights or options that
            differ from `config`; two weights of one path, as in two inner models; options of `load` that no
            `config.json` can hold; a folder that cannot be written to, a full disk, or a directory with the name of a
            file. The folder is then unchanged.

    Example:

    >>> import tempfile
    >>> model = txf.models.decoder_generator(
    ...     100, 2, 32, 4, position_encoding="learned", max_length=16, norm_placement="pre", scale_embedding=False,
    ...     pad_id=None, intermediate_dim=128)
    >>> folder = tempfile.mkdtemp()
    >>> txf.checkpoints.save(model, folder, family="gpt2")
    >>> txf.checkpoints.load(folder).generate([[5, 6]], 3).shape
    (1, 5)
    """
    checks.built_model("model", model)
    check_no_adapters(model)
    folder = checks.path("folder", folder)
    checks.optional(checks.one_of, "dtype", dtype, DTYPES)
    checks.positive_integer("max_shard_size", max_shard_size)
    if family is None:
        info = find_checkpoint_info(model, config)
    else:
        if config is not None:
            raise ValueError(f"`family` must be None with `config`; received {short_repr(family)}.")
        check_unique_paths(model)
        info = info_of_config(model, derive_config(model, family))
    table = find_family(info.config)
    known = table.tasks[info.task]
    if config is not None:
        check_described(model, info, table)
    found = links(table_of(table, info.task, Config(info.config), model), model.weights)
    prefix = table.prefix * known.whole if info.prefix is None else info.prefix
    tensors = {prefix * link.inner + link.name: link for link in found}
    shards, values = split(tensors, dtype, max_shard_size), new_config(model, info, table, dtype)
    check_no_directories(folder, {"config.json", *shards, *companion_files(info.folder), *info.files})
    with atomic_checkpoint(folder) as new:
        write_tensors(new, shards, info, dtype)
        write_json(new / "config.json", values)
        write_companion_files(new, info)
        update_generation_config(new, values)


def check_no_adapters(model):
    adapted = [layer.path for layer in flatten_layers(model) if adapters_of(layer)]
    if adapted:
        raise ValueError(
            f"`model` must have no adapters; received one with an adapter of {short_repr(adapted[0])}. "
            "`txf.checkpoints.save_adapter` writes it by itself, `txf.training.merge_adapter` adds it to the kernels."
        )


def check_described(model, info, family):
    """Raises ValueError if the model's weights or options differ from those that the given config.json describes."""
    found = differences(describe(model, family, info.task, info.config), model)
    if found:
        raise ValueError(f"`config` must describe the model: it {found}.")


def split(tensors, dtype, max_shard_size):
    """Divides tensors among files: dict of file names -> dict of tensor names -> links."""
    shards, size = [{}], 0
    for name, link in tensors.items():
        more = size_of(link, dtype)
        if size and size + more > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][name] = link
        size += more
    count = len(shards)
    return {
        ONE if count == 1 else f"model-{i + 1:05}-of-{count:05}.safetensors": shard for i, shard in enumerate(shards)
    }


def write_tensors(folder, shards, info, dtype):
    """Writes the files; shards get an index, and an id of the save, so that `load` detects shards of other saves."""
    file_of_tensor = {name: file for file, shard in shards.items() for name in shard}
    first = next(iter(shards))
    kept = {name: tensor for name, tensor in info.kept.items() if name not in file_of_tensor}
    file_of_tensor.update(dict.fromkeys(kept, first))
    metadata = {"format": "pt", **({SAVE_ID: uuid.uuid4().hex} if len(shards) > 1 else {})}
    for file, shard in shards.items():
        arrays = {name: values_of(link, info.skipped.get(link.name), dtype) for name, link in shard.items()}
        if file == first:
            arrays.update({name: as_dtype(tensor, dtype) for name, tensor in kept.items()})
        save_tensors(arrays, folder / file, metadata=metadata)
    if len(shards) > 1:
        size = sum(size_of(link, dtype) for shard in shards.values() for link in shard.values())
        index = {"metadata": {"total_size": size}, "weight_map": file_of_tensor}
        write_json(folder / INDEX, index)


def size_of(link, dtype):
    """Returns the size of a tensor in bytes."""
    return sum(int(np.prod(weight.shape)) * np.dtype(dtype or dtype_of(weight)).itemsize for weight in link.variables)


def values_of(link, first_rows, dtype):
    tensor = link.write([ops.convert_to_numpy(weight) for weight in link.variables])
    if link.transform.skipped and first_rows is not None:
        tensor[: link.transform.skipped] = first_rows
    return as_dtype(tensor, dtype)


def as_dtype(tensor, dtype):
    tensor = np.asarray(tensor if dtype is None or tensor.dtype.kind in "iub" else tensor.astype(dtype))
    return np.ascontiguousarray(tensor).reshape(tensor.shape)  # a scalar would become a vector


@contextlib.contextmanager
def atomic_checkpoint(folder):
    """Replaces a checkpoint atomically: at each moment the folder holds the old checkpoint or the new one.

    Yields a temporary folder within `folder` for the new files. When they are complete, one rename to `COMPLETE` makes
    them the checkpoint: `file_of` looks there before it looks in the folder. Then the files move into the folder.
    Readers who do not know `COMPLETE`, such as transformers, find no weights from before the first move until after
    the last one. If the process is killed after the rename, the next save completes the moves.

    Raises:
        ValueError: the disk is full or read-only. The old checkpoint is then unchanged.
    """
    with writing("folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            _move(folder)
            with atomic_folder(folder / COMPLETE) as temporary:
                yield temporary
                for file in temporary.iterdir():  # so that the one file of a fine-tuned model changes alone
                    known = folder / file.name
                    if file.name not in (ONE, INDEX) and known.is_file() and filecmp.cmp(file, known, shallow=False):
                        file.unlink()
            _move(folder)


def check_no_directories(folder, names):
    """Raises ValueError if a directory has the name of a file that `save` writes."""
    taken = sorted(
        name for name in {*names, ONE, INDEX} if (folder / name).is_dir() and not (folder / name).is_symlink()
    )
    if taken:
        raise ValueError(
            f"`folder` must have no directory with the name of a file; received {short_repr(str(folder))} with "
            f"{short_repr(taken)}."
        )


def _move(folder):
    """Moves the files of a complete save into the folder, in an order that makes a kill at any moment harmless."""
    new = folder / COMPLETE
    if not new.is_dir():
        return
    names = {file.name for file in new.iterdir()}
    weights = names & {ONE, INDEX}
    if weights and (names != {ONE} or (folder / INDEX).exists()):  # one file alone replaces another by one rename
        _remove_weights(folder)
    for name in sorted(names - weights) + sorted(weights):
        os.replace(new / name, folder / name)
    new.rmdir()


def _remove_weights(folder):
    """Removes the old checkpoint's shards, then the index that names them, then the file with all tensors."""
    try:
        shards = set(shards_of(folder / INDEX).values())
    except ValueError:  # no index, or a broken one
        shards = ()
    for name in (*sorted(name for name in shards if name.endswith(".safetensors")), INDEX, ONE):
        if os.path.lexists(folder / name) and not (folder / name).is_dir():
            (folder / name).unlink()


@contextlib.contextmanager
def _lock(folder):
    """Waits while another thread or process saves to the folder. Windows lacks such locks, and does not wait."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks either
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
