"""Adapters in files of their own, a small part of the model's size."""

import json
import os

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.atomic_write import atomic_file, writing
from keras_txf.checks import short_repr
from keras_txf.layers.adapters import KINDS, describe
from keras_txf.reading import parse_json, reading
from keras_txf.training.adapters import (
    adapted_layers,
    check_known_name,
    check_new_name,
    dense_layers,
    insert_adapter,
    trained_beside,
)
from keras_txf.training.selection import trainable_by_name

FORMAT = "keras_txf adapter 1"


def save_adapter(model: keras.Model, file: str | os.PathLike, name: str = "default") -> None:
    """Saves an adapter alone, heads included, for `load_adapter` to put it on another copy of the base.

    Args:
        model: with adapters.
        file: such as "sentiment.safetensors". It is written under another name and moved into place. Its
            tensors are float32, by the paths of the variables, without the adapter's name:
            `encoder_0/attention/query/lora_a`. If two models inside of this one share paths, the name of the model
            stands before, without the number that Keras counts in the process: "encoder/encoder_0/..." and
            "encoder_1/encoder_0/...", in the order of these numbers. Its metadata say rank, alpha and dropout of each
            layer.
        name: of the adapter. What else is trained while it is active, such as a head of Keras' own, goes with it.

    Raises:
        ValueError: no adapter of this name; a folder in the place of the file; one that is not active while other
            layers are trained themselves.

    Example:

    ```python
    txf.training.save_adapter(model, "sentiment.safetensors")
    txf.training.load_adapter(another, "sentiment.safetensors", name="sentiment")
    ```
    """
    from safetensors.numpy import save_file

    check_known_name(model, name)
    a_file = not checks.path("file", file).is_dir()
    _require(a_file, f"`file` must be a file to write; received {short_repr(str(file))}, which is a folder.")
    layers, shared = adapted_layers(model, name), trained_beside(model)
    names = {id(v): name for name, variables in trainable_by_name(model).items() for v in variables}
    also, active = [names[id(variable)] for variable in shared], any(layer.active == name for layer in layers.values())
    message = f"`name` must be the active adapter, with which {short_repr(also[:1])} was trained"
    _require(active or not also, f"{message}; received {short_repr(name)}.")
    variables = dict(zip(also, shared))
    double = sorted({path for path in also if also.count(path) > 1})
    _require(
        not double, f"`model` must have one trained variable of each path; received two of {short_repr(double[:1])}."
    )
    for path, layer in layers.items():
        variables.update((f"{path}/{part}", v) for part, v in layer.adapters[name].variables.items())
    described = {
        "format": FORMAT,
        "layers": {path: describe(layer)[name] for path, layer in layers.items()},
        "shared": also,
    }
    tensors = {key: np.ascontiguousarray(ops.convert_to_numpy(ops.cast(v, "float32"))) for key, v in variables.items()}
    with writing("file", file), atomic_file(file) as temporary:
        save_file(tensors, temporary, {"keras_txf": json.dumps(described)})


def load_adapter(model: keras.Model, file: str | os.PathLike, name: str = "default") -> None:
    """Adds an adapter from a file of `save_adapter` and makes it the active one, as `add_adapter` does.

    On the same base the model then gives what the saved one gave.

    Args:
        model: of the same builder and sizes; the file has nothing of the base.
        file: of `save_adapter`.
        name: what to call it here.

    Raises:
        ValueError: a file that is broken or of another kind, with the file's name and what is wrong in it; a layer or
            variable that the model does not have or has in another shape; a name that is taken. The model is then as it
            was.

    Example:

    ```python
    model = keras.saving.load_model("base.keras")
    txf.training.load_adapter(model, "sentiment.safetensors")
    ```
    """
    check_new_name(model, name)
    file = checks.path("file", file)
    said = short_repr(str(file))
    _require(
        not os.path.isdir(file),
        f"`file` must be a file of `save_adapter`; received the folder {said}. `txf.checkpoints.load_adapter` reads "
        "folders of peft.",
    )
    with reading(file):
        described, tensors = _read(file)
    layers = dense_layers(model)
    variables = trainable_by_name(model)
    missing = [
        *sorted(described["layers"].keys() - layers.keys()),
        *sorted(set(described["shared"]) - variables.keys()),
    ]
    _require(not missing, f"`model` must have the layers of {said}; received one without {short_repr(missing[:1])}.")
    double = [path for path in described["shared"] if len(variables[path]) > 1]
    _require(
        not double, f"`model` must have one variable of each path in {said}; received two of {short_repr(double[:1])}."
    )
    shared = {path: variables[path][0] for path in described["shared"]}
    expected = {path: tuple(variable.shape) for path, variable in shared.items()}
    for path, (kind, options) in described["layers"].items():
        weights = KINDS[kind].weights(layers[path], **options)
        expected.update((f"{path}/{part}", shape) for part, (shape, _) in weights.items())
    for key in sorted(expected.keys() | tensors.keys()):
        in_file, in_model = tensors[key].shape if key in tensors else "missing", expected.get(key, "none of its name")
        _require(
            in_file == in_model,
            f"`model` must have the sizes of {said}: {short_repr(key)} is {in_file}; received a model with {in_model}.",
        )

    def fill():
        for path in described["layers"]:
            for part, variable in layers[path].adapters[name].variables.items():
                variable.assign(tensors[f"{path}/{part}"])
        for path, variable in shared.items():
            variable.assign(tensors[path])

    insert_adapter(model, name, described["layers"], list(shared.values()), fill)


def _read(file):
    """What a file says of its adapter, checked, and its tensors by name."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as saved:
        tensors = {key: saved.get_tensor(key) for key in saved.keys()}
        described = parse_json((saved.metadata() or {}).get("keras_txf", "{}"))
    ours = described.get("format") == FORMAT
    _require(ours, f"it must be a file of `save_adapter`, with {short_repr(FORMAT)} as `format` of its metadata")
    checks.known_names("a key of its metadata", described, ("format", "layers", "shared"))
    layers, shared = described.get("layers"), described.get("shared")
    named = isinstance(layers, dict) and layers
    _require(named, f"`layers` of its metadata must name the layers with an adapter; received {short_repr(layers)}")
    for path, adapter in layers.items():
        try:
            layers[path] = _kind_and_options(adapter)
        except ValueError as error:
            raise ValueError(f"`layers` of its metadata are wrong at {short_repr(path)}: {error}") from None
    paths = (
        isinstance(shared, list) and all(isinstance(path, str) for path in shared) and len(set(shared)) == len(shared)
    )
    _require(paths, f"`shared` of its metadata must list paths of variables, each once; received {short_repr(shared)}")
    both = [path for path in shared if path.rpartition("/")[0] in layers]
    _require(not both, f"`shared` of its metadata must have no variable of an adapter; received {short_repr(both)}")
    wrong = {key: str(tensor.dtype) for key, tensor in tensors.items() if tensor.dtype != "float32"}
    _require(not wrong, f"its tensors must be float32; received {short_repr(wrong)}")
    return described, tensors


def _kind_and_options(adapter):
    pair = isinstance(adapter, list) and len(adapter) == 2 and isinstance(adapter[1], dict)
    _require(pair, f"an adapter must be its kind and a dict of options; received {short_repr(adapter)}")
    kind, options = adapter
    checks.one_of("kind", kind, tuple(KINDS))
    known = KINDS[kind].checks
    checks.known_names(f"an option of {short_repr(kind)}", options, tuple(known))
    for name in known:
        _require(name in options, f"{short_repr(kind)} must have the option `{name}`; received {short_repr(options)}")
    return kind, {name: check(name, options[name]) for name, check in known.items()}


def _require(holds, message):
    if not holds:
        raise ValueError(message)
