"""LoRA: fine-tuning by a few numbers beside a frozen base."""

import re

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import (
    CrossAttention,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    MultiHeadSelfAttention,
    PositionalEmbedding,
)
from keras_txf.layers.adapters import QUANTIZED, shape_of
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.tuning import layers_with_adapters, trainable_by_nature
from keras_txf.training.freezing import set_trainable
from keras_txf.training.patterns import check_model, select

BASE = (CrossAttention, DecoderBlock, EncoderBlock, FeedForward, MultiHeadSelfAttention)
LOW_RANK = {"rank": checks.positive_integer, "alpha": checks.positive_number, "dropout": checks.rate}  # options of "low_rank"
NORMS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)


def add_adapter(model, name="default", rank=8, alpha=16, dropout=0.0, targets=("*/query", "*/value"), heads=None):
    """Adds a LoRA adapter and makes it the active one: from now on training changes it alone, and new heads.

    A target computes x W + alpha / rank · x A B, where W stays as it is, and B begins with zeros: at first the model
    gives what it gave. Several adapters may live on one model, see `use_adapter`. `compile` and `fit` are
    Keras' own, before or after; `.keras` files keep all adapters, `save_adapter` writes one alone. The base may be
    quantized to int8, before or after.

    Args:
        model: from a builder, or any model with layers of this package.
        name: what to call it: letters, digits, `_` and `-`.
        rank: number of columns of A.
        alpha: the scale of the update, times `rank`.
        dropout: rate on x on its way to A, in training only.
        targets: patterns of paths of projections, such as "*/query", "decoder_[2-5]/attention/*" or
            "*/feed_forward/*". A `*` stands for anything, slashes included.
        heads: patterns of paths of layers that are trained as a whole. Default: what comes after the last block,
            such as a classifier's `logits`; but for norms, and for logits over the vocabulary, which are no new head.
            The model's own projections become a part of the adapter, which
            begins with their values, and come back when another is used. Layers of others are trained themselves, and so
            go with one adapter alone.

    Everything else is frozen, and stays so without the adapter: see `unfreeze`.

    Raises:
        ValueError: a pattern that matches nothing, no targets, a rank above their width, a name that is taken, a second adapter beside heads that are trained
            themselves, a base quantized otherwise than to int8, two models inside of this one whose layers have the same
            paths.

    Reference:
        [LoRA](https://arxiv.org/abs/2106.09685)

    Example:

    >>> model = txf.models.encoder_classifier(100, num_classes=3, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model, rank=4, targets="*/attention/*")
    >>> model.compile("adam", "mse")
    >>> int(sum(np.prod(variable.shape) for variable in model.trainable_variables))  # 8 x 4 x (32 + 32), the head 99
    2147
    """
    check_paths(model)
    given = {"rank": rank, "alpha": alpha, "dropout": dropout}
    options = {option: check(option, given[option]) for option, check in LOW_RANK.items()}
    check_new_name(model, name)
    projections = layers_with_adapters(model)
    targets = select("targets", targets, projections, "projections")
    widest = max(max(shape_of(projections[path])) for path in targets)
    if options["rank"] > widest:
        raise ValueError(f"`rank` must be at most {widest}, the greatest width of a target; received {short_repr(rank)}.")
    heads = _default_heads(model) if heads is None else _layers_by_path(model, heads)
    inside = [path for head in heads for path in layers_with_adapters(head) if path not in targets]
    kinds = {path: ("low_rank", options) for path in targets} | {path: ("whole", {}) for path in inside}
    shared = [v for head in heads for v in _own_variables(head)]
    insert_adapter(model, name, kinds, shared)


def use_adapter(model, name):
    """Switches to another adapter of the model, or to none: the bare base, just as it was.

    It holds for `fit`, `predict`, `generate` and all that the model does from now on, and only its variables are trained.
    What was compiled before is compiled again, loops of `generate` once for each adapter. An optimizer that has trained
    another adapter begins anew, at its current learning rate; a schedule begins anew too.

    Functions of your own in which a compiler has traced the model, other models that share its layers and have been run,
    and what was exported keep the adapter that they have seen.

    Args:
        model: with adapters.
        name: that of an adapter, or None.

    Raises:
        ValueError: no adapter of this name.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model, "verse")
    >>> txf.training.add_adapter(model, "prose")
    >>> txf.training.use_adapter(model, "verse")
    >>> verse = model.generate([[5, 6, 7]], max_new_tokens=4)
    """
    check_paths(model) if name is None else check_known_name(model, name)
    flags = {}
    for layer in layers_with_adapters(model).values():
        layer.active = name if name in layer.adapters else None
        for other, adapter in layer.adapters.items():
            flags.update((id(variable), other == name) for variable in adapter.variables.values())
    set_trainable(model, flags)


def merge_adapter(model, name="default"):
    """Adds an adapter to the kernels for good, and removes it: the model gives the same, and costs what the base does.

    Args:
        model: with this adapter and no other, for others would lie on another base then.
        name: of the adapter.

    Raises:
        ValueError: no adapter of this name, another one beside it, a quantized base.

    Example:

    >>> model = txf.models.encoder(100, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model)
    >>> txf.training.merge_adapter(model)
    >>> len(model.weights) == len(txf.models.encoder(100, num_layers=2, dim=32, num_heads=4).weights)
    True
    """
    check_known_name(model, name)
    others = _names(model) - {name}
    if others:
        raise ValueError(
            f"`model` must have no other adapter when {short_repr(name)} is merged; it has {sorted(others)}: remove them first."
        )
    layers = [layer for layer in layers_with_adapters(model).values() if name in layer.adapters]
    quantized = [layer.path for layer in layers if layer.quantization_mode is not None]
    if quantized:
        raise ValueError(
            f"`model` must be a float model when an adapter is merged; received one with {quantized[0]} in int8."
        )
    for layer in layers:
        with layer.using(name):
            kernel, bias = layer.kernel, layer.bias
        with layer.using(None):
            layer.kernel.assign(kernel)
            if bias is not None and bias is not layer.bias:
                layer.bias.assign(bias)
    remove_adapter(model, name)


def remove_adapter(model, name="default"):
    """Removes an adapter. If it is the active one the bare base is left, which stays frozen: see `unfreeze`.

    Args:
        model: with adapters.
        name: of the adapter.

    Raises:
        ValueError: no adapter of this name.

    Example:

    >>> model = txf.models.encoder(100, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model)
    >>> txf.training.remove_adapter(model)
    >>> len(model.trainable_variables)
    0
    """
    check_known_name(model, name)
    for layer in layers_with_adapters(model).values():
        if name in layer.adapters:
            layer.remove_adapter(name)
    set_trainable(model, {})


def insert_adapter(model, name, kinds, shared, fill=None):
    """Adds an adapter of these kinds and options by path, and freezes all but it and the `shared` variables.

    `fill` gives them their values, before an optimizer begins anew: some keep copies. After an error the model has the
    layers and variables that it had.
    """
    projections = layers_with_adapters(model)
    _check_shared(model, name, shared)
    for path in kinds:
        layer = projections[path]
        if layer.quantization_mode not in QUANTIZED:
            raise ValueError(f"`model` must be float or int8 to have adapters; {path} is {layer.quantization_mode}.")
        if layer.lora_enabled:
            raise ValueError(f"`model` must not have Keras' own LoRA beside adapters; {path} has, from `enable_lora`.")
    kept = {id(variable) for variable in shared}
    before = [(variable, variable.trainable) for variable in trainable_by_nature(model)]
    try:
        for path, (kind, options) in kinds.items():
            projections[path].add_adapter(name, kind, **options)
        for variable in trainable_by_nature(model):
            variable.trainable = id(variable) in kept
        if fill is not None:
            fill()
    except BaseException:  # such as a device that is full
        for path in kinds:
            if name in projections[path].adapters:
                projections[path].remove_adapter(name)
        for variable, trainable in before:
            variable.trainable = trainable
        raise
    use_adapter(model, name)


def check_paths(model):
    """Adapters are known by the paths of their layers."""
    check_model(model)
    found = layers_with_adapters(model)
    for layer in model._flatten_layers():
        if hasattr(layer, "describe_adapters") and found[layer.path] is not layer:
            raise ValueError(
                "`model` must have one layer of each path, for adapters are known by them; received a model with two of "
                f"{short_repr(layer.path)}. See to each of the models inside of it by itself."
            )


def check_new_name(model, name):
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise ValueError(f"`name` must be of letters, digits, `_` and `-`; received {short_repr(name)}.")
    if name in _names(model):
        raise ValueError(f"`name` must be new; received {short_repr(name)}, and the model has {sorted(_names(model))}.")


def check_known_name(model, name):
    check_paths(model)
    if not isinstance(name, str) or name not in _names(model):
        raise ValueError(f"`name` must be one of the model's adapters, {sorted(_names(model))}; received {short_repr(name)}.")


def trained_beside(model):
    """The variables that are trained themselves beside the active adapter."""
    adapters = [adapter for layer in layers_with_adapters(model).values() for adapter in layer.adapters.values()]
    own = {id(variable) for adapter in adapters for variable in adapter.variables.values()}
    return [variable for variable in model.trainable_variables if id(variable) not in own]


def _names(model):
    return {name for layer in layers_with_adapters(model).values() for name in layer.adapters}


def _check_shared(model, name, shared):
    """Heads that are no part of an adapter would be trained away from under the others."""
    others, before = sorted(_names(model)), trained_beside(model) if _names(model) else []
    if others and (shared or before):
        path = [*shared, *before][0].path
        raise ValueError(
            f"`heads` must be projections of this package where a model has several adapters; received {path}, which "
            f"{short_repr(name)} would train while {others} rely on it. Freeze it, or remove the others first."
        )


def _own_variables(head):
    """What is trained itself in a head: all but its projections, whose place an adapter takes."""
    projections = layers_with_adapters(head).values()
    within = {id(variable) for layer in projections for variable in layer.variables}
    return [variable for variable in trainable_by_nature(head) if id(variable) not in within]


def _layers_by_path(model, patterns):
    layers = {layer.path: layer for layer in model._flatten_layers() if layer.path and trainable_by_nature(layer)}
    return [layers[path] for path in select("heads", patterns, layers, "layers", least=0)]


def _default_heads(model):
    """What comes after the last block, without norms and what makes logits over the vocabulary."""
    layers = list(_parts(model))
    last = max((i for i, layer in enumerate(layers) if isinstance(layer, BASE)), default=-1)
    vocabularies = {layer.vocab_size for layer in layers if isinstance(layer, PositionalEmbedding)}
    return [
        layer
        for layer in layers[last + 1 :]
        if trainable_by_nature(layer)
        and not isinstance(layer, (*NORMS, LogitAdjustment))
        and not (layer.name == "logits" and getattr(layer, "units", None) in vocabularies)
    ]


def _parts(model):
    """The layers of a model and of the models inside of it, in order."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _parts(layer)
        else:
            yield layer
