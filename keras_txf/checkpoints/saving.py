"""Saving: writes a model as a folder that transformers loads."""

import collections
import os
import shutil
import uuid
from typing import Any

import keras
import numpy as np
from keras import ops
from safetensors.numpy import save_file

from keras_txf import checks
from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checkpoints.atomic_checkpoint import atomic_checkpoint, check_places
from keras_txf.checkpoints.building import describe, family_values, find_family, table_of, task_of
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.derived_config import derive_config
from keras_txf.checkpoints.files import INDEX, ONE, SAVE_ID
from keras_txf.checkpoints.loading import PROVENANCE, Provenance, origin_of
from keras_txf.checkpoints.model_options import differences
from keras_txf.checkpoints.saved_config import dtype_of, new_config, update_generation_config, write_json
from keras_txf.checkpoints.weight_map import links
from keras_txf.checks import short_repr
from keras_txf.layers.adapters import adapters_of
from keras_txf.reading import COMPLETE, file_of, read_json, within

DTYPES = ("float32", "float16", "bfloat16")
# Files that are copied with the weights of a checkpoint.
BESIDE = ("tokenizer*", "chat_template*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
          "spiece.model", "spm.model", "sentencepiece.bpe.model", "source.spm", "target.spm", "target_vocab.json",
          "generation_config.json", "preprocessor_config.json")  # fmt: skip
# Options of `load` without an effect on the logits, and the one that config.json holds.
FREE = {"name", "return_hidden_states", "return_attention_scores", "token_type_ids", "packed", "dropout",
        "embedding_dropout", "attention_dropout", "feed_forward_dropout", "head_dropout", "stochastic_depth",
        "max_length", "pad_id"}  # fmt: skip


def save(
    model: keras.Model,
    folder: str | os.PathLike,
    config: dict[str, Any] | str | os.PathLike | None = None,
    dtype: str | None = None,
    max_shard_size: int = 5 * 10**9,
    family: str | None = None,
) -> None:
    """Writes a model as a Hugging Face folder, which transformers loads with the same logits.

    Use it for a model from `load`, fine-tuned or not. The new folder gets the tokenizer files of the model's folder;
    a copy out of a `.keras` file has none. A model from a builder, or a clone, needs a `family` or a `config`.

    Args:
        model: a model from `load`, or its copy out of a `.keras` file; with `config` or `family` any model of ours.
        folder: path of the new folder. A checkpoint in it is replaced once the new one is complete: a killed process
            leaves the old one or the new one, for `load` and for `txf.text.from_checkpoint`. Other files stay.
        config: dict of a `config.json`, or path of a folder that has one; its `architectures` name the class. Default:
            the config of the checkpoint that the model was loaded from.
        dtype: "float32", "float16" or "bfloat16"; default: that of the model's variables.
        max_shard_size: bytes of a file; larger checkpoints have several files and an index.
        family: `model_type` of a family, such as "llama", instead of `config`. The config.json is derived from the
            model. The model that `load` would build of it is run next to the given one, on random weights and ids.

    Raises:
        ValueError: a model of unknown origin without `config` or `family`; both of them; an option or a wiring of the
            model that the family cannot express; weights for which the family has no tensors; weights or options other
            than those of `config`; two weights of one path, as two models inside of the model may have; options of
            `load` that no `config.json` can hold; a folder that cannot be written to, a full disk, or a directory in
            the place of a file. The folder is then as it was.

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
    refuse_adapters(model)
    folder = checks.path("folder", folder)
    checks.optional(checks.one_of, "dtype", dtype, DTYPES)
    checks.positive_integer("max_shard_size", max_shard_size)
    if family is not None:
        if config is not None:
            raise ValueError(f"`family` must be None with `config`; received {short_repr(family)}.")
        refuse_equal_paths(model)
        config = derive_config(model, family)
    origin = find_origin(model, config)
    table = find_family(origin.config)
    known = table.tasks[origin.task]
    found = links(table_of(table, origin.task, Config(origin.config), model), model.weights)
    if config is not None and family is None:  # `derive_config` has compared
        check_described(model, origin, table)
    prefix = table.prefix * known.whole if origin.prefix is None else origin.prefix
    tensors = {prefix * link.inner + link.name: link for link in found}
    shards, values = split(tensors, dtype, max_shard_size), new_config(model, origin, table, dtype)
    check_places(folder, {"config.json", *shards, *beside(origin.folder), *origin.files})
    with atomic_checkpoint(folder) as new:
        write_tensors(new, shards, origin, dtype)
        write_json(new / "config.json", values)
        write_beside(new, origin)
        update_generation_config(new, values)


def refuse_adapters(model):
    adapted = [layer.path for layer in flatten_layers(model) if adapters_of(layer)]
    if adapted:
        raise ValueError(
            f"`model` must have no adapters; received one with an adapter of {short_repr(adapted[0])}. "
            "`txf.checkpoints.save_adapter` writes it by itself, `txf.training.merge_adapter` adds it to the kernels."
        )


def refuse_equal_paths(model):
    """Refuses a model of several models, as of two encoders: a checkpoint has one tensor for each path."""
    counts = collections.Counter(weight.path for weight in model.weights)
    path, count = max(counts.items(), key=lambda item: item[1], default=("", 1))
    if count > 1:
        raise ValueError(
            f"`model` must have one weight of each path, as a checkpoint has; received {count} of {short_repr(path)}. "
            "Pass each of the models inside of it by itself."
        )


def write_beside(folder, origin):
    """Writes the files that belong to the weights of a checkpoint into a folder."""
    for name, file in beside(origin.folder).items():
        shutil.copyfile(file, folder / name)
    for name, text in origin.files.items():
        (folder / name).write_text(text, encoding="utf-8")


def beside(folder):
    """Returns the files to copy with the weights of a folder: dict of names -> paths. Refuses links out of it."""
    places = (folder, folder / COMPLETE) if folder else ()
    files = (file for place in places for pattern in BESIDE for file in place.glob(pattern) if file.is_file())
    return {file.name: within(folder, file) for file in files}


def find_origin(model, config):
    """Returns the `Provenance` of the model, from its own checkpoint or from the caller's `config`."""
    if config is None:
        origin = origin_of(model)
        if origin is None:
            raise ValueError(
                "`config` must be a dict of config.json or a folder with one for a model that `load` did not return, "
                "such as a clone; received None. `family` derives one for a model from a builder."
            )
        changed = sorted(origin.options.keys() - FREE)
        if changed:
            raise ValueError(
                f"`model` was loaded with options that config.json cannot hold: {short_repr(changed)}. Pass `config`."
            )
        return origin
    refuse_equal_paths(model)
    folder = None if isinstance(config, dict) else checks.path("config", config)
    values = dict(config) if folder is None else read_json(file_of(folder, "config.json"), "config")
    values = family_values(values)
    tasks = find_family(values).tasks
    task = task_of(values, tasks)
    if task is None:
        names = sorted(known.architecture for known in tasks.values())
        raise ValueError(
            f"`config` must name one of {names} in `architectures`; received {short_repr(values.get('architectures'))}."
        )
    before = PROVENANCE.get(model)
    if before is None or (before.task, find_family(before.config)) != (task, find_family(values)):
        return Provenance(folder, values, task, {})
    kept = before.kept if before.prefix is None else {}  # those of another class
    return Provenance(folder or before.folder, values, task, {}, kept, before.skipped, files=before.files)


def check_described(model, origin, family):
    """Refuses a model whose weights or options differ from those of the model of a given config.json."""
    said = differences(describe(model, family, origin.task, origin.config), model)
    if said:
        raise ValueError(
            f"`config` must describe the model: it {said[0]}, and {len(said)} options and weights in all that differ."
        )


def split(tensors, dtype, max_shard_size):
    """Divides tensors among files: dict of names of files -> dict of names -> links."""
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


def write_tensors(folder, shards, origin, dtype):
    """Writes the files; shards get an index, and an id of the save by which `load` refuses those of other saves."""
    places = {name: file for file, shard in shards.items() for name in shard}
    first = next(iter(shards))
    kept = {name: tensor for name, tensor in origin.kept.items() if name not in places}
    places.update(dict.fromkeys(kept, first))
    metadata = {"format": "pt", **({SAVE_ID: uuid.uuid4().hex} if len(shards) > 1 else {})}
    for file, shard in shards.items():
        arrays = {name: values_of(link, origin.skipped.get(link.name), dtype) for name, link in shard.items()}
        if file == first:
            arrays.update({name: as_dtype(tensor, dtype) for name, tensor in kept.items()})
        save_file(arrays, folder / file, metadata=metadata)
    if len(shards) > 1:
        size = sum(size_of(link, dtype) for shard in shards.values() for link in shard.values())
        index = {"metadata": {"total_size": size}, "weight_map": places}
        write_json(folder / INDEX, index)


def size_of(link, dtype):
    """Returns the size of a tensor in bytes."""
    return sum(int(np.prod(weight.shape)) * np.dtype(dtype or dtype_of(weight)).itemsize for weight in link.variables)


def values_of(link, first_rows, dtype):
    tensor = link.write([ops.convert_to_numpy(weight) for weight in link.variables])
    if link.way.skipped and first_rows is not None:
        tensor[: link.way.skipped] = first_rows
    return as_dtype(tensor, dtype)


def as_dtype(tensor, dtype):
    tensor = np.asarray(tensor if dtype is None or tensor.dtype.kind in "iub" else tensor.astype(dtype))
    return np.ascontiguousarray(tensor).reshape(tensor.shape)  # a scalar would become a vector
