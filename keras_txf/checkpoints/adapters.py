"""LoRA adapters in the format of peft: a folder with adapter_config.json and adapter_model.safetensors."""

import json
import os
from typing import Any

import keras
from safetensors.numpy import save_file

from keras_txf import checks
from keras_txf.atomic_write import atomic_folder, copy_others, writing
from keras_txf.checkpoints import lora_config
from keras_txf.checkpoints.adapter_tensors import read_tensors, write_tensors
from keras_txf.checkpoints.files import open_file
from keras_txf.checkpoints.hub import find
from keras_txf.checkpoints.loading import origin_of
from keras_txf.checkpoints.lora_config import LoraConfig, config_of
from keras_txf.checkpoints.modules import find_modules
from keras_txf.checkpoints.saving import DTYPES, find_origin
from keras_txf.checks import short_repr
from keras_txf.reading import read_json, reading
from keras_txf.training.adapters import adapted_layers, check_known_name, check_new_name, insert_adapter, trained_beside

WEIGHTS = "adapter_model.safetensors"


def load_adapter(
    model: keras.Model,
    path: str | os.PathLike,
    name: str = "default",
    config: dict[str, Any] | str | os.PathLike | None = None,
    revision: str | None = None,
) -> None:
    """Puts a LoRA adapter of peft on the model of its base checkpoint, and makes it the active one.

    The model then gives what `peft.PeftModel.from_pretrained(base, path)` gives, and has an adapter as from
    `txf.training.add_adapter`: `fit` goes on with it, `txf.training.merge_adapter` adds it to the kernels for good.

    Args:
        model: the model of the base from `load`, with the same task as in peft; float, int8 or int4.
        path: a folder with `adapter_config.json` and `adapter_model.safetensors`, or the name of a repository on the
            Hub. A module that concatenates several layers of ours, such as `c_attn` of GPT-2, gives each of them its
            rows of B and a copy of A. Of `modules_to_save`, Dense layers become a part of the adapter; other weights,
            such as those of norms, are replaced in the model itself.
        name: what to call the adapter here.
        config: of the base, for a model that `load` did not return: dict of a `config.json`, or path of a folder that
            has one.
        revision: branch, tag or commit on the Hub.

    Raises:
        ImportError: a name of the Hub without `huggingface_hub`.
        ValueError: no such folder; a damaged file; another kind of adapter than LoRA, or LoRA with `use_dora`, a
            trained `bias`, `layer_replication`, `target_parameters` or initial values that change the base; an adapter
            of an embedding or of logits that are tied to it; a module or a size that the model does not have; missing
            tensors; a name that is taken. The model is then as it was.

    Example:

    >>> import tempfile
    >>> base, adapter = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> config = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=100, n_embd=32, n_layer=2,
    ...               n_head=4, n_positions=16, activation_function="relu")
    >>> model = txf.models.decoder_generator(
    ...     100, 2, 32, 4, position_encoding="learned", max_length=16, norm_placement="pre", scale_embedding=False,
    ...     pad_id=None, intermediate_dim=128)
    >>> txf.checkpoints.save(model, base, config)
    >>> model = txf.checkpoints.load(base)
    >>> txf.training.add_adapter(model, rank=4)
    >>> txf.checkpoints.save_adapter(model, adapter)
    >>> again = txf.checkpoints.load(base)
    >>> txf.checkpoints.load_adapter(again, adapter)
    >>> len(again.trainable_variables)  # A and B of query, key and value of two blocks
    12
    """
    check_new_name(model, name)
    modules = find_modules(model, _origin_of(model, config))
    folder = find(path, revision)
    weights, described = folder / WEIGHTS, folder / lora_config.FILE
    values = read_json(described, "path")
    with reading(described):
        wanted = LoraConfig(values)
    with open_file(weights) as tensors, reading(weights, described):
        kinds, parts, shared = read_tensors(tensors, wanted, modules)

    def fill():
        for layer, values in parts.items():
            for part, value in values.items():
                layer.adapters[name].variables[part].assign(value)
        for variable, value in shared:
            variable.assign(value)

    insert_adapter(model, name, kinds, [variable for variable, _ in shared], fill)


def save_adapter(
    model: keras.Model,
    folder: str | os.PathLike,
    name: str = "default",
    config: dict[str, Any] | str | os.PathLike | None = None,
    base: str | None = None,
    dtype: str = "float32",
) -> None:
    """Writes an adapter as a folder that `peft.PeftModel.from_pretrained(base, folder)` loads.

    Use it for an adapter from `txf.training.add_adapter` or `load_adapter` on a model from `load`.
    `txf.training.save_adapter` writes a file for any model, which peft does not know.

    Args:
        model: the model of the base from `load`, with the adapter.
        folder: a new folder, or one with an adapter, which is replaced at once when all is written; other files in it
            stay. The heads of the adapter become `modules_to_save`. Layers of ours that one module of the checkpoint
            concatenates share its A if theirs are equal; otherwise the module's rank is the sum of theirs, and B has a
            block for each. The base of an adapted `lm_head` goes along, as peft has it.
        name: of the adapter. What else is trained while it is active goes with it.
        config: see `load_adapter`.
        base: what peft should know the base by; default the folder or the repository that the model was loaded from.
        dtype: "float32", "float16" or "bfloat16".

    Raises:
        ValueError: no adapter of this name; a model of unknown origin without `config`; trained weights that peft has
            no module for, such as a table that embedding and logits share; a folder with other files, or one that
            cannot be written to. The folder is then as it was.

    Example:

    ```python
    model = txf.checkpoints.load("smollm")
    txf.training.add_adapter(model, rank=8, targets=["*/query", "*/value"])
    txf.checkpoints.save_adapter(model, "adapter")
    ```
    """
    check_known_name(model, name)
    folder = checks.path("folder", folder)
    checks.optional(checks.string, "base", base)
    checks.one_of("dtype", dtype, DTYPES)
    origin = _origin_of(model, config)
    layers, shared = adapted_layers(model, name), trained_beside(model)
    if shared and not any(layer.active == name for layer in layers.values()):
        raise ValueError(
            f"`name` must be the active adapter, with which {short_repr(shared[0].path)} was trained; received "
            f"{short_repr(name)}."
        )
    if os.path.lexists(folder) and not (folder / lora_config.FILE).is_file():
        if not folder.is_dir() or any(folder.iterdir()):
            raise ValueError(
                f"`folder` must be new, empty or of an adapter; received {short_repr(str(folder))}, which is not."
            )
    modules = find_modules(model, origin)
    tensors, options, to_save, transposed = write_tensors(modules, name, shared, origin.skipped, dtype)
    values = config_of(options, to_save, transposed, origin.task, _name_of(origin.folder) if base is None else base)
    with writing("folder", folder), atomic_folder(folder) as new:
        save_file(tensors, new / WEIGHTS, {"format": "pt"})
        (new / lora_config.FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        copy_others(folder, new, (WEIGHTS, lora_config.FILE))


def _origin_of(model, config):
    """The `Provenance` of a model, whatever options it was loaded with: none of them changes the names of modules."""
    known = origin_of(model) if config is None else None
    return find_origin(model, config) if known is None else known


def _name_of(folder):
    """The name of a repository whose files are in the Hub's cache, or the path of another folder."""
    if folder is None:
        return None
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return str(folder)
