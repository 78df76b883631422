"""LoRA adapters in the format of peft: a folder with adapter_config.json and adapter_model.safetensors."""

import dataclasses
import json
import os
import re
from typing import Any

import keras

from keras_txf import checks
from keras_txf.checkpoints import lora_config
from keras_txf.checkpoints.adapter_tensors import read_tensors, write_tensors
from keras_txf.checkpoints.building import find_family, has_own_logits, table_of
from keras_txf.checkpoints.checkpoint_info import checkpoint_info_of, find_checkpoint_info
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.family import IMAGE_TEXT, LANGUAGE_MODELS
from keras_txf.checkpoints.files import find, open_file
from keras_txf.checkpoints.lora_config import LoraConfig, config_of
from keras_txf.checkpoints.saving import DTYPES
from keras_txf.checkpoints.weight_map import SAME, TRANSPOSED, Expert, Link, as_tensor, links
from keras_txf.checks import short_repr
from keras_txf.disk import atomic_folder, copy_others, read_json, reading, save_tensors, writing
from keras_txf.layers.adapters import adapters_of
from keras_txf.training.adapters import (
    adapted_layers,
    check_known_name,
    check_new_name,
    dense_layers,
    insert_adapter,
    shared_variables,
)

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
            rows of B and a copy of A. Dense layers among `modules_to_save` become a part of the adapter; other weights,
            such as the weights of norms, are replaced in the model itself. A warning names modules of an image encoder
            whose outputs a model of images and text does not read, such as the last block of LLaVA's.
        name: name of the adapter in the model.
        config: config.json of the base, for a model that `load` did not return: a dict, or path of a folder that has
            one.
        revision: branch, tag or commit on the Hub.

    Raises:
        ImportError: a name of the Hub without `huggingface_hub`.
        ValueError: a missing folder; a damaged file; an adapter that is not LoRA, or LoRA with `use_dora`, a trained
            `bias`, `layer_replication`, `target_parameters` or initial values that change the base; an adapter of an
            embedding or of tied logits; a module or a size that the model does not have; missing tensors; a name that
            is taken. The model is then unchanged.

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
    info = _info_of(model, config)
    modules, folder = find_modules(model, info), find(path, revision)
    weights, described = folder / WEIGHTS, folder / lora_config.FILE
    values = read_json(described, "path")
    with reading(described):
        wanted = LoraConfig(values)
    with open_file(weights) as tensors, reading(weights, described):
        kinds, parts, shared = read_tensors(tensors, wanted, modules, _finds_unread(info))

    def assign_values():
        for layer, values in parts.items():
            for part, value in values.items():
                layer.adapters[name].variables[part].assign(value)
        for variable, value in shared:
            variable.assign(value)

    insert_adapter(model, name, kinds, [variable for variable, _ in shared], assign_values)


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
        folder: a new folder, or a folder with an adapter, which is replaced at once when all is written; its other
            files stay. The heads of the adapter become `modules_to_save`. Layers of ours that one module of the
            checkpoint concatenates share one A if their As are equal; otherwise the module's rank is the sum of their
            ranks, and B has a block for each layer. The base of an adapted `lm_head` is saved too, as in peft.
        name: name of the adapter. Other weights that are trained while it is active are saved with it.
        config: see `load_adapter`.
        base: path or name of the base for peft; default: the folder or repository that the model was loaded from.
        dtype: "float32", "float16" or "bfloat16".

    Raises:
        ValueError: no adapter of this name; a model of unknown origin without `config`; trained weights that peft has
            no module for, such as a table that embedding and logits share; a folder with files but no adapter, or a
            folder that cannot be written to. The folder is then unchanged.

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
    info = _info_of(model, config)
    layers, shared = adapted_layers(model, name), shared_variables(model)
    if shared and not any(layer.adapters.active == name for layer in layers.values()):
        raise ValueError(
            f"`name` must be the active adapter, with which {short_repr(shared[0].path)} was trained; received "
            f"{short_repr(name)}."
        )
    if os.path.lexists(folder) and not (folder / lora_config.FILE).is_file():
        if not folder.is_dir() or any(folder.iterdir()):
            raise ValueError(
                f"`folder` must be new, empty or of an adapter; received {short_repr(str(folder))}, which is not."
            )
    modules = find_modules(model, info)
    tensors, options, to_save, transposed = write_tensors(modules, name, shared, info.skipped, dtype)
    values = config_of(options, to_save, transposed, info.task, _name_of(info.folder) if base is None else base)
    with writing("folder", folder), atomic_folder(folder) as new:
        save_tensors(tensors, new / WEIGHTS, {"format": "pt"})
        (new / lora_config.FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        copy_others(folder, new, (WEIGHTS, lora_config.FILE))


def _info_of(model, config):
    """Returns the `CheckpointInfo` of a model with any options of `load`: no option changes the names of modules."""
    known = checkpoint_info_of(model) if config is None else None
    return find_checkpoint_info(model, config) if known is None else known


def _finds_unread(info):
    """Returns function(name of a tensor) -> whether it is of an image encoder's last parts, which no decoder reads."""
    family = find_family(info.config)
    patterns = family.kept_tensors(Config(info.config)) if info.task == IMAGE_TEXT else ()
    return lambda name: any(re.fullmatch(pattern, family.own_name(name)) for pattern in patterns)


def _name_of(folder):
    """Returns the repository's name if a folder is in the Hub's cache, else the path of the folder."""
    if folder is None:
        return None
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return str(folder)


OF_INT8 = ("/kernel_scale", "/embeddings_scale")  # variables of a quantized layer, which no checkpoint has


@dataclasses.dataclass
class Module:
    """A module of the class of a checkpoint.

    Args:
        names: name in the class, name in the class before transformers 5, and both names in the class of the body.
        tensors: dict of the last parts of the names of its tensors -> `Link`.
        layers: the Dense layers that its kernel concatenates, by their paths; empty if a layer takes no adapter.
        is_transposed: whether its kernel is (inputs, outputs), as ours.
        is_shared: whether other parts of the model use the same table.
    """

    names: tuple
    tensors: dict
    layers: dict
    is_transposed: bool = False
    is_shared: bool = False

    @property
    def name(self):
        return self.names[0]


def find_modules(model, info):
    """Returns the modules of a model, by their names.

    Args:
        model: with adapters or without.
        info: its `CheckpointInfo`.
    """
    family, config = find_family(info.config), Config(info.config)
    layers, task = dense_layers(model), family.tasks[info.task]
    added = {id(v) for layer in layers.values() for a in adapters_of(layer).values() for v in a.variables.values()}
    variables = [v for v in model.weights if id(v) not in added and not v.path.endswith(OF_INT8)]
    found = {}
    for tensor in links(table_of(family, info.task, config, model), variables):
        if isinstance(tensor.variables[0], Expert):  # transformers 5 has a tensor of all experts, and peft no module
            continue
        prefix = family.prefix * (task.whole and tensor.inner)
        for new, old, last, link in _in_class(tensor, family):
            module = found.setdefault(old, Module((prefix + new, prefix + old, new, old), {}, {}))
            module.tensors[last] = link
            paths = [variable.path.rpartition("/")[0] for variable in link.variables]
            if all(variable.path == f"{path}/kernel" for variable, path in zip(link.variables, paths)):
                if link.transform in (SAME, TRANSPOSED) and layers.keys() >= set(paths):
                    module.layers, module.is_transposed = {path: layers[path] for path in paths}, link.transform is SAME
    if info.task in LANGUAGE_MODELS and (info.task == "seq2seq" or not has_own_logits(model)):
        body = family.rows(config)
        for name in {as_tensor(row).name for path, row in body.items() if path.endswith("embedding/token")}:
            if name in found:
                found[name].is_shared = True
    return {module.name: module for module in found.values()}


def _in_class(link, family):
    """Returns (new and old name of the module, last part of the tensor's name, link) for each module of a tensor."""
    old, _, last = link.name.rpartition(".")
    pattern = next((pattern for pattern in family.renamed if re.fullmatch(pattern, old)), None)
    if pattern is None:
        return [(old, old, last, link)]
    names = family.renamed[pattern]
    if isinstance(names, str):
        return [(re.sub(pattern, names, old), old, last, link)]
    # The file has one tensor, the class a module for each of its parts.
    names = [re.sub(pattern, name, old) for name in names]
    return [
        (name, name, last, Link(f"{name}.{last}", link.transform, link.inner, [variable]))
        for name, variable in zip(names, link.variables, strict=True)
    ]
