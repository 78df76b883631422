"""Adapters in files of their own, a small part of the model's size."""

import json

import numpy as np
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.layers.adapters import KINDS, shape_of
from keras_txf.layers.tuning import layers_with_adapters, trainable_by_nature
from keras_txf.training.adapters import check_known_name, check_new_name, check_paths, insert_adapter, trained_beside
from keras_txf.training.whole import whole

FORMAT = "keras_txf adapter 1"


def save_adapter(model, file, name="default"):
    """Saves an adapter alone, heads included, for `load_adapter` to put it on another copy of the base.

    Args:
        model: with adapters.
        file: such as "sentiment.safetensors". It is written under another name and moved into place. Its
            tensors are float32, by the paths of the variables, without the adapter's name:
            `encoder_0/attention/query/lora_a`. Its metadata say rank, alpha and dropout of each layer.
        name: of the adapter. What else is trained while it is active, such as a head of Keras' own, goes with it.

    Raises:
        ValueError: no adapter of this name; one that is not active while other layers are trained themselves.

    Example:

    ```python
    txf.training.save_adapter(model, "sentiment.safetensors")
    txf.training.load_adapter(another, "sentiment.safetensors", name="sentiment")
    ```
    """
    from safetensors.numpy import save_file

    check_known_name(model, name)
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
        ValueError: another kind of file, a layer or variable that the model does not have or has in another shape,
            a name that is taken. The model is then as it was.

    Example:

    ```python
    model = keras.saving.load_model("base.keras")
    txf.training.load_adapter(model, "sentiment.safetensors")
    ```
    """
    check_paths(model)
    check_new_name(model, name)
    described, tensors = _read(file)
    projections = layers_with_adapters(model)
    variables = {variable.path: variable for variable in trainable_by_nature(model)}
    expected = {path: tuple(variables[path].shape) for path in described["shared"] if path in variables}
    for path, (kind, options) in described["layers"].items():
        if path in projections:
            expected.update((f"{path}/{part}", shape) for part, shape in _shapes(projections[path], kind, options))
    for key in sorted(expected.keys() ^ tensors.keys()):
        raise ValueError(
            f"`model` must have the layers of {file}, and of the same kind; received a model where {key} differs."
        )
    for key, shape in sorted(expected.items()):
        if tensors[key].shape != shape:
            raise ValueError(
                f"`model` must have the sizes of {file}: {key} is {tensors[key].shape}; received a model with {shape}."
            )
    kinds = {path: (kind, options) for path, (kind, options) in described["layers"].items()}
    shared = [variables[path] for path in described["shared"]]

    def fill():
        for variable in shared:
            variable.assign(tensors[variable.path])
        for path in kinds:
            for part, variable in projections[path].adapters[name].variables.items():
                variable.assign(tensors[f"{path}/{part}"])

    insert_adapter(model, name, kinds, shared, fill)


def _read(file):
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as saved:
            described = json.loads((saved.metadata() or {}).get("keras_txf", "{}"))
            tensors = {key: saved.get_tensor(key) for key in saved.keys()}
    except SafetensorError as error:
        raise ValueError(
            f"`file` must be a file of `save_adapter`; received {file}, which is not whole: {error}."
        ) from error
    if described.get("format") != FORMAT or not all(kind in KINDS for kind, _ in described["layers"].values()):
        raise ValueError(f"`file` must be a file of `save_adapter`; received {file}, which is another one.")
    return described, tensors


def _shapes(layer, kind, options):
    """The shapes of the variables that an adapter of a layer has, by their names."""
    height, width = shape_of(layer)
    if kind == "low_rank":
        return [("lora_a", (height, options["rank"])), ("lora_b", (options["rank"], width))]
    return [("kernel", (height, width)), *([("bias", (width,))] if layer.use_bias else [])]
