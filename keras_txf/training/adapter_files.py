"""Reads and writes files of one adapter, a small part of the model's size."""

import json
import os

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.disk import atomic_file, parse_json, reading, save_tensors, writing
from keras_txf.layers.adapters import KINDS, describe
from keras_txf.training.adapters import (
    adapted_layers,
    check_known_name,
    check_new_name,
    dense_layers,
    insert_adapter,
    shared_variables,
)
from keras_txf.training.selection import trainable_by_name

FORMAT = "keras_txf adapter 1"


def save_adapter(model: keras.Model, file: str | os.PathLike, name: str = "default") -> None:
    """Saves one adapter, heads included. `load_adapter` adds it to another copy of the base.

    Args:
        model: a model with adapters.
        file: path of the file, such as "sentiment.safetensors". It is written to a temporary path, which is then
            renamed. The tensors are float32, named by the paths of the variables without the adapter's name:
            `encoder_0/attention/query/lora_a`. If two models inside this model share paths, the names start with the
            name of the inner model, without the number that Keras counts in the process: "encoder/encoder_0/..." and
            "encoder_1/encoder_0/...", in the order of these numbers. The metadata hold rank, alpha and dropout of each
            layer.
        name: name of the adapter. The file also holds other layers that are trained while the adapter is active, such
            as a head of Keras.

    Raises:
        ValueError: the model has no adapter with this name; `file` is a folder; the adapter is not active while other
            layers are trained themselves.

    Example:

    ```python
    txf.training.save_adapter(model, "sentiment.safetensors")
    txf.training.load_adapter(another, "sentiment.safetensors", name="sentiment")
    ```
    """

    check_known_name(model, name)
    is_file = not checks.path("file", file).is_dir()
    _require(is_file, f"`file` must be a file to write; received {short_repr(str(file))}, which is a folder.")
    layers, shared = adapted_layers(model, name), shared_variables(model)
    names = {id(v): name for name, variables in trainable_by_name(model).items() for v in variables}
    paths = [names[id(variable)] for variable in shared]
    active = any(layer.adapters.active == name for layer in layers.values())
    message = f"`name` must be the active adapter, with which {short_repr(paths[:1])} was trained"
    _require(active or not paths, f"{message}; received {short_repr(name)}.")
    variables = dict(zip(paths, shared))
    double = sorted({path for path in paths if paths.count(path) > 1})
    _require(
        not double, f"`model` must have one trained variable of each path; received two of {short_repr(double[:1])}."
    )
    for path, layer in layers.items():
        variables.update((f"{path}/{part}", v) for part, v in layer.adapters[name].variables.items())
    metadata = {
        "format": FORMAT,
        "layers": {path: describe(layer)[name] for path, layer in layers.items()},
        "shared": paths,
    }
    tensors = {key: np.ascontiguousarray(ops.convert_to_numpy(ops.cast(v, "float32"))) for key, v in variables.items()}
    with writing("file", file), atomic_file(file) as temporary:
        save_tensors(tensors, temporary, {"keras_txf": json.dumps(metadata)})


def load_adapter(model: keras.Model, file: str | os.PathLike, name: str = "default") -> None:
    """Adds an adapter from a file of `save_adapter` and activates it, as `add_adapter` does.

    With the same base the outputs are then the outputs of the model that was saved.

    Args:
        model: a model of the same builder and sizes; the file does not hold the base.
        file: path of a file of `save_adapter`.
        name: name of the adapter in this model.

    Raises:
        ValueError: a broken file or a file of another format, with its name and the fault; a layer or variable that
            the model lacks or has in another shape; a name in use. The model is then unchanged.

    Example:

    ```python
    model = keras.saving.load_model("base.keras")
    txf.training.load_adapter(model, "sentiment.safetensors")
    ```
    """
    check_new_name(model, name)
    file = checks.path("file", file)
    shown = short_repr(str(file))
    _require(
        not os.path.isdir(file),
        f"`file` must be a file of `save_adapter`; received the folder {shown}. `txf.checkpoints.load_adapter` reads "
        "folders of peft.",
    )
    with reading(file):
        metadata, tensors = _read(file)
    layers = dense_layers(model)
    variables = trainable_by_name(model)
    missing = [*sorted(metadata["layers"].keys() - layers.keys()), *sorted(set(metadata["shared"]) - variables.keys())]
    _require(not missing, f"`model` must have the layers of {shown}; received one without {short_repr(missing[:1])}.")
    double = [path for path in metadata["shared"] if len(variables[path]) > 1]
    _require(
        not double, f"`model` must have one variable of each path in {shown}; received two of {short_repr(double[:1])}."
    )
    shared = {path: variables[path][0] for path in metadata["shared"]}
    expected = {path: tuple(variable.shape) for path, variable in shared.items()}
    for path, (kind, options) in metadata["layers"].items():
        weights = KINDS[kind].weights(layers[path], **options)
        expected.update((f"{path}/{part}", shape) for part, (shape, _) in weights.items())
    for key in sorted(expected.keys() | tensors.keys()):
        in_file, in_model = tensors[key].shape if key in tensors else "missing", expected.get(key, "none of its name")
        _require(
            in_file == in_model,
            f"`model` must have the sizes of {shown}: {short_repr(key)} is {in_file}; received a model with "
            f"{in_model}.",
        )

    def fill():
        for path in metadata["layers"]:
            for part, variable in layers[path].adapters[name].variables.items():
                variable.assign(tensors[f"{path}/{part}"])
        for path, variable in shared.items():
            variable.assign(tensors[path])

    insert_adapter(model, name, metadata["layers"], list(shared.values()), fill)


def _read(file):
    """The metadata of a file, checked, and its tensors by name."""
    from safetensors import safe_open

    with safe_open(file, "numpy") as saved:
        tensors = {key: saved.get_tensor(key) for key in saved.keys()}
        metadata = parse_json((saved.metadata() or {}).get("keras_txf", "{}"))
    ours = metadata.get("format") == FORMAT
    _require(ours, f"it must be a file of `save_adapter`, with {short_repr(FORMAT)} as `format` of its metadata")
    checks.known_names("a key of its metadata", metadata, ("format", "layers", "shared"))
    layers, shared = metadata.get("layers"), metadata.get("shared")
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
    return metadata, tensors


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
