"""LoRA: fine-tuning of a few weights that are added to a frozen base."""

import re
from collections.abc import Sequence

import keras

from keras_txf.backend.functional_graph import is_functional
from keras_txf.backend.keras_private import flatten_layers, kernel_shape, trainable_by_nature
from keras_txf.checks import short_repr
from keras_txf.layers import adapters
from keras_txf.layers.projections import Projection
from keras_txf.training.freezing import set_trainable
from keras_txf.training.selection import check_model, heads_of, layers_by_name, outermost_layers, select_layers


def add_adapter(
    model: keras.Model,
    name: str = "default",
    rank: int = 8,
    alpha: float = 16,
    dropout: float = 0.0,
    targets: str | Sequence[str] = ("*/query", "*/value"),
    heads: str | Sequence[str] | None = None,
) -> None:
    """Adds a LoRA adapter and activates it: from now on training changes only the adapter and new heads.

    A target computes x W + alpha / rank · x A B. W does not change, and B starts as zeros, so the outputs of the model
    are the same at first. A model may have several adapters, see `use_adapter`. `compile` and `fit` of Keras work
    before or after this call. `.keras` files keep all adapters inside layers of this package, and `model.save` raises
    ValueError for an adapter elsewhere; `save_adapter` writes one adapter of any model. The base may be quantized to
    int8 or int4 (QLoRA), before or after. float8 trains the kernels themselves and takes no adapter.

    Args:
        model: a model of a builder, or any model with Dense or EinsumDense layers, such as Keras' own attention.
        name: name of the adapter: letters, digits, `_` and `-`.
        rank: number of columns of A.
        alpha: the scale of the update, times `rank`.
        dropout: dropout rate on the input of A, in training only.
        targets: patterns of paths of Dense and EinsumDense layers, also inside your own layers: "*/query",
            "decoder_[2-5]/attention/*" or "*/feed_forward/*". A `*` matches any text, slashes included. In a recurrent
            model only attention and readout match, "decoder/*": the kernels of Keras' LSTM and GRU take no adapter,
            nor does a subclass of Dense with its own `call`. If two models inside this model have layers with the same
            paths, as two encoders have, a path means both; "queries/encoder_0/*" means the layers of the model with
            the name "queries".
        heads: patterns of paths of layers that are trained as a whole. Default: the layers after the last block, such
            as a classifier's `logits`, except norms and logits over the vocabulary, which are not new heads.
            Projections of this package become a part of the adapter: the adapter trains a copy of their values.
            Other layers are trained themselves, so they go with one adapter only.

    Everything else is frozen, and stays frozen without the adapter: see `unfreeze`.

    Raises:
        ValueError: a pattern without a match, no targets, a rank above the width of all targets, a name in use, a
            second adapter next to heads that are trained themselves, a base quantized to another mode than int8 or
            int4, two layers with the same path that no name of a surrounding model distinguishes.

    Reference:
        [LoRA](https://arxiv.org/abs/2106.09685)

    Example:

    >>> model = txf.models.encoder_classifier(100, num_classes=3, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model, rank=4, targets="*/attention/*")
    >>> model.compile("adam", "mse")
    >>> int(sum(np.prod(variable.shape) for variable in model.trainable_variables))  # 8 x 4 x (32 + 32), the head 99
    2147
    """
    check_new_name(model, name)
    values = {"rank": rank, "alpha": alpha, "dropout": dropout}
    options = {option: check(option, values[option]) for option, check in adapters.LowRank.checks.items()}
    layers = dense_layers(model)
    selected = select_layers("targets", targets, model, layers.values(), "Dense and EinsumDense layers")
    names = {id(layer): path for path, layer in layers.items()}
    targets = [names[id(layer)] for layer in selected]
    widest = max(max(kernel_shape(layers[path])) for path in targets)
    if options["rank"] > widest:
        raise ValueError(
            f"`rank` must be at most {widest}, the greatest width of a target; received {short_repr(options['rank'])}."
        )
    heads = heads_of(model, heads)
    inside = {inner.path for head in heads for inner in flatten_layers(head)}
    projections = [path for path, layer in layers.items() if path in inside and isinstance(layer, Projection)]
    kinds = dict.fromkeys(projections, ("whole", {})) | dict.fromkeys(targets, ("low_rank", options))
    adapted = {id(variable) for path in kinds for variable in layers[path].variables}
    shared = [v for head in heads for v in trainable_by_nature(head) if id(v) not in adapted]
    insert_adapter(model, name, kinds, shared)


def use_adapter(model: keras.Model, name: str | None) -> None:
    """Switches to another adapter of the model, or to the base without an adapter.

    The adapter is active in `fit`, `predict`, `generate` and every other call of the model, and only its variables are
    trained. Compiled functions are compiled again, loops of `generate` once for each adapter. An optimizer that has
    trained another adapter restarts at its current learning rate; a schedule restarts too.

    Your own compiled functions that have traced the model, exported models, and other models that share its layers
    and have run, keep the adapter that was active then.

    Args:
        model: a model with adapters.
        name: name of an adapter, or None.

    Raises:
        ValueError: the model has no adapter with this name.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model, "verse")
    >>> txf.training.add_adapter(model, "prose")
    >>> txf.training.use_adapter(model, "verse")
    >>> verse = model.generate([[5, 6, 7]], max_new_tokens=4)
    """
    dense_layers(model) if name is None else check_known_name(model, name)
    flags = {}
    for layer in adapted_layers(model).values():
        layer.adapters.active = name if name in layer.adapters else None
        for other, adapter in layer.adapters.items():
            flags.update((id(variable), other == name) for variable in adapter.variables.values())
    set_trainable(model, flags)


def merge_adapter(model: keras.Model, name: str = "default") -> None:
    """Adds an adapter to the kernels permanently and removes it: the outputs are the same, at the cost of the base.

    Args:
        model: a model with this adapter only: other adapters were trained on the base before the merge.
        name: name of the adapter.

    Raises:
        ValueError: the model has no adapter with this name, has another adapter, or is quantized.

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
            f"`model` must have no other adapter when {short_repr(name)} is merged; it has {sorted(others)}. "
            "Remove them first."
        )
    layers = adapted_layers(model, name)
    for path, layer in layers.items():
        if (mode := layer.quantization_mode) is not None:
            raise ValueError(
                f"`model` must be a float model when an adapter is merged; received one with {path} in {mode}."
            )
    for layer in layers.values():
        layer.adapters[name].merge(layer)
    remove_adapter(model, name)


def remove_adapter(model: keras.Model, name: str = "default") -> None:
    """Removes an adapter. If the adapter is active, the base remains and stays frozen: see `unfreeze`.

    Args:
        model: a model with adapters.
        name: name of the adapter.

    Raises:
        ValueError: the model has no adapter with this name.

    Example:

    >>> model = txf.models.encoder(100, num_layers=2, dim=32, num_heads=4)
    >>> txf.training.add_adapter(model)
    >>> txf.training.remove_adapter(model)
    >>> len(model.trainable_variables)
    0
    """
    check_known_name(model, name)
    for layer in adapted_layers(model, name).values():
        adapters.detach(layer, name)
    adapters.guard_files([*outermost_layers(model), *_models_of_code(model)])
    set_trainable(model, {})


def insert_adapter(model, name, kinds, shared, fill=None):
    """Adds an adapter and freezes everything else except the `shared` variables.

    An error leaves the layers and variables of the model unchanged.

    Args:
        model: a built model.
        name: name of the adapter.
        kinds: dict of layer path -> (kind of `layers.adapters.KINDS`, options).
        shared: variables that are trained themselves.
        fill: function that assigns the values, called before an optimizer restarts: some optimizers keep copies.
    """
    layers = dense_layers(model)
    _check_shared(model, name, shared)
    for path in kinds:
        mode = layers[path].quantization_mode
        if mode not in adapters.QUANTIZED:
            raise ValueError(f"`model` must be float, int8 or int4 to have adapters; {path} is {mode}.")
        if layers[path].lora_enabled:
            raise ValueError(f"`model` must not have Keras' own LoRA next to adapters; {path} has, from `enable_lora`.")
    kept = {id(variable) for variable in shared}
    before = [(variable, variable.trainable) for variable in trainable_by_nature(model)]
    try:
        for path, (kind, options) in kinds.items():
            adapters.attach(layers[path], name, kind, **options)
        for variable in trainable_by_nature(model):
            variable.trainable = id(variable) in kept
        if fill is not None:
            fill()
    except BaseException:  # such as a device that is full
        for layer in adapted_layers(model, name).values():
            adapters.detach(layer, name)
        for variable, trainable in before:
            variable.trainable = trainable
        raise
    adapters.guard_files([*outermost_layers(model), *_models_of_code(model)])
    use_adapter(model, name)


def dense_layers(model):
    """The layers of a model that take adapters, by their names in adapter files. A name is mostly the path."""
    check_model(model)
    return layers_by_name(model, adapters.takes_adapters)


def adapted_layers(model, name=None):
    """The layers of a model that have an adapter, or the adapter `name`, by their names in files."""
    layers = {path: layer for path, layer in dense_layers(model).items() if adapters.adapters_of(layer)}
    return {path: layer for path, layer in layers.items() if name is None or name in layer.adapters}


def check_new_name(model, name):
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise ValueError(f"`name` must be of letters, digits, `_` and `-`; received {short_repr(name)}.")
    if name in _names(model):
        raise ValueError(f"`name` must be new; received {short_repr(name)}, and the model has {sorted(_names(model))}.")


def check_known_name(model, name):
    if not isinstance(name, str) or name not in _names(model):
        raise ValueError(
            f"`name` must be an adapter of the model, which has {sorted(_names(model)) or 'none'}; received "
            f"{short_repr(name)}."
        )


def shared_variables(model):
    """The variables that are trained and belong to no adapter."""
    layers = adapted_layers(model).values()
    adapted = {id(v) for layer in layers for adapter in layer.adapters.values() for v in adapter.variables.values()}
    return [variable for variable in model.trainable_variables if id(variable) not in adapted]


def _models_of_code(model):
    """The model and the models inside it whose layers Keras makes anew from a `.keras` file: they have no graph."""
    return [inner for inner in flatten_layers(model) if isinstance(inner, keras.Model) and not is_functional(inner)]


def _names(model):
    return {name for layer in adapted_layers(model).values() for name in layer.adapters}


def _check_shared(model, name, shared):
    """Raises ValueError if a model with several adapters has heads that belong to no adapter.

    One adapter would change such heads, and the others rely on their values.
    """
    others, before = sorted(_names(model)), shared_variables(model) if _names(model) else []
    if others and (shared or before):
        path = [*shared, *before][0].path
        raise ValueError(
            f"`heads` must be projections of this package where a model has several adapters; received {path}, which "
            f"{short_repr(name)} would train while {others} rely on it. Pass heads=[], or remove the others first."
        )
