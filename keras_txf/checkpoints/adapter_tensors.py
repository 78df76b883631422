"""Reads and writes the tensors of a peft adapter.

peft has A (rank, inputs) and B (outputs, rank) of a module; ours are transposed. A module may concatenate the outputs
of several layers of ours, and each layer has its own adapter.
"""

import re
import warnings

import numpy as np
from keras import ops

from keras_txf.backend.keras_private import kernel_shape
from keras_txf.checkpoints.source import FLOATS
from keras_txf.checks import short_repr
from keras_txf.layers.adapters import adapters_of
from keras_txf.layers.projections import Projection

PREFIX = "base_model.model."
COPIED_BY_PEFT = ("lm_head",)  # adapted modules whose base peft saves with the adapter
SAVED_BY_PEFT = ("classifier", "score")  # heads that peft saves as a whole, with every module inside


def read_tensors(tensors, config, modules, is_unread):
    """Reads an adapter, and checks it against its configuration and the model.

    Args:
        tensors: `Tensors` of the file.
        config: `LoraConfig`.
        modules: dict of `find_modules`.
        is_unread: function of the name of a tensor: whether no output of the checkpoint's model depends on its module.

    Returns:
        dict of paths of layers -> (kind, options) of their adapters; dict of layers -> values by the names of the
        adapter's variables; list of (variable, value) of other weights.
    """
    names = {}  # (module, its tensor) -> name in the file
    for name in tensors:
        if not name.startswith(PREFIX):
            raise ValueError(f"it must have names of peft, which begin with {PREFIX}; received {short_repr(name)}.")
        if tensors.dtype(name) not in FLOATS:
            raise ValueError(f"{short_repr(name)} must be of a type of {[*FLOATS]}; received {tensors.dtype(name)}.")
        names[re.fullmatch(r"(.*?)\.?(lora_[AB]\.weight|[^.]*)", name.removeprefix(PREFIX)).groups()] = name
    modules = _as_named(modules, {path for path, _ in names})
    kinds, parts, shared, used = {}, {}, [], set()
    for path, module in modules.items():
        if config.saves(path):
            used |= {(path, part) for part in module.tensors}
            _read_whole(tensors, names, path, module, kinds, parts, shared)
        elif module.layers and config.targets(path):
            used |= {(path, "lora_A.weight"), (path, "lora_B.weight")}
            _read_low_rank(tensors, names, path, module, config.options_of(path), kinds, parts)
    others = {pair: name for pair, name in names.items() if pair not in used}
    unread = [name for name in others.values() if is_unread(name.removeprefix(PREFIX))]
    if unread:
        warnings.warn(
            f"The adapter has {len(unread)} tensors of modules that no output of the model depends on, such as "
            f"{short_repr(unread[0])}; they are left out.",
            stacklevel=3,  # the caller of `load_adapter`
        )
    _check_others(tensors, {pair: name for pair, name in others.items() if name not in unread}, modules)
    if not any(kind == "low_rank" for kind, _ in kinds.values()):
        raise ValueError("`target_modules` must name modules of the model; received names of none.")
    return kinds, parts, shared


def _as_named(modules, paths):
    """Returns the modules by their names in a file, which may be any of the four `Module.names`."""
    namings = [{module.names[i]: module for module in modules.values()} for i in range(4)]
    return max(namings, key=lambda naming: len(naming.keys() & paths))


def _read_low_rank(tensors, names, path, module, options, kinds, parts):
    rank, sizes = options["rank"], [kernel_shape(layer) for layer in module.layers.values()]
    shapes = {"lora_A.weight": (rank, sizes[0][0]), "lora_B.weight": (sum(width for _, width in sizes), rank)}
    a, b = (_read(tensors, names, (path, part), shape) for part, shape in shapes.items())
    rows = module.tensors["weight"].split(b, 0)
    for (layer_path, layer), own in zip(module.layers.items(), rows):
        kinds[layer_path] = ("low_rank", options)
        parts[layer] = {"lora_a": a.T, "lora_b": own.T}


def _read_whole(tensors, names, path, module, kinds, parts, shared):
    if module.is_shared:
        raise ValueError(
            f"`modules_to_save` must have no table that several parts of the model share; received {short_repr(path)}."
        )
    for part, link in module.tensors.items():
        values = link.read(_read(tensors, names, (path, part), link.shape()))
        for variable, value in zip(link.variables, values):
            layer_path, _, own = variable.path.rpartition("/")
            layer = module.layers.get(layer_path)
            if isinstance(layer, Projection) and own in ("kernel", "bias"):
                kinds[layer_path] = ("whole", {})
                parts.setdefault(layer, {})[own] = value
            else:
                shared.append((variable, value))


def _read(tensors, names, pair, shape):
    """Reads a tensor as float32."""
    if pair not in names:
        raise ValueError(f"it must have the tensor {short_repr(PREFIX + '.'.join(pair))}; there is none.")
    name = names[pair]
    if tensors.shape(name) != shape:
        raise ValueError(
            f"{short_repr(name)} must be of shape {shape}, by its configuration and the model; received "
            f"{tensors.shape(name)}."
        )
    return tensors.read(name).astype("float32")


def _check_others(tensors, names, modules):
    """Raises ValueError for tensors without a weight, except the base's copies that peft saves with adapted logits."""
    for (path, part), name in sorted(names.items(), key=lambda item: not item[0][1].startswith("lora_")):
        module = modules.get(path.removesuffix(".base_layer"))
        if part.startswith("lora_"):
            why = "which `target_modules` does not name"
            if module is None or not module.layers:
                why = "which is not a Dense layer of the model: neither embeddings nor tied logits are"
            raise ValueError(
                f"{short_repr(name)} must be of a module that may have an adapter; it is of a module {why}. "
                "The model must be the `base_model_name_or_path` of adapter_config.json."
            )
        link = None if module is None else module.tensors.get(part)
        if link is None:
            raise ValueError(f"{short_repr(name)} must be of a weight of the model; there is none for it.")
        same = tensors.shape(name) == link.shape() and all(
            np.array_equal(value, ops.convert_to_numpy(variable))
            for value, variable in zip(link.read(tensors.read(name)), link.variables)
        )
        if not same:
            raise ValueError(f"{short_repr(name)} must be in `modules_to_save`, or be the base's; it is neither.")


def write_tensors(modules, name, shared, skipped, dtype):
    """Returns the tensors of an adapter and the values of its configuration.

    Args:
        modules: dict of `find_modules`.
        name: name of the adapter.
        shared: list of other variables that are trained with it.
        skipped: see `CheckpointInfo`.
        dtype: dtype of the tensors.

    Returns:
        dict of names -> arrays; dict of names of modules -> options of their adapters; list of `modules_to_save`;
        whether kernels are (inputs, outputs) in the checkpoint.
    """
    found = {path: _adapters_in(module, name) for path, module in modules.items()}
    whole = [path for path, module in modules.items() if _is_whole(module, found[path], shared)]
    for path in whole:
        _check_alone(modules[path], whole, modules)
    _check_held(shared, modules)
    whole = [path for path in modules if path.endswith(tuple(whole))]  # as peft takes `modules_to_save`
    tensors, options, copies = {}, {}, {}
    for path, module in modules.items():
        low_rank = any(adapter.kind == "low_rank" for adapter in found[path].values())
        if low_rank and path in whole:
            raise ValueError(
                f"`model` must train {short_repr(path)} by a matrix of low rank or as a whole; received both, as peft "
                f"takes {short_repr(_as_peft_wraps(whole, modules))}."
            )
        if low_rank:
            a, b, options[path] = _joined(module, found[path])
            tensors.update({f"{path}.lora_A.weight": a, f"{path}.lora_B.weight": b})
            if path.endswith(COPIED_BY_PEFT):
                copies.update(_copies(path, module))
        elif path in whole:
            for part, link in module.tensors.items():
                value = link.write([_value(variable, found[path]) for variable in link.variables])
                if link.transform.skipped and link.name in skipped:
                    value[: link.transform.skipped] = skipped[link.name]
                tensors[f"{path}.{part}"] = value
    tensors = {path: value.astype(dtype) for path, value in tensors.items()} | copies
    tensors = {f"{PREFIX}{path}": np.ascontiguousarray(value) for path, value in tensors.items()}
    is_transposed = any(modules[path].is_transposed for path in options)
    return tensors, options, _as_peft_wraps(whole, modules), is_transposed


def _copies(path, module):
    """Returns the tensors of a module's base by their names in a file of peft; an empty dict for an int8 base."""
    values = {part: [ops.convert_to_numpy(x) for x in link.variables] for part, link in module.tensors.items()}
    if any(value.dtype.kind in "iu" for arrays in values.values() for value in arrays):
        return {}
    return {f"{path}.base_layer.{part}": module.tensors[part].write(arrays) for part, arrays in values.items()}


def _adapters_in(module, name):
    return {path: adapters_of(layer)[name] for path, layer in module.layers.items() if name in adapters_of(layer)}


def _is_whole(module, found, shared):
    """Whether a module is trained as a whole, by an adapter or itself."""
    variables = [variable for link in module.tensors.values() for variable in link.variables]
    trained = any(variable is other for variable in variables for other in shared)
    return trained or any(adapter.kind == "whole" for adapter in found.values())


def _joined(module, found):
    """Returns A, B and the options of a module's adapter that does the same as the adapters of its layers.

    If the layers have equal As, the module has the same A. Otherwise the As are stacked, and B has a block for each.
    """
    arrays = {
        path: [ops.convert_to_numpy(adapter.variables[part]).T for part in ("lora_a", "lora_b")]
        for path, adapter in found.items()
    }
    every = [adapter.options for adapter in found.values()]
    first = every[0]
    if any(one["alpha"] * first["rank"] != first["alpha"] * one["rank"] for one in every):
        scales = [one["alpha"] / one["rank"] for one in every]
        raise ValueError(f"`model` must have one alpha / rank in {module.name}; received {short_repr(scales)}.")
    one_a, *others = (a for a, _ in arrays.values())
    if all(np.array_equal(one_a, a) for a in others):
        a, starts = one_a, dict.fromkeys(arrays, 0)
    else:
        a = np.concatenate([a for a, _ in arrays.values()])
        ends = np.cumsum([options["rank"] for options in every])
        starts = {path: end - options["rank"] for path, end, options in zip(arrays, ends, every)}
    blocks = []
    for path, layer in module.layers.items():
        block = np.zeros((layer.units, len(a)), "float32")
        if path in arrays:
            block[:, starts[path] : starts[path] + found[path].options["rank"]] = arrays[path][1]
        blocks.append(block)
    b = module.tensors["weight"].join(blocks, 0)
    return a, b, {**first, "rank": len(a), "alpha": first["alpha"] * len(a) / first["rank"]}


def _value(variable, found):
    """Returns the value of a variable, or of the adapter's variable that replaces it."""
    path, _, part = variable.path.rpartition("/")
    own = found[path].variables.get(part) if path in found else None
    value = ops.convert_to_numpy(variable if own is None else own)
    if value.dtype.kind in "iu":
        raise ValueError(f"`model` must have float weights beside those of the adapter; {variable.path} is quantized.")
    return value


def _check_alone(module, whole, modules):
    """Raises ValueError for a trained module that peft cannot save: not all modules inside are, or a shared table."""
    inside = any(name.startswith(f"{module.name}.") for name in modules.keys() - set(whole))
    if inside or module.is_shared or not module.name:
        link = next(iter(module.tensors.values()))
        raise ValueError(
            f"`model` must train beside the adapter what peft has a module for; received trained "
            f"{short_repr(link.variables[0].path)}, which shares {short_repr(module.name or 'the model')}."
        )


def _check_held(shared, modules):
    """Raises ValueError for trained weights that no module holds, such as the weights of experts."""
    held = {id(v) for module in modules.values() for link in module.tensors.values() for v in link.variables}
    lost = [variable.path for variable in shared if id(variable) not in held]
    if lost:
        raise ValueError(
            f"`model` must train beside the adapter what peft has a module for; received trained {short_repr(lost[0])}."
        )


def _as_peft_wraps(names, modules):
    """Returns names of modules, with the name of a module that peft saves as a whole instead of all modules inside."""
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names if other)]
    for head in SAVED_BY_PEFT:
        within = {module.name for module in modules.values() if module.name.startswith(f"{head}.")}
        if within and within <= set(names):
            names = [head, *(name for name in names if name not in within)]
    return names
