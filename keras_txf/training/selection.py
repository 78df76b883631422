"""Selects layers and variables of a model by patterns of their paths.

Each builder starts its paths anew, so two encoders in one model both have "encoder_0/attention/query". If two layers
of a model share a path, their names in files start with the names of the models that contain these layers.
"""

import difflib
import fnmatch

import keras

from keras_txf import layers
from keras_txf.backend.functional_graph import is_functional, name_and_number, operations_after
from keras_txf.backend.keras_private import (
    flatten_layers,
    has_own_weights,
    own_trainable_by_nature,
    trainable_by_nature,
)
from keras_txf.checks import short_repr
from keras_txf.layers.heads import LogitAdjustment


def as_patterns(name, patterns, least=1):
    """Returns the list of patterns of an argument, which may be one string."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if (
        not isinstance(patterns, (list, tuple))
        or not all(isinstance(pattern, str) for pattern in patterns)
        or len(patterns) < least
    ):
        raise ValueError(
            f"`{name}` must be a pattern such as '*/query', or a list of them; received {short_repr(patterns)}."
        )
    return patterns


def select(name, patterns, paths, kind, least=1):
    """Returns the paths that a pattern matches; refuses a pattern without a match.

    `*` matches any text, slashes included, `?` one character, `[0-3]` one of these characters.
    """
    chosen = {}
    for pattern in as_patterns(name, patterns, least):
        matches = fnmatch.filter(paths, pattern)
        if not matches:
            near = difflib.get_close_matches(pattern, paths, 3, 0) or sorted(paths)[:3]
            raise ValueError(
                f"`{name}` must match the paths of {kind}; received {short_repr(pattern)}, which matches none. There "
                f"are {', '.join(map(repr, near)) or 'none'}{' ...' * (len(paths) > 3)}."
            )
        chosen.update(dict.fromkeys(matches))
    return list(chosen)


def check_model(model):
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"`model` must be a built Keras model; received {short_repr(model)}.")


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


BASE = (
    layers.CrossAttention, layers.DecoderBlock, layers.EncoderBlock, layers.FeedForward, layers.LatentAttention,
    layers.MultiHeadSelfAttention, layers.RecurrentDecoder,
)  # fmt: skip
NO_HEADS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization, LogitAdjustment)


def heads_of(model, patterns=None):
    """The layers whose paths match patterns of `heads`; for None what comes after the last block, but for norms and for
    logits over the vocabulary.
    """
    if patterns is not None:
        known = [layer for layer in flatten_layers(model) if layer.path and trainable_by_nature(layer)]
        return select_layers("heads", patterns, model, known, "layers", least=0)
    vocabularies = {
        layer.vocab_size for layer in outermost_layers(model) if isinstance(layer, layers.PositionalEmbedding)
    }
    return [
        layer
        for layer in _after_blocks(model)
        if trainable_by_nature(layer)
        and not isinstance(layer, NO_HEADS)
        and not (layer.name == "logits" and getattr(layer, "units", None) in vocabularies)
    ]


def _after_blocks(model):
    """The outermost layers after the last block; of several models with blocks that stand side by side, after each."""
    towers = [layer for layer in model.layers if isinstance(layer, keras.Model) and _has_blocks(layer)]
    if len(towers) < 2 or not is_functional(model):
        parts = outermost_layers(model)
        return parts[1 + max((i for i, layer in enumerate(parts) if isinstance(layer, BASE)), default=len(parts)) :]
    bases = {id(layer) for layer in model.layers if _has_blocks(layer)}
    last = [layer for layer in model.layers if not bases & operations_after(model, {id(layer)})]
    after = operations_after(model, bases)
    found = [_after_blocks(layer) if layer in towers else _flat(layer) for layer in last if id(layer) in after | bases]
    return [layer for layers in found for layer in layers if not isinstance(layer, BASE)]


def _has_blocks(layer):
    return any(isinstance(inner, BASE) for inner in flatten_layers(layer))


def outermost_layers(model):
    """The layers of a model and of the models inside of it, in order."""
    return [layer for outer in model.layers for layer in _flat(outer)]


def _flat(layer):
    return outermost_layers(layer) if isinstance(layer, keras.Model) else [layer]
