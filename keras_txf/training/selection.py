"""Selects layers and variables of a model by patterns of their paths.

Each builder restarts its paths, so two encoders in one model both have "encoder_0/attention/query". If two layers of a
model share a path, their names in files start with the names of the models that contain these layers.
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
    """Returns the paths that a pattern matches. Raises ValueError for a pattern without a match.

    `*` matches any text, slashes included, `?` one character, `[0-3]` one of these characters.
    """
    selected = {}
    for pattern in as_patterns(name, patterns, least):
        matches = fnmatch.filter(paths, pattern)
        if not matches:
            near = difflib.get_close_matches(pattern, paths, 3, 0) or sorted(paths)[:3]
            raise ValueError(
                f"`{name}` must match the paths of {kind}; received {short_repr(pattern)}, which matches none. There "
                f"are {', '.join(map(repr, near)) or 'none'}{' ...' * (len(paths) > 3)}."
            )
        selected.update(dict.fromkeys(matches))
    return list(selected)


def check_model(model):
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(f"`model` must be a built Keras model; received {short_repr(model)}.")


def layers_by_name(model, predicate):
    """The layers for which `predicate` is true, by their names in files."""
    prefixes, result = _prefixes(model), {}
    for layer in filter(predicate, flatten_layers(model)):
        name = _names(prefixes, layer, layer.path)[0]
        if result.setdefault(name, layer) is not layer:
            raise ValueError(
                "`model` must have one layer of each path within one model, because paths name adapters; received two "
                f"of {short_repr(name)}. Give the layers around them names that differ."
            )
    return result


def trainable_by_name(model):
    """The variables that training may change, by their names in files: lists, which should have one item each."""
    prefixes, result = _prefixes(model), {}
    for layer in flatten_layers(model):
        for variable in own_trainable_by_nature(layer):
            result.setdefault(_names(prefixes, layer, variable.path)[0], {})[id(variable)] = variable
    return {name: list(variables.values()) for name, variables in result.items()}


def select_layers(argument, patterns, model, layers, kind, least=1):
    """The layers whose path a pattern matches, with or without the names of the surrounding models."""
    prefixes, by_name = _prefixes(model), {}
    for layer in layers:
        for name in dict.fromkeys(_names(prefixes, layer, layer.path)):
            by_name.setdefault(name, []).append(layer)
    selected = select(argument, patterns, by_name, kind, least)
    return list({id(layer): layer for name in selected for layer in by_name[name]}.values())


def _names(prefixes, layer, path):
    """Returns the names of a path: the name in files, the name after those models as they are, and the path itself."""
    return [*(f"{prefix}{path}" for prefix in prefixes.get(id(layer), ())), path]


def _prefixes(model):
    """The names of the models around each layer, if two layers of this model share a path: in files, and as they are.

    Keras and the builders count models without a name: "encoder_4" and "encoder_5" of one process are "encoder" and
    "encoder_1" of another process, which are the names in files.
    """
    with_weights = [layer.path for layer in flatten_layers(model) if layer.path and has_own_weights(layer)]
    prefixes = {}
    if len(set(with_weights)) < len(with_weights):
        _add_prefixes(model, ("", ""), prefixes)
    return prefixes


def _add_prefixes(model, outer, prefixes):
    models = _models_in(model)
    in_models = {id(layer) for inner in models for layer in flatten_layers(inner)}
    for layer in flatten_layers(model):
        if id(layer) not in in_models:
            prefixes.setdefault(id(layer), outer)
    counts = {}
    for inner in sorted(models, key=lambda inner: name_and_number(inner.name)[1]):
        base, _ = name_and_number(inner.name)
        number = counts[base] = counts.get(base, -1) + 1
        names = (f"{base}_{number}" if number else base, inner.name)
        _add_prefixes(inner, tuple(f"{prefix}{name}/" for prefix, name in zip(outer, names)), prefixes)


def _models_in(model):
    """The models directly inside a model, also within its layers, in order."""
    models, inside = [], set()
    for layer in flatten_layers(model, include_self=False):
        if isinstance(layer, keras.Model) and id(layer) not in inside:
            models.append(layer)
            inside |= {id(inner) for inner in flatten_layers(layer)}
    return models


BASE = (
    layers.CrossAttention, layers.DecoderBlock, layers.EncoderBlock, layers.FeedForward, layers.LatentAttention,
    layers.MultiHeadSelfAttention, layers.RecurrentDecoder,
)  # fmt: skip
NO_HEADS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization, LogitAdjustment)


def heads_of(model, patterns=None):
    """The layers that fine-tuning trains as a whole: the layers that match `patterns`.

    None selects the layers after the last block, except norms and logits over the vocabulary.
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
    """The outermost layers after the last block; with several models of blocks next to each other, after each model."""
    towers = [layer for layer in model.layers if isinstance(layer, keras.Model) and _has_blocks(layer)]
    if len(towers) < 2 or not is_functional(model):
        parts = outermost_layers(model)
        return parts[1 + max((i for i, layer in enumerate(parts) if isinstance(layer, BASE)), default=len(parts)) :]
    bases = {id(layer) for layer in model.layers if _has_blocks(layer)}
    last = [layer for layer in model.layers if not bases & operations_after(model, {id(layer)})]
    after = operations_after(model, bases)
    ends = [_after_blocks(layer) if layer in towers else _flat(layer) for layer in last if id(layer) in after | bases]
    return [layer for layers in ends for layer in layers if not isinstance(layer, BASE)]


def _has_blocks(layer):
    return any(isinstance(inner, BASE) for inner in flatten_layers(layer))


def outermost_layers(model):
    """The layers of a model and of the models inside it, in order."""
    return [layer for outer in model.layers for layer in _flat(outer)]


def _flat(layer):
    return outermost_layers(layer) if isinstance(layer, keras.Model) else [layer]
