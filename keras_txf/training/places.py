"""Names of layers and variables: their paths, and the names of the models around them where two of these share paths.

Each builder begins its paths anew, so that two encoders inside of one model both have "encoder_0/attention/query".
"""

import keras

from keras_txf.backend.functional_graph import name_and_number
from keras_txf.backend.keras_private import flatten_layers, has_own_weights, own_trainable_by_nature
from keras_txf.checks import short_repr
from keras_txf.training.patterns import select


def layers_by_name(model, wanted):
    """The layers that `wanted` takes, by their names in files."""
    prefixes = _prefixes(model)
    found = {}
    for layer in filter(wanted, flatten_layers(model)):
        name = _names(prefixes, layer, layer.path)[0]
        if found.setdefault(name, layer) is not layer:
            raise ValueError(
                "`model` must have one layer of each path within one model, for adapters are known by them; received "
                f"two of {short_repr(name)}. Give the layers around them names that differ."
            )
    return found


def trainable_by_name(model):
    """The variables that training may change, by their names in files, as lists: a name should have one."""
    prefixes, found = _prefixes(model), {}
    for layer in flatten_layers(model):
        for variable in own_trainable_by_nature(layer):
            found.setdefault(_names(prefixes, layer, variable.path)[0], {})[id(variable)] = variable
    return {name: list(variables.values()) for name, variables in found.items()}


def select_layers(argument, patterns, model, layers, kind, least=1):
    """The layers whose path a pattern matches, alone or after the names of the models around."""
    prefixes, found = _prefixes(model), {}
    for layer in layers:
        for name in dict.fromkeys(_names(prefixes, layer, layer.path)):
            found.setdefault(name, []).append(layer)
    chosen = select(argument, patterns, found, kind, least)
    return list({id(layer): layer for name in chosen for layer in found[name]}.values())


def _names(prefixes, layer, path):
    """Returns the names of a path: in files, after the names of the models around the layer, and the path alone."""
    return [*(f"{prefix}{path}" for prefix in prefixes.get(id(layer), ())), path]


def _prefixes(model):
    """The names of the models around each layer, as in files and as they are, if two layers of this model share a path.

    Keras and the builders count the models that are made without a name: "encoder_4" and "encoder_5" of one process are
    "encoder" and "encoder_1" of another one, which are their names in files.
    """
    with_weights = [layer.path for layer in flatten_layers(model) if layer.path and has_own_weights(layer)]
    found = {}
    if len(set(with_weights)) < len(with_weights):
        _add_prefixes(model, ("", ""), found)
    return found


def _add_prefixes(model, around, found):
    inner = _models_in(model)
    of_inner = {id(layer) for one in inner for layer in flatten_layers(one)}
    for layer in flatten_layers(model):
        if id(layer) not in of_inner:
            found.setdefault(id(layer), around)
    split = [name_and_number(one.name) for one in inner]
    order = sorted(range(len(inner)), key=lambda i: split[i][1])
    counts = {}
    for i in order:
        base = split[i][0]
        number = counts[base] = counts.get(base, -1) + 1
        names = (f"{base}_{number}" if number else base, inner[i].name)
        _add_prefixes(inner[i], tuple(f"{prefix}{name}/" for prefix, name in zip(around, names)), found)


def _models_in(model):
    """The models directly inside of a model, those within its layers too, in order."""
    found, inside = [], set()
    for layer in flatten_layers(model, include_self=False):
        if isinstance(layer, keras.Model) and id(layer) not in inside:
            found.append(layer)
            inside |= {id(inner) for inner in flatten_layers(layer)}
    return found
