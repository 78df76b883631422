"""`load_adapter` of a broken file: a ValueError that names the file and the key, and an unchanged model."""

import copy
import json

import drawing
import numpy as np
import pytest
from adapter_cases import BUILDERS, IDS, run, same, values
from refusals import refused
from safetensors import safe_open
from safetensors.numpy import save_file

import keras_txf as txf
from keras_txf.backend.keras_private import trainable_by_nature
from keras_txf.layers.adapters import LowRank, adapters_of, describe
from keras_txf.training.adapters import dense_layers

QUERY, SCORE = "encoder_0/attention/query", "pooling/score"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A model without adapters, and the metadata and tensors of an adapter for the model."""
    model = BUILDERS["classifier"][0]()
    txf.training.add_adapter(model, rank=2, dropout=0.1)
    drawing.randomize(model)
    file = tmp_path_factory.mktemp("adapters") / "sound.safetensors"
    txf.training.save_adapter(model, file)
    txf.training.remove_adapter(model)
    with safe_open(file, "numpy") as saved:
        return model, json.loads(saved.metadata()["keras_txf"]), {key: saved.get_tensor(key) for key in saved.keys()}


def state(model):
    """All that a load may change; the values apart."""
    adapters = {
        path: (describe(layer), getattr(adapters_of(layer), "active", None))
        for path, layer in dense_layers(model).items()
    }
    flags = [(variable.path, variable.trainable) for variable in trainable_by_nature(model)]
    layers = [(layer.path, set(vars(layer))) for layer in model._flatten_layers()]
    return adapters, flags, layers, [id(variable) for variable in model.variables]


def unchanged(model, call, words):
    before, numbers = state(model), values(model.variables)
    refused(call, words)
    assert state(model) == before
    same(values(model.variables), numbers)


def put(path, value):
    """A damage: the value at a path of keys; `...` takes the key away."""

    def damage(described, tensors):
        *outer, last = path
        inner = described
        for key in outer:
            inner = inner[key]
        if value is ...:
            inner.pop(last)
        else:
            inner[last] = value

    return damage


def at(key, *values):
    """Bad values of one option of a layer, and the words that the message must have."""
    return [(put(("layers", QUERY, 1, key), value), [QUERY, f"`{key}`"]) for value in values]


def tensor(key, change):
    def damage(described, tensors):
        tensors[key] = change(tensors[key])

    return damage


def rename(old, new, also_tensors=False):
    def damage(described, tensors):
        described["layers"][new] = described["layers"].pop(old)
        for key in [key for key in tensors if also_tensors and key.startswith(f"{old}/")]:
            tensors[new + key.removeprefix(old)] = tensors.pop(key)

    return damage


A = f"{QUERY}/lora_a"
THINGS = [None, True, 3, -1.5, "x", [], [1], {"a": 1}]
SOME = [None, True, 3, "x", [1], {"a": 1}, ...]


def at_all(path, values, words):
    return [(put(path, value), words) for value in values]


DAMAGES = [
    *at_all(("format",), [*THINGS, "keras_txf adapter 2", ...], ["format"]),
    *at_all(("layers",), [*SOME, {}], ["`layers`"]),
    *at_all(("shared",), [*SOME, [None], [["a"]], ["a", "a"]], ["`shared`"]),
    *at_all(("layers", QUERY), [*THINGS, ["low_rank"], ["low_rank", {}, {}], ["low_rank", 3]], [QUERY]),
    *at_all(("layers", QUERY, 0), [*THINGS, "LOW_RANK", "lora"], [QUERY, "`kind`"]),
    *at("rank", None, True, 0, -2, 2.0, "2", [2], {}, 1.5, 1e300),
    *at("alpha", None, True, 0, -2, "16", [16], float("nan"), float("inf"), 10**400, 1e300),
    *at("dropout", None, True, 1, -0.1, "0", [0], float("nan"), 2.0),
    *[(put(("layers", QUERY, 1, key), ...), [QUERY, f"`{key}`"]) for key in ("rank", "alpha", "dropout")],
    (put(("layers", QUERY, 1, "bias"), True), [QUERY, "'bias'"]),
    (put(("layers", SCORE, 1, "rank"), 2), [SCORE, "'rank'"]),
    (put(("more",), 1), ["'more'"]),
    # what does not go with the tensors, or with the model
    (put(("layers", QUERY, 1, "rank"), 3), [A, "(12, 2)", "(12, 3)"]),
    (put(("layers", QUERY, 1, "rank"), 10**12), [A, "1000000000000"]),
    (put(("layers", QUERY), ["whole", {}]), [QUERY]),
    (put(("layers", SCORE), ["low_rank", {"rank": 2, "alpha": 1, "dropout": 0.0}]), [SCORE]),
    (put(("layers", QUERY), ...), [A]),
    (rename(QUERY, "encoder_9/attention/query"), ["encoder_9/attention/query"]),
    (rename(QUERY, "encoder_9/attention/query", also_tensors=True), ["encoder_9/attention/query"]),
    (rename(QUERY, "*/query", also_tensors=True), ["*/query"]),
    (rename(QUERY, "encoder_0/attention", also_tensors=True), ["encoder_0/attention"]),
    (put(("shared",), ["nowhere/kernel"]), ["nowhere/kernel"]),
    (put(("shared",), ["encoder_0/attention_norm/gamma"]), ["encoder_0/attention_norm/gamma"]),
    (put(("shared",), [f"{SCORE}/kernel"]), [f"{SCORE}/kernel"]),
    (tensor(A, lambda x: x[:, :1].copy()), [A, "(12, 1)"]),
    (tensor(A, lambda x: x.reshape(2, 12)), [A, "(2, 12)"]),
    (tensor(A, lambda x: x.reshape(12, 2, 1)), [A, "(12, 2, 1)"]),
    (tensor(A, lambda x: x[:0].copy()), [A, "(0, 2)"]),
    (tensor(A, lambda x: x.astype("float16")), [A, "float16"]),
    (tensor(A, lambda x: x.astype("int32")), [A, "int32"]),
    (lambda described, tensors: tensors.pop(A), [A]),
    (lambda described, tensors: tensors.clear(), [A]),
    (lambda described, tensors: tensors.update(surplus=tensors[A]), ["surplus"]),
    (lambda described, tensors: tensors.update({f"{QUERY}/lora_c": tensors[A]}), [f"{QUERY}/lora_c"]),
]


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_bad_metadata_and_tensors(number, sound, tmp_path):
    model, described, tensors = sound
    described, tensors, file = copy.deepcopy(described), dict(tensors), tmp_path / "broken.safetensors"
    damage, words = DAMAGES[number]
    damage(described, tensors)
    save_file(tensors, file, {"keras_txf": json.dumps(described)})
    unchanged(model, lambda: txf.training.load_adapter(model, file), [str(file), *words])


@pytest.mark.parametrize("file", [None, 3, {"a": 1}, ["a.safetensors"], ""])
def test_no_path(file, sound):
    unchanged(sound[0], lambda: txf.training.load_adapter(sound[0], file), ["`file` must be"])


TEXTS = ["", "{", "[]", "null", "[" * 100_000, '{"format": 1, "format": 2}', '{"a": ' + "9" * 5000 + "}"]
METADATA = [None, {}, {"format": "pt"}, *({"keras_txf": text} for text in TEXTS)]


def test_files_of_others(sound, tmp_path):
    model, _, tensors = sound
    unchanged(model, lambda: txf.training.load_adapter(model, tmp_path), [str(tmp_path)])
    file = tmp_path / "other.safetensors"
    for metadata in METADATA:
        save_file(tensors, file, metadata)
        unchanged(model, lambda: txf.training.load_adapter(model, file), ["other.safetensors"])
    for content in (b"", b"x", b"\xff" * 8, b"\x08" + b"\0" * 7 + b"{      }", b"PK\3\4" * 9):
        file.write_bytes(content)
        unchanged(model, lambda: txf.training.load_adapter(model, file), ["other.safetensors"])


def test_an_error_on_the_way_leaves_nothing(sound, tmp_path, monkeypatch):
    """Such as memory that is full when the third adapter is made, or when values are given."""
    model, described, tensors = sound
    save_file(tensors, tmp_path / "sound.safetensors", {"keras_txf": json.dumps(described)})
    made, make, before = [], LowRank.__init__, run(model, IDS)

    def fails(layer, *args, **options):
        made.append(layer)
        if len(made) == 3:
            raise ValueError("no memory")
        make(layer, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LowRank, "__init__", fails)
        unchanged(model, lambda: txf.training.load_adapter(model, tmp_path / "sound.safetensors"), ["no memory"])
    assert len(made) == 3
    np.testing.assert_array_equal(run(model, IDS), before)
    txf.training.load_adapter(model, tmp_path / "sound.safetensors")
    assert (run(model, IDS) != before).any()
    txf.training.remove_adapter(model)
