"""The modules of a folder of sentence-transformers, which turn the vectors of tokens into the vector of a text."""

import json
import pathlib

import keras

from keras_txf import checks, layers
from keras_txf.checkpoints.building import family_values, find_family
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.files import ONE, open_tensors
from keras_txf.checks import short_repr
from keras_txf.disk import file_of, read_json, reading, save_tensors, within

KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")
KINDS = {"mean": "mean", "cls": "first", "max": "max", "lasttoken": "last"}  # their mode -> kind of `Pooling`
# Up to version 5 they wrote a key for each mode.
KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max",
        "pooling_mode_lasttoken": "lasttoken"}  # fmt: skip
MODULES, POOLING, TRANSFORMER = "modules.json", "1_Pooling", "sentence_bert_config.json"
ACTIVATIONS = {  # class of PyTorch -> name of Keras
    "torch.nn.modules.linear.Identity": "linear", "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu", "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid", "torch.nn.modules.activation.SiLU": "silu",
}  # fmt: skip
KERNEL, BIAS = "linear.weight", "linear.bias"
# Keys and the values that our layer supports, the default first.
FIXED = {
    "module_input_name": ("sentence_embedding",), "module_output_name": (None, "sentence_embedding"),
    "use_residual": (False,),
}  # fmt: skip


def read_pooling(folder, tokenizer):
    """Returns the kind of `Pooling` of a folder; "mean" if it has no modules.

    Raises:
        ValueError: modules or settings that `TextEmbedder` does not support.
    """
    modules = _modules(folder)
    others = [class_name for class_name, _ in modules if class_name not in KNOWN]
    if others:
        raise ValueError(f"{MODULES} must have modules of {list(KNOWN)}; received {short_repr(others)}.")
    class_names = [class_name for class_name, _ in modules]
    if "Dense" in class_names and (sorted(class_names, key=KNOWN.index) != class_names or "Pooling" not in class_names):
        raise ValueError(
            f"{MODULES} must have its modules in the order {list(KNOWN)}; received {short_repr(class_names)}."
        )
    settings = _settings(folder, "config_sentence_transformers.json")
    prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name"))
    if prompt:
        raise ValueError(
            f"config_sentence_transformers.json must have no prompt by default; received {short_repr(prompt)}. Give "
            "`pooling`, and texts that begin with the prompt."
        )
    upper, lower = tokenizer.tokenize(["A", "a"]).to_list()
    if _settings(folder, TRANSFORMER).get("do_lower_case") is True and upper != lower:
        raise ValueError(
            f"{TRANSFORMER} must have 'do_lower_case' false for a tokenizer of both cases; received true. Give "
            "`pooling`, and texts in lower case."
        )
    paths = [path for class_name, path in modules if class_name == "Pooling"] or [POOLING]
    path = file_of(folder, pathlib.PurePath(paths[0], "config.json"))
    return _kind(path) if path.is_file() else "mean"


def read_dense_layers(folder, width):
    """Returns the Dense layers of a folder after its pooling; `width` is the size of the pooled vectors."""
    dense = []
    for class_name, path in _modules(folder):
        if class_name == "Dense":
            dense.append(read_dense(folder, path, dense[-1].units if dense else width))
    return dense


def read_max_length(folder):
    """Returns the number of tokens to which sentence-transformers truncates a text, or None."""
    length = _settings(folder, TRANSFORMER).get("max_seq_length")
    if length is None and file_of(folder, MODULES).is_file():
        length = _settings(folder, "tokenizer_config.json").get("model_max_length")
        length = None if isinstance(length, (int, float)) and length > 2**31 else length  # transformers' "no limit"
    return checks.optional(checks.size, "max_seq_length", length)


def check_modules(model):
    """Returns the pooling, the Dense layers after it, and whether vectors have length 1.

    Raises:
        ValueError: a model that a folder of sentence-transformers cannot hold.
    """
    indices = [index for index, layer in enumerate(model.layers) if isinstance(layer, layers.Pooling)]
    after = model.layers[indices[0] + 1 :] if len(indices) == 1 else []
    is_unit = bool(after) and isinstance(after[-1], keras.layers.UnitNormalization) and after[-1].axis == -1
    dense = after[:-1] if is_unit else after
    if len(indices) != 1 or any(type(layer) is not keras.layers.Dense for layer in dense):
        last = [layer.name for layer in model.layers[-3:]]
        parts = "an encoder, `Pooling`, Dense layers and `UnitNormalization`"
        raise _keras_only(f"a model other than {parts}", f"a model that ends in {last}")
    for layer in dense:
        name = activation_of(layer)
        if name not in ACTIVATIONS.values():
            others = f"a Dense layer with an activation other than {sorted(ACTIVATIONS.values())}"
            raise _keras_only(others, short_repr(name))
    pooling = model.layers[indices[0]]
    if pooling.kind not in KINDS.values():
        raise _keras_only(f"a pooling other than {list(KINDS.values())}", short_repr(pooling.kind))
    return pooling, dense, is_unit


def _keras_only(what, received):
    return ValueError(f'`format` must be "keras" for {what}; received "huggingface" for {received}.')


def write_modules(folder, model, max_length):
    """Writes the modules of an encoder, `Pooling`, Dense layers and `UnitNormalization`, for all versions."""
    pooling, dense, is_unit = check_modules(model)
    layers_by_path = {f"{number}_Dense": layer for number, layer in enumerate(dense, 2)}
    modules = [("", "Transformer"), (POOLING, "Pooling"), *((path, "Dense") for path in layers_by_path)]
    modules += [(f"{len(modules)}_Normalize", "Normalize")] if is_unit else []
    modes = {key: KINDS[mode] == pooling.kind for key, mode in KEYS.items()}
    content = {
        MODULES: [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(modules)
        ],
        f"{POOLING}/config.json": {"word_embedding_dimension": pooling.output.shape[-1], **modes},
        TRANSFORMER: {"max_seq_length": max_length, "do_lower_case": False},
    }
    for path, _ in modules[1:]:
        (folder / path).mkdir(exist_ok=True)
    for name, values in content.items():
        (folder / name).write_text(json.dumps(values, indent=2), encoding="utf-8")
    for path, layer in layers_by_path.items():
        write_dense(folder, path, layer)


def _modules(folder):
    """Returns the class and the path of each module, in order."""
    path = file_of(folder, MODULES)
    if not path.is_file():
        return []
    with reading(path):
        modules = json.loads(path.read_text("utf-8"))
        classes_and_paths = [(module["type"].rsplit(".", 1)[-1], str(module["path"])) for module in modules]
    for _, module in classes_and_paths:
        for name in ("config.json", ONE):
            within(folder, file_of(folder, pathlib.PurePath(module, name)))
    return classes_and_paths


def _settings(folder, name):
    path = file_of(folder, name)
    return read_json(path) if path.is_file() else {}


def _kind(path):
    values = read_json(path)
    modes = values.get("pooling_mode", [mode for mode in values if mode.startswith("pooling_mode_") and values[mode]])
    chosen = [modes] if isinstance(modes, str) else modes
    mode = KEYS.get(chosen[0], chosen[0]) if isinstance(chosen, list) and len(chosen) == 1 else None
    if mode not in KINDS:
        raise ValueError(f"{path.parent.name}/config.json must ask for one of {list(KINDS)}; received {chosen}.")
    return KINDS[mode]


def read_dense(folder, path, width):
    """Returns the layer of a Dense module, with its weights.

    Args:
        folder: folder of the checkpoint.
        path: path of the module in the folder, such as "2_Dense".
        width: size of the input vectors.

    Raises:
        ValueError: a damaged file; an activation outside of `ACTIVATIONS`; tensors of wrong shapes.
    """
    config = file_of(folder, pathlib.PurePath(path, "config.json"))
    values = read_json(config)
    activation = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    checks.one_of(f"activation_function of {path}/config.json", activation, ACTIVATIONS)
    for key, allowed in FIXED.items():
        checks.one_of(f"{key} of {path}/config.json", values.get(key, allowed[0]), allowed)
    with open_tensors(config.parent) as tensors:
        names = {KERNEL, BIAS} if values.get("bias", True) else {KERNEL}
        if set(tensors) != names:
            raise ValueError(
                f"{path}/{ONE} must have the tensors {sorted(names)}; received {short_repr(sorted(tensors))}."
            )
        with reading(config):
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
    save_tensors(dict(zip((KERNEL, BIAS), weights)), folder / path / ONE, metadata={"format": "pt"})


def activation_of(layer):
    """Returns the name of a layer's activation, or its configuration if it has no name."""
    return keras.activations.serialize(layer.activation)


def padding_of_decoder(folder, ids, size):
    """Returns the option `pad_id` of `load` for a folder; an empty dict if the model's own padding serves.

    Many decoders have no token of padding, or pad with the token that ends texts. Transformers gets a mask from its
    tokenizer. Our models mask the padding token, so no text may have it.

    Args:
        folder: folder of a checkpoint.
        ids: ids of a text, with the tokenizer's `start` and `end`.
        size: number of the tokenizer's tokens.

    Raises:
        ValueError: the vocabulary of the model has no token that the tokenizer lacks.
    """
    values = family_values(read_json(file_of(folder, "config.json")))
    if "causal_lm" not in find_family(values).tasks:
        return {}
    config = Config(values)
    pad_id = config.pad_id_of_decoder(None)
    if pad_id is not None and pad_id not in ids:
        return {}
    last = config("vocab_size") - 1
    if last < size:
        pad_id_of_config = short_repr(values.get("pad_token_id"))
        raise ValueError(
            "`pad_id` must be a token that no text has, such as the unknown token: config.json has "
            f"pad_token_id={pad_id_of_config}, and the tokenizer has all {size} tokens."
        )
    return {"pad_id": last}
