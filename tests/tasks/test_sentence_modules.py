"""Folders of sentence-transformers: old and new keys, truncation, and modules that `TextEmbedder` does not support."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from refusals import refused
from safetensors.numpy import load_file, save_file

import keras_txf as txf
from keras_txf.tasks.sentence_modules import read_max_length, read_pooling

embedder = txf.tasks.TextEmbedder
OLD = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max",
       "pooling_mode_lasttoken": "lasttoken"}  # fmt: skip
TEXTS = ["A moving film.", "Two dogs run, two men sleep, and a bird sings."]


def module(name, path=""):
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{name}"}


def put(folder, **files):
    """Writes JSON files by name, with `__` for a slash."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def tokenizer():
    return txf.text.ByteTokenizer(start="<pad>", end="</s>")


@pytest.fixture
def folder(bert, tmp_path):
    """A copy of the checkpoint, for its modules."""
    return shutil.copytree(bert, tmp_path / "bert")


@pytest.mark.parametrize("key, mode", OLD.items())
def test_old_and_new_keys_of_a_pooling(key, mode, tmp_path, tokenizer):
    kind = {"cls": "first", "lasttoken": "last"}.get(mode, mode)
    files = [{key: True, **{other: False for other in OLD if other != key}}, {"pooling_mode": mode}]
    for values in [*files, {"pooling_mode": [mode]}]:
        put(tmp_path, modules=[module("Transformer"), module("Pooling", "0_P")], **{"0_P__config": values})
        assert read_pooling(tmp_path, tokenizer) == kind


def test_a_folder_without_modules_has_the_mean(tmp_path, tokenizer):
    assert read_pooling(tmp_path, tokenizer) == "mean" and read_max_length(tmp_path) is None


@pytest.mark.parametrize("files, words", [
    ({"modules": [module("Transformer"), module("LSTM", "2_LSTM")]}, "modules.json must have modules of"),
    ({"modules": [module("Transformer"), module("Dense", "2_Dense")]}, "must have its modules in the order"),
    ({"modules": [module("Pooling"), module("Normalize"), module("Dense")]}, "must have its modules in the order"),
    ({"modules": [{"path": ""}]}, "modules.json' cannot be read"),
    ({"modules": 3}, "modules.json' cannot be read"),
    ({"1_Pooling__config": {"pooling_mode": ["mean", "max"]}}, "1_Pooling/config.json must ask for one of"),
    ({"1_Pooling__config": {"pooling_mode": "weightedmean"}}, "1_Pooling/config.json must ask for one of"),
    ({"1_Pooling__config": dict.fromkeys(OLD, True)}, "1_Pooling/config.json must ask for one of"),
    ({"1_Pooling__config": {"pooling_mode": 3}}, "1_Pooling/config.json must ask for one of"),
    ({"config_sentence_transformers": {"prompts": {"q": "q: "}, "default_prompt_name": "q"}}, "must have no prompt"),
    ({"sentence_bert_config": {"do_lower_case": True}}, "'do_lower_case' false for a tokenizer of both cases"),
], ids=range(11))  # fmt: skip
def test_unsupported_modules_raise(files, words, tmp_path, tokenizer):
    put(tmp_path, **files)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        read_pooling(tmp_path, tokenizer)
    assert "\n" not in str(error.value)


def test_a_pooling_of_the_caller_stands_for_the_modules(folder):
    put(folder, modules=[module("Transformer"), module("LSTM", "2_LSTM")])
    with pytest.raises(ValueError, match="modules.json must have modules of"):
        embedder.from_checkpoint(folder)
    assert embedder.from_checkpoint(folder, pooling="max").model.get_layer("pooling").kind == "max"


@pytest.mark.slow
@pytest.mark.parametrize("files, longest", [
    ({"sentence_bert_config": {"max_seq_length": 9}}, 9),
    ({"sentence_bert_config": {"max_seq_length": 900}}, 64),  # the model has 64 positions
    ({"modules": [module("Transformer")], "tokenizer_config": {"model_max_length": 11}}, 11),
    ({"modules": [module("Transformer")], "tokenizer_config": {"model_max_length": 10**30}}, 64),
], ids=range(4))  # fmt: skip
def test_texts_are_truncated_as_there(files, longest, folder):
    if "tokenizer_config" in files:
        files["tokenizer_config"]["tokenizer_class"] = "BertTokenizer"
    put(folder, **files)
    assert embedder.from_checkpoint(folder).max_length == longest
    assert embedder.from_checkpoint(folder, max_length=5).max_length == 5


@pytest.mark.parametrize("unit", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_folder_says_whether_vectors_have_length_1(unit, folder, tmp_path):
    task = embedder.from_checkpoint(folder, pooling="last")
    if not unit:
        task = embedder(keras.Model(task.model.input, task.model.get_layer("pooling").output), task.tokenizer)
        task._encoder = embedder.from_checkpoint(folder).checkpoint_model()
    task.save(tmp_path / "new", format="huggingface")
    kinds = [one["type"].rsplit(".")[-1] for one in json.loads((tmp_path / "new" / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", *["Normalize"] * unit]
    again = embedder.load(tmp_path / "new")
    assert again.max_length == task.max_length
    vectors = task.encode(TEXTS)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(again.encode(TEXTS), vectors, atol=1e-6)


def test_a_model_that_no_folder_can_hold_raises(folder, tmp_path):
    task = embedder.from_checkpoint(folder)
    wide = keras.Model(task.model.input, keras.layers.Dense(3, name="wide")(task.model.output))
    other = embedder(wide, task.tokenizer)
    other._encoder = task.checkpoint_model()
    with pytest.raises(ValueError, match='`format` must be "keras" for a model other than an encoder.*wide'):
        other.save(tmp_path / "new", format="huggingface")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match='`format` must be "keras" for a pooling other than'):
        embedder.from_checkpoint(folder, pooling="attention").save(tmp_path / "new", format="huggingface")


CLASSES = "torch.nn.modules."
DENSE = [module("Transformer"), module("Pooling", "1_Pooling"), module("Dense", "2_Dense"), module("Dense", "3_Dense"),
         module("Normalize", "4_Normalize")]  # fmt: skip


def put_dense(folder, width, **changed):
    """Two Dense modules, as in EmbeddingGemma, the second with a bias and an activation. Returns their arrays."""
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=shape).astype("float32") for shape in ((9, width), (5, 9), (5,))]
    files = {"linear.weight": arrays[0]}, {"linear.weight": arrays[1], "linear.bias": arrays[2]}
    values = [
        {"in_features": width, "out_features": 9, "bias": False, "activation_function": CLASSES + "linear.Identity"},
        {"in_features": 9, "out_features": 5, "activation_function": CLASSES + "activation.Tanh", **changed},
    ]
    put(folder, modules=DENSE, **{f"{number}_Dense__config": value for number, value in zip((2, 3), values)})
    for number, tensors in zip((2, 3), files):
        save_file(tensors, folder / f"{number}_Dense" / "model.safetensors")
    return arrays


def test_dense_modules_follow_the_pooling(folder, tmp_path):
    pooled = embedder.from_checkpoint(folder, pooling="mean")
    states = keras.ops.convert_to_numpy(pooled.checkpoint_model()(pooled._ids(TEXTS[:1])[0][None]))[0]
    first, second, bias = put_dense(folder, states.shape[-1])
    task = embedder.from_checkpoint(folder)
    expected = np.tanh(second @ (first @ states.astype("float64").mean(0)) + bias)
    np.testing.assert_allclose(task.encode(TEXTS[0]), expected / np.linalg.norm(expected), atol=1e-5)
    task.save(tmp_path / "new", format="huggingface")
    for number in (2, 3):
        old, new = (load_file(root / f"{number}_Dense" / "model.safetensors") for root in (folder, tmp_path / "new"))
        assert old.keys() == new.keys() and all((old[name] == new[name]).all() for name in old)
    dense, pooling = (tmp_path / "new" / name / "config.json" for name in ("3_Dense", "1_Pooling"))
    tanh = CLASSES + "activation.Tanh"
    expected = {"in_features": 9, "out_features": 5, "bias": True, "activation_function": tanh}
    assert json.loads(dense.read_text()) == expected
    assert json.loads(pooling.read_text())["word_embedding_dimension"] == len(first[0])
    np.testing.assert_array_equal(embedder.load(tmp_path / "new").encode(TEXTS), task.encode(TEXTS))


@pytest.mark.parametrize("wider, changed, words", [
    (0, {"activation_function": CLASSES + "activation.PReLU"}, ["activation_function", "3_Dense/config.json", "PReLU"]),
    (0, {"use_residual": True}, ["use_residual", "3_Dense/config.json", "True"]),
    (0, {"module_input_name": "token_embeddings"}, ["module_input_name", "token_embeddings"]),
    (0, {"bias": False}, ["3_Dense/model.safetensors", "['linear.weight']", "linear.bias"]),
    (1, {}, ["2_Dense/model.safetensors", "(outputs, 32)"]),
], ids=range(5))  # fmt: skip
def test_dense_modules_that_are_not_built_raise(wider, changed, words, folder):
    put_dense(folder, 32 + wider, **changed)
    refused(lambda: embedder.from_checkpoint(folder), words)


def test_a_dense_layer_that_no_folder_can_hold_raises(folder, tmp_path):
    put_dense(folder, 32)
    task = embedder.from_checkpoint(folder)
    task.model.get_layer("3_dense").activation = keras.activations.exponential
    refused(lambda: task.save(tmp_path / "new", format="huggingface"), ["`format`", "linear", "exponential"])
