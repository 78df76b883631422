"""The modules of a checkpoint's class in a loaded model: their tensors, and the Dense layers that they hold."""

import dataclasses
import re

from keras_txf.checkpoints.building import find_family, has_own_logits, table_of
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.family import LANGUAGE_MODELS, as_tensor
from keras_txf.checkpoints.weight_map import SAME, TRANSPOSED, Expert, Link, links
from keras_txf.layers.adapters import adapters_of
from keras_txf.training.adapters import dense_layers

OF_INT8 = ("/kernel_scale", "/embeddings_scale")  # variables of a quantized layer, of which no checkpoint knows


@dataclasses.dataclass
class Module:
    """A module of the class of a checkpoint.

    Args:
        names: its name in the class; its name there before transformers 5; both in the class of the body alone.
        tensors: dict of the last parts of the names of its tensors -> `Link`.
        layers: the Dense layers that its kernel concatenates, by their paths; empty where a layer takes no adapter.
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


def find_modules(model, origin):
    """Returns the modules of a model, by their names.

    Args:
        model: with adapters or without.
        origin: its `Provenance`.
    """
    family, config = find_family(origin.config), Config(origin.config)
    layers, task = dense_layers(model), family.tasks[origin.task]
    beside = {id(v) for layer in layers.values() for a in adapters_of(layer).values() for v in a.variables.values()}
    variables = [v for v in model.weights if id(v) not in beside and not v.path.endswith(OF_INT8)]
    found = {}
    for tensor in links(table_of(family, origin.task, config, model), variables):
        if isinstance(tensor.variables[0], Expert):  # transformers 5 has a tensor of all experts, and peft no module
            continue
        prefix = family.prefix * (task.whole and tensor.inner)
        for new, old, last, link in _in_class(tensor, family):
            module = found.setdefault(old, Module((prefix + new, prefix + old, new, old), {}, {}))
            module.tensors[last] = link
            paths = [variable.path.rpartition("/")[0] for variable in link.variables]
            if all(variable.path == f"{path}/kernel" for variable, path in zip(link.variables, paths)):
                if link.way in (SAME, TRANSPOSED) and layers.keys() >= set(paths):
                    module.layers, module.is_transposed = {path: layers[path] for path in paths}, link.way is SAME
    if origin.task in LANGUAGE_MODELS and (origin.task == "seq2seq" or not has_own_logits(model)):
        body = family.rows(config)
        for name in {as_tensor(row).name for path, row in body.items() if path.endswith("embedding/token")}:
            if name in found:
                found[name].is_shared = True
    return {module.name: module for module in found.values()}


def _in_class(link, family):
    """Returns (name of the module now, its name before, last part of the tensor's name, link) of a tensor's modules."""
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
        (name, name, last, Link(f"{name}.{last}", link.way, link.inner, [variable]))
        for name, variable in zip(names, link.variables, strict=True)
    ]
