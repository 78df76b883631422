"""The Dense modules of a folder of sentence-transformers, which stand between the pooling and the normalization."""

import json
import pathlib

import keras
from safetensors.numpy import save_file

from keras_txf import checks
from keras_txf.checkpoints.files import ONE, open_tensors
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json, reading

ACTIVATIONS = {  # class of PyTorch -> name of Keras
    "torch.nn.modules.linear.Identity": "linear", "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu", "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid", "torch.nn.modules.activation.SiLU": "silu",
}  # fmt: skip
KERNEL, BIAS = "linear.weight", "linear.bias"
# Keys with the values that the layer has, first the default.
FIXED = {
    "module_input_name": ("sentence_embedding",), "module_output_name": (None, "sentence_embedding"),
    "use_residual": (False,),
}  # fmt: skip


def read_dense(folder, path, width):
    """Returns the layer of a Dense module, with its weights.

    Args:
        folder: of the checkpoint.
        path: of the module in it, such as "2_Dense".
        width: of the vectors that come in.

    Raises:
        ValueError: a damaged file; an activation that no layer has; tensors of other shapes than the vectors ask for.
    """
    place = file_of(folder, pathlib.PurePath(path, "config.json"))
    values = read_json(place)
    activation = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    checks.one_of(f"activation_function of {path}/config.json", activation, ACTIVATIONS)
    for key, allowed in FIXED.items():
        checks.one_of(f"{key} of {path}/config.json", values.get(key, allowed[0]), allowed)
    with open_tensors(place.parent) as tensors:
        names = {KERNEL, BIAS} if values.get("bias", True) else {KERNEL}
        if set(tensors) != names:
            raise ValueError(
                f"{path}/{ONE} must have the tensors {sorted(names)}; received {short_repr(sorted(tensors))}."
            )
        with reading(place):
            kernel, *bias = (tensors.read(name).astype("float32") for name in (KERNEL, BIAS) if name in names)
    if kernel.ndim != 2 or kernel.shape[1] != width or any(one.shape != kernel.shape[:1] for one in bias):
        raise ValueError(
            f"{path}/{ONE} must hold a kernel (outputs, {width}) and a bias of the same outputs; received shapes "
            f"{[one.shape for one in (kernel, *bias)]}."
        )
    layer = keras.layers.Dense(len(kernel), ACTIVATIONS[activation], use_bias=bool(bias), name=path.strip("/").lower())
    layer.build((None, width))
    layer.set_weights([kernel.T, *bias])
    return layer


def check_dense(layer):
    """Refuses a Dense layer that no folder can hold."""
    if activation_of(layer) not in ACTIVATIONS.values():
        raise ValueError(
            f'`format` must be "keras" for a Dense layer whose activation is none of {sorted(ACTIVATIONS.values())}; '
            f'received "huggingface" for {short_repr(activation_of(layer))}.'
        )


def write_dense(folder, path, layer):
    """Writes a Dense layer as a module."""
    classes = {name: module for module, name in ACTIVATIONS.items()}
    values = {
        "in_features": layer.kernel.shape[0], "out_features": layer.units, "bias": layer.use_bias,
        "activation_function": classes[activation_of(layer)],
    }  # fmt: skip
    (folder / path / "config.json").write_text(json.dumps(values, indent=2), encoding="utf-8")
    weights = [keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32")) for weight in layer.weights]
    weights[0] = weights[0].T.copy()
    save_file(dict(zip((KERNEL, BIAS), weights)), folder / path / ONE, metadata={"format": "pt"})


def activation_of(layer):
    """The name of the activation of a layer, or the configuration of one that has no name."""
    return keras.activations.serialize(layer.activation)
