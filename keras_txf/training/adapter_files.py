"""Adapters in files of their own, a small part of the model's size."""

import json

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.adapters import KINDS, shape_of
from keras_txf.layers.tuning import layers_with_adapters, trainable_by_nature
from keras_txf.reading import parse_json, reading
from keras_txf.training.adapters import (
    LOW_RANK,
    check_known_name,
    check_new_name,
    check_paths,
    insert_adapter,
    trained_beside,
)
from keras_txf.training.whole import whole

FORMAT = "keras_txf adapter 1"
OPTIONS = {"low_rank": LOW_RANK, "whole": {}}  # and the check of each


def save_adapter(model, file, name="default"):
    """Saves an adapter alone, heads included, for `load_adapter` to put it on another copy of the base.

    Args:
        model: with adapters.
        file: such as "sentiment.safetensors". It is written under another name and moved into place. Its
            tensors are float32, by the paths of the variables, without the adapter's name:
            `encoder_0/attention/query/lora_a`. Its metadata say rank, alpha and dropout of each layer.
        name: of the adapter. What else is trained while it is active, such as a head of Keras' own, goes with it.

    Raises:
        ValueError: no adapter of this name; a folder in the place of the file; one that is not active while other layers are trained themselves.

    Example:

    ```python
    txf.training.save_adapter(model, "sentiment.safetensors")
    txf.training.load_adapter(another, "sentiment.safetensors", name="sentiment")
    ```
    """
    from safetensors.numpy import save_file

    check_known_name(model, name)
    if checks.path("file", file).is_dir():
        raise ValueError(f"`file` must be a file to write; received {short_repr(str(file))}, which is a folder.")
    layers = {path: layer for path, layer in layers_with_adapters(model).items() if name in layer.adapters}
    active = [path for path, layer in layers.items() if layer.active == name]
    shared = trained_beside(model)
    if shared and not active:
        raise ValueError(
            f"`name` must be the active adapter, with which {shared[0].path} was trained; received {short_repr(name)}."
        )
    variables = {variable.path: variable for variable in shared}
    for path, layer in layers.items():
        variables.update((f"{path}/{part}", v) for part, v in layer.adapters[name].variables.items())
    described = {
        "format": FORMAT,
        "layers": {path: layer.describe_adapters()[name] for path, layer in layers.items()},
        "shared": [variable.path for variable in shared],
    }
    tensors = {key: np.ascontiguousarray(ops.convert_to_numpy(ops.cast(v, "float32"))) for key, v in variables.items()}
    with whole(file) as unfinished:
        save_file(tensors, unfinished, {"keras_txf": json.dumps(described)})


def load_adapter(model, file, name="default"):
    """Adds an adapter from a file of `save_adapter` and makes it the active one, as `add_adapter` does.

    On the same base the model then gives what the saved one gave.

    Args:
        model: of the same builder and sizes; the file has nothing of the base.
        file: of `save_adapter`.
        name: what to call it here.

    Raises:
        ValueError: a file that is broken or of another kind, with the file's name and what is wrong in it; a layer or
            variable that the model does not have or has in another shape; a name that is taken. The model is then as it was.

    Example:

    ```python
    model = keras.saving.load_model("base.keras")
    txf.training.load_adapter(model, "sentiment.safetensors")
    ```
    """
    check_paths(model)
    check_new_name(model, name)
    file = checks.path("file", file)
    with reading(file):
        described, tensors = _read(file)
    projections = layers_with_adapters(model)
    variables = {variable.path: variable for variable in trainable_by_nature(model)}
    missing = sorted(described["layers"].keys() - projections.keys()) + sorted(set(described["shared"]) - variables.keys())
    if missing:
        raise ValueError(
            f"`model` must have the layers of {short_repr(str(file))}; received a model without {short_repr(missing[0])}."
        )
    expected = {path: tuple(variables[path].shape) for path in described["shared"]}
    for path, (kind, options) in described["layers"].items():
        expected.update((f"{path}/{part}", shape) for part, shape in _shapes(projections[path], kind, options))
    for key in sorted(expected.keys() ^ tensors.keys()):
        raise ValueError(
            f"`model` must have the layers of {short_repr(str(file))}, and of the same kind; received a model where "
            f"{short_repr(key)} differs."
        )
    for key, shape in sorted(expected.items()):
        if tensors[key].shape != shape:
            raise ValueError(
                f"`model` must have the sizes of {short_repr(str(file))}: {short_repr(key)} is {tensors[key].shape}; "
                f"received a model with {shape}."
            )
    shared = [variables[path] for path in described["shared"]]

    def fill():
        for path in described["layers"]:
            for part, variable in projections[path].adapters[name].variables.items():
                variable.assign(tensors[f"{path}/{part}"])
        for variable in shared:
            variable.assign(tensors[variable.path])

    insert_adapter(model, name, described["layers"], shared, fill)


def _read(file):
    """What a file says of its adapter, checked, and its tensors by name."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as saved:
        tensors = {key: saved.get_tensor(key) for key in saved.keys()}
        described = parse_json((saved.metadata() or {}).get("keras_txf", "{}"))
    if described.get("format") != FORMAT:
        raise ValueError(f"it must be a file of `save_adapter`, with {short_repr(FORMAT)} as `format` of its metadata")
    checks.known_names("a key of its metadata", described, ("format", "layers", "shared"))
    layers, shared = described.get("layers"), described.get("shared")
    if not isinstance(layers, dict) or not layers:
        raise ValueError(f"`layers` of its metadata must name the layers with an adapter; received {short_repr(layers)}")
    for path, adapter in layers.items():
        try:
            layers[path] = _kind_and_options(adapter)
        except ValueError as error:
            raise ValueError(f"`layers` of its metadata are wrong at {short_repr(path)}: {error}") from None
    if not isinstance(shared, list) or not all(isinstance(path, str) for path in shared) or len(set(shared)) < len(shared):
        raise ValueError(f"`shared` of its metadata must list paths of variables, each once; received {short_repr(shared)}")
    both = [path for path in shared if path.rpartition("/")[0] in layers]
    if both:
        raise ValueError(f"`shared` of its metadata must have no variable of an adapter; received {short_repr(both[0])}")
    wrong = {key: str(tensor.dtype) for key, tensor in tensors.items() if tensor.dtype != "float32"}
    if wrong:
        raise ValueError(f"its tensors must be float32; received {short_repr(wrong)}")
    return described, tensors


def _kind_and_options(adapter):
    if not isinstance(adapter, list) or len(adapter) != 2 or not isinstance(adapter[1], dict):
        raise ValueError(f"an adapter must be its kind and a dict of options; received {short_repr(adapter)}")
    kind, options = adapter
    checks.one_of("kind", kind, tuple(KINDS))
    known = OPTIONS[kind]
    checks.known_names(f"an option of {short_repr(kind)}", options, tuple(known))
    for name in known:
        if name not in options:
            raise ValueError(f"{short_repr(kind)} must have the option `{name}`; received {short_repr(options)}")
    return kind, {name: check(name, options[name]) for name, check in known.items()}


def _shapes(layer, kind, options):
    """The shapes of the variables that an adapter of a layer has, by their names."""
    height, width = shape_of(layer)
    if kind == "low_rank":
        return [("lora_a", (height, options["rank"])), ("lora_b", (options["rank"], width))]
    return [("kernel", (height, width)), *([("bias", (width,))] if layer.use_bias else [])]
