"""Layout maps: which axis of each weight is split over which axis of a mesh of devices.

Legend: D model dim, N heads, K key-value heads, H head dim, F intermediate dim, E experts, V vocabulary.
"""

import collections
import itertools
import re
import warnings
from collections.abc import Callable

import keras

from keras_txf import checks
from keras_txf.backend.keras_private import flatten_layers, without_values
from keras_txf.checks import short_repr
from keras_txf.training.weight_splits import split_weights

NUMBER = re.compile(r"_\d+$")
OTHER_MODEL = "`model` must be a function that builds the same model each time; received one whose weights differ."


def layout_map(
    model: keras.Model | Callable[[], keras.Model],
    device_mesh: keras.distribution.DeviceMesh,
    batch_axis: str = "batch",
    model_axis: str = "model",
    fsdp: bool = False,
) -> keras.distribution.LayoutMap:
    """Returns the `keras.distribution.LayoutMap` of a model: how its weights are split over several devices.

    For `keras.distribution.ModelParallel` on JAX, if a model or its optimizer is too large for one device. The map has
    a row for each weight. It splits over `model_axis` as Megatron-LM does, so that an attention and a feed-forward
    layer need one sum over devices each:

    - query, key, value, gate and intermediate kernels by their columns, with their biases; output kernels by rows;
    - sinks, relative biases and norms of whole queries and keys by their heads;
    - tables of tokens, logits over the vocabulary and their biases by the vocabulary;
    - experts and their router by the number of experts, or experts by their width F if only F divides;
    - LoRA's A of a kernel that is split by rows, LoRA's B of a kernel that is split by columns;
    - int8 kernels as float kernels, with their scales.

    All other weights are on each device: norms, positions, patches, small heads, int4 kernels, LSTMs and GRUs, and
    your own layers. Sizes that do not divide over the devices of `model_axis` are on each device too: N heads, a width
    F, a vocabulary. If the K key-value heads do not divide but K * H does, each head is cut, and devices exchange keys
    and values. A warning names these layers.

    Args:
        model: a function without arguments that builds the model, or a built model. The function runs without making
            values of weights, so a model larger than one device's memory can be mapped. Build the model within the
            distribution's scope afterwards. A built model must have the same layer names as the model in the scope:
            builders fix the names, Keras numbers other layers.
        device_mesh: the devices, with the two axes below. Model parallelism alone has a mesh of shape (1, 8), data
            parallelism alone a mesh of shape (8, 1). Processes of several machines share one mesh.
        batch_axis: the axis of the mesh over which a batch is split. It must be the `batch_dim_name` of
            `ModelParallel`, by default the mesh's first axis.
        model_axis: the axis over which weights are split.
        fsdp: whether each weight of two or more axes is split over `batch_axis` too, by its longest axis that divides
            and is not split yet. Its gradient and Adam's moments are split in the same way. Devices then gather the
            weights of a layer when they need them: this takes less memory and more communication.

    Raises:
        ValueError: a mesh without one of the axes; another kind of `model`; a function that builds another model each
            time, or whose layers without a name have different layouts; a layer of this package with a weight that no
            rule knows.

    Reference:
        [Megatron-LM](https://arxiv.org/abs/1909.08053), section 3; [ZeRO](https://arxiv.org/abs/1910.02054) and
        [FSDP](https://arxiv.org/abs/2304.11277) for `fsdp`; [GShard](https://arxiv.org/abs/2006.16668) for experts.

    Example:

    >>> def build():
    ...     return txf.models.decoder_generator(100, num_layers=2, dim=32, num_heads=4)
    >>> devices = [f"cpu:{i}" for i in range(8)]  # leave the argument out for all available devices
    >>> mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices)
    >>> layouts = txf.training.layout_map(build, mesh)
    >>> layouts["decoder_1/attention/query/kernel"].axes
    (None, 'model')

    On JAX with these devices:

    ```python
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        model = build()
        model.compile("adam", txf.training.TokenCrossEntropy())
        model.fit(data)
    ```
    """
    sizes = _mesh_sizes(device_mesh, batch_axis=batch_axis, model_axis=model_axis)
    checks.boolean("fsdp", fsdp)
    batch = (batch_axis, sizes[batch_axis]) if fsdp else None
    rows, notes = _rows(model, model_axis, sizes[model_axis], batch)
    for note, paths in notes.items():
        some = ", ".join(paths[:3]) + f" and {len(paths) - 3} more" * (len(paths) > 3)
        warnings.warn(f"{some}: {note}", stacklevel=2)
    result = keras.distribution.LayoutMap(device_mesh)
    for path, axes in rows.items():
        result[path] = axes
    return result


def _mesh_sizes(mesh, **axes):
    """The number of devices along each axis, by name."""
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise ValueError(f"`device_mesh` must be a keras.distribution.DeviceMesh; received {short_repr(mesh)}.")
    names = list(mesh.axis_names)
    for argument, axis in axes.items():
        if checks.string(argument, axis) not in names:
            raise ValueError(
                f"`{argument}` must be an axis of `device_mesh`, which has {short_repr(names)}; received "
                f"{short_repr(axis)}. Give an axis that splits nothing the size 1."
            )
    if axes["batch_axis"] == axes["model_axis"]:
        raise ValueError(
            f"`model_axis` must differ from `batch_axis`; received {short_repr(axes['model_axis'])} twice."
        )
    return dict(zip(names, mesh.shape))


def _rows(model, *split):
    """The axes over which each weight is split, by path, and messages about weights that could not be split."""
    if isinstance(model, keras.layers.Layer) or not callable(model):
        if not isinstance(model, keras.Model) or not model.built:
            raise ValueError(
                "`model` must be a built Keras model, or a function without arguments that builds one; received "
                f"{short_repr(model)}."
            )
        return _rows_of_model(model, *split)
    checks.takes_no_arguments("model", model)
    builds = []
    for _ in range(2):
        with without_values():
            built = model()
            if not isinstance(built, keras.Model) or not built.built:
                raise ValueError(
                    f"`model` must be a function that builds a Keras model; it returned {short_repr(built)}."
                )
            builds.append(_rows_of_model(built, *split))
    (first, _), (second, notes) = builds
    return _fit_any_number(list(first.items()), list(second.items())), notes


def _fit_any_number(first, second):
    """Replaces the numbers that Keras appends to layer names by a pattern: `block_1` also matches `block_2`.

    Args:
        first, second: lists of (path, axes) of two models that the same function built.
    """
    rows = {}
    if len(first) != len(second):
        raise ValueError(OTHER_MODEL)
    for (path, axes), (other, other_axes) in zip(first, second):
        parts = list(zip(path.split("/"), other.split("/")))
        if axes != other_axes or any(NUMBER.sub("", part) != NUMBER.sub("", again) for part, again in parts):
            raise ValueError(OTHER_MODEL)
        key = path if path == other else "/".join(itertools.starmap(_numbered, parts))
        if rows.setdefault(key, axes) != axes:
            raise ValueError(
                f"`model` must have names for layers whose layouts differ; received {short_repr(path)}, whose "
                "number will be another in the next model. Give its layer a `name`."
            )
    return rows


def _numbered(name, other):
    """The pattern of a layer's name, with any number if two models number the layer differently."""
    return re.escape(name) if name == other else re.escape(NUMBER.sub("", name)) + r"(_\d+)?"


def _rows_of_model(model, model_axis, num_devices, batch):
    """The axes of each weight by path; and the paths of layers by the message about these layers."""
    notes = collections.defaultdict(list)
    layers = flatten_layers(model)
    splits = split_weights(layers, model_axis, num_devices, notes) if num_devices > 1 else {}
    rows = {}
    for variable in model.weights:  # without the seeds of dropout, which Keras puts on each device
        axes = splits.get(id(variable), (None,) * len(variable.shape))
        axes = _split_over_batch(variable, axes, *batch, notes) if batch else axes
        if rows.setdefault(variable.path, axes) != axes:
            raise ValueError(
                f"`model` must have one layout for each path; received two for {short_repr(variable.path)}. "
                "Give its layers names that differ."
            )
    return rows, notes


def _split_over_batch(variable, axes, batch_axis, num_devices, notes):
    """Splits the longest axis of a weight that is not split yet and divides over the devices."""
    if len(axes) < 2:
        return axes
    free = [i for i, axis in enumerate(axes) if axis is None and variable.shape[i] % num_devices == 0]
    if not free:
        notes[
            f"no axis of the weight divides over the {num_devices} devices of axis {short_repr(batch_axis)}, so it is "
            "not split over them."
        ].append(variable.path)
        return axes
    longest = max(free, key=lambda i: variable.shape[i])
    return tuple(batch_axis if i == longest else axis for i, axis in enumerate(axes))
