"""What a file may look like, and be read all the same: types, shards, names, buffers, tied heads; and the bar."""

import re

import keras
import ml_dtypes
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from folders import BERT, CONFIGS, GPT2, LLAMA, tensors, write
from keras import ops
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf
from keras_txf.backend.tensors import ROWS, in_order

load = txf.checkpoints.load
WTE, HEAD = "transformer.wte.weight", "lm_head.weight"


def weights(model):
    return {weight.path: ops.convert_to_numpy(ops.cast(weight, "float32")) for weight in model.weights}


def dtypes(model):
    return {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights if "seed" not in weight.path}


def same(model, other):
    found, expected = weights(model), weights(other)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)


def rename(arrays, *pairs):
    for pattern, new in pairs:
        arrays = {re.sub(pattern, new, name): array for name, array in arrays.items()}
    return arrays


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Models of the tiny checkpoints as they stand, in one float32 file. Their numbers are exact in bfloat16."""
    base = tmp_path_factory.mktemp("plain")
    return {name: load(write(base / name, config, tensors(config))) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("stored", ["float64", "float16", "bfloat16"])
def test_other_types_are_converted(plain, tmp_path, name, stored):
    same(load(write(tmp_path, CONFIGS[name], tensors(CONFIGS[name], stored))), plain[name])


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_models_of_bfloat16(plain, tmp_path, stored):
    model = load(write(tmp_path, GPT2, tensors(GPT2, stored)), dtype="bfloat16")
    assert dtypes(model) == {"bfloat16"}
    same(model, plain["gpt2"])


def test_numbers_are_rounded_to_the_nearest_bfloat16(tmp_path):
    arrays = {name: array * np.float32(1.003) for name, array in tensors(GPT2).items()}
    model = load(write(tmp_path, GPT2, arrays), dtype="bfloat16")
    expected = arrays[WTE].astype(ml_dtypes.bfloat16).astype("float32")
    np.testing.assert_array_equal(weights(model)["embedding/token/embeddings"], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_auto_is_the_type_of_the_file_bit_for_bit(kind, dtype, tmp_path):
    draw, config = np.random.default_rng(3), CONFIGS[kind]
    arrays = {name: draw.normal(size=array.shape).astype(array.dtype) for name, array in tensors(config, dtype).items()}
    model = load(write(tmp_path / "folder", config, arrays), dtype="auto")
    assert dtypes(model) == {dtype} and model.get_layer("embedding").compute_dtype == dtype
    txf.checkpoints.save(model, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        assert saved[name].dtype == array.dtype and saved[name].tobytes() == array.tobytes(), name


def test_auto_is_the_type_of_most_numbers_and_single_for_doubles(tmp_path):
    arrays = tensors(LLAMA, "bfloat16")
    arrays = {name: array.astype("float32") if "norm" in name else array for name, array in arrays.items()}
    model = load(write(tmp_path / "llama", LLAMA, arrays), dtype="auto")
    assert dtypes(model) == {"bfloat16"}
    norm = ops.convert_to_numpy(ops.cast(model.get_layer("decoder_norm").weights[0], "float32"))
    np.testing.assert_array_equal(norm, arrays["model.norm.weight"].astype("bfloat16").astype("float32"))
    doubles = write(tmp_path / "gpt2", GPT2, tensors(GPT2, "float64"))
    assert dtypes(load(doubles, dtype="auto")) == {"float32"}
    refused(lambda: load(doubles, dtype="Auto"), ["`dtype`", "Auto"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2 * ROWS, ROWS), (ROWS + 1, 3 * ROWS - 1), (2, 3, 5), (1, 1), (0, 4)])
def test_arrays_in_order(dtype, shape):
    array = np.random.default_rng(1).normal(size=shape).astype(dtype)
    for view in (array, array.T, array[::-1], array[..., 1:], array.T[1:]):
        found = in_order(view)
        assert found.flags.c_contiguous and found.dtype == array.dtype and found.shape == view.shape
        assert found.tobytes() == view.tobytes()  # which is in the order of the shape


def test_old_names_of_norms(plain, tmp_path):
    old = rename(tensors(BERT), (r"(LayerNorm)\.weight$", r"\1.gamma"), (r"(LayerNorm)\.bias$", r"\1.beta"))
    assert sum(name.endswith(".gamma") for name in old) == 6
    same(load(write(tmp_path, BERT, old)), plain["bert"])


@pytest.mark.parametrize("name, prefix", [("gpt2", r"^transformer\."), ("bert", r"^bert\."), ("llama", r"^model\.")])
def test_without_the_prefix(plain, tmp_path, name, prefix):
    same(load(write(tmp_path, CONFIGS[name], rename(tensors(CONFIGS[name]), (prefix, "")))), plain[name])


WRAPPED = [
    ("^", "_orig_mod."), ("^", "module."), ("^", "module._orig_mod."), (r"\.1\.", ".1._orig_mod."),
    ("^", "_fsdp_wrapped_module."), (r"(LayerNorm|ln_1|input_layernorm)\.", r"_checkpoint_wrapped_module.\1."),
]  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_names_of_models_that_others_wrapped(plain, tmp_path, name):
    """torch.compile, DataParallel and FSDP put their own names between the model's."""
    arrays = tensors(CONFIGS[name])
    for number, pair in enumerate(WRAPPED):
        wrapped = rename(arrays, pair)
        assert wrapped.keys() != arrays.keys()
        model = load(write(tmp_path / str(number), CONFIGS[name], wrapped, shards=1 + number % 2))
        same(model, plain[name])
        txf.checkpoints.save(model, tmp_path / "saved")
        assert load_file(tmp_path / "saved" / "model.safetensors").keys() == arrays.keys()
    twice = {**arrays, **rename(arrays, ("^", "_orig_mod."))}
    refused(lambda: load(write(tmp_path / "twice", CONFIGS[name], twice)), ["two tensors", "_orig_mod."])


def test_the_body_alone_without_the_prefix(plain, tmp_path):
    arrays = rename({name: array for name, array in tensors(BERT).items() if name[:4] != "cls."}, (r"^bert\.", ""))
    found = weights(load(write(tmp_path, {**BERT, "architectures": ["BertModel"]}, arrays)))
    assert len(found) == len(arrays)
    for path, value in found.items():
        np.testing.assert_array_equal(value, weights(plain["bert"])[path])


def test_a_name_with_and_without_the_prefix(tmp_path):
    arrays = tensors(GPT2)
    arrays["wte.weight"] = arrays[WTE]
    refused(lambda: load(write(tmp_path, GPT2, arrays)), ["two tensors", "'wte.weight'", repr(WTE)])


def test_a_head_in_the_file_counts_more_than_config_json(plain, tmp_path):
    arrays, head = tensors(GPT2), tensors(GPT2, seed=6)[WTE]
    same(load(write(tmp_path, GPT2, {**arrays, HEAD: arrays[WTE].copy()})), plain["gpt2"])  # tied, and stored twice
    for tied in (True, False):
        found = weights(load(write(tmp_path, {**GPT2, "tie_word_embeddings": tied}, {**arrays, HEAD: head})))
        np.testing.assert_array_equal(found.pop("logits/kernel"), head.T)
        assert found.keys() == weights(plain["gpt2"]).keys()
    arrays = tensors(LLAMA)  # which is not tied, though the numbers be the same
    arrays[HEAD] = arrays["model.embed_tokens.weight"].copy()
    assert "logits/kernel" in weights(load(write(tmp_path, LLAMA, arrays)))


def test_a_head_that_is_missing_is_tied(tmp_path):
    arrays = tensors(LLAMA)
    del arrays[HEAD]
    values = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    assert "logits/kernel" not in weights(load(write(tmp_path, {**values, "tie_word_embeddings": True}, arrays)))
    for said in ({"tie_word_embeddings": False}, {}):  # a Llama that says nothing is not tied in transformers
        folder = write(tmp_path, values | said, arrays)
        refused(lambda: load(folder), ["must have a tensor", repr(HEAD), "Pass task='encoder'"])
        assert load(folder, "encoder").output.shape[-1] == LLAMA["hidden_size"]
        assert "logits/kernel" not in weights(load(folder, tie_embeddings=True))


def test_buffers_are_passed_over(plain, tmp_path):
    positions = {"bert.embeddings.position_ids": np.arange(7)[None]}
    same(load(write(tmp_path / "bert", BERT, {**tensors(BERT), **positions})), plain["bert"])
    masks = {f"transformer.h.{i}.attn.bias": np.tril(np.ones((1, 1, 7, 7), "bool")) for i in range(2)}
    same(load(write(tmp_path / "gpt2", GPT2, {**tensors(GPT2), **masks})), plain["gpt2"])


def test_tensors_too_many_and_too_few(tmp_path):
    """One error says both, as each explains the other."""
    arrays, lacks = tensors(GPT2), "transformer.h.1.mlp.c_fc.bias"
    more = {**arrays, "transformer.h.2.ln_1.weight": np.zeros(8, "float32")}
    refused(lambda: load(write(tmp_path, GPT2, more)), ["no weight", "'transformer.h.2.ln_1.weight'"])
    array = arrays.pop(lacks)
    refused(lambda: load(write(tmp_path, GPT2, arrays)), ["must have a tensor", "'h.1.mlp.c_fc.bias'"])
    words = ["'h.1.mlp.c_fc.bias'", "no weight", "'transformer.h.1.mlp.fc_in.bias'"]
    renamed = {**arrays, "transformer.h.1.mlp.fc_in.bias": array}
    refused(lambda: load(write(tmp_path, GPT2, renamed)), words)


@pytest.mark.parametrize("name, wrong, words", [
    (WTE, np.zeros((12, 8), "float32"), ["(12, 8)", "embedding/token/embeddings", "(11, 8)"]),
    (WTE, np.zeros((88,), "float32"), ["(88,)", "(11, 8)"]), (WTE, np.zeros((), "float32"), ["()", "(11, 8)"]),
    ("transformer.h.0.attn.c_attn.weight", np.zeros((8, 25), "float32"),
     ["(8, 25)", "decoder_0/attention/value/kernel"]),
    ("transformer.h.0.mlp.c_fc.weight", np.zeros((12, 8), "float32"), ["(12, 8)", "(8, 12)"]),
    (WTE, np.zeros((11, 8), "int64"), ["type", "I64"]), (WTE, np.zeros((11, 8), "complex64"), ["type", "C64"]),
    (WTE, np.zeros((11, 8), "bool"), ["type", "BOOL"]),
])  # fmt: skip
def test_tensors_that_differ_from_the_configuration_raise_value_error(tmp_path, name, wrong, words):
    refused(lambda: load(write(tmp_path, GPT2, {**tensors(GPT2), name: wrong})), [name, *words])


def test_a_new_head_has_the_initial_values_of_its_layer(tmp_path):
    """And what is drawn at random later: dropout has generators."""
    folder = write(tmp_path, BERT, tensors(BERT))
    first, second = (load(folder, "sequence_classification", num_classes=3) for _ in range(2)), load(folder, "encoder")
    heads = [weights(model)["logits/kernel"] for model in first]
    assert [head.shape for head in heads] == [(8, 3)] * 2 and not np.array_equal(*heads) and np.ptp(heads[0])
    outputs = [ops.convert_to_numpy(second(np.array([[1, 2, 3, 4]]), training=True)) for _ in range(2)]
    assert not np.array_equal(*outputs)


@pytest.mark.slow
def test_a_loaded_model_trains_and_leaves_nothing_waiting(tmp_path):
    """Keras gives waiting variables their values after the next stateless scope; a failed load leaves none waiting."""
    folder = write(tmp_path, GPT2, tensors(GPT2))
    refused(lambda: load(folder, num_heads=3), ["3"])
    model = load(folder, dropout=0.0, attention_dropout=0.0)
    with keras.StatelessScope():
        pass
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    losses = [model.fit(ids, ids, verbose=0).history["loss"][0] for _ in range(9)]
    assert losses[-1] < losses[0]


def test_a_layer_that_was_built_before(tmp_path):
    norm = txf.layers.RelativeBias(2, name="decoder_position")
    norm.build()
    refused(lambda: load(write(tmp_path, GPT2, tensors(GPT2)), position=norm), ["no tensors", "decoder_position"])
    plain = load(GOLDEN / "t5")
    own = txf.layers.RelativeBias.from_config({**plain.get_layer("encoder_0").attention.position_layer.get_config()})
    own.build()
    before = {path: value.copy() for path, value in weights(plain).items()}
    model = load(GOLDEN / "t5", encoder_options={"position": own})
    assert model.get_layer("encoder_0").attention.position_layer is own
    same(model, plain)
    np.testing.assert_array_equal(ops.convert_to_numpy(own.weights[0]), before[own.weights[0].path])


def test_options_replace_the_values_of_the_file(tmp_path):
    folder = write(tmp_path, GPT2, tensors(GPT2))
    assert load(folder, dropout=0.25).get_layer("decoder_0").dropout == 0.25
    with pytest.raises(ValueError, match="`dropout`.*2") as error:
        load(folder, dropout=2)
    assert "config.json" not in str(error.value)  # the caller's error, not the file's
    refused(lambda: load(folder, dtype="floaty"), ["floaty"])
    with pytest.raises(Exception, match="droput"):
        load(folder, droput=0.1)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_bar_reaches_its_end(tmp_path, capsys, shards, monkeypatch):
    folder, number = write(tmp_path, GPT2, tensors(GPT2), shards), len(tensors(GPT2))
    added, add = [], keras.utils.Progbar.add
    monkeypatch.setattr(keras.utils.Progbar, "add", lambda bar, count: added.append(count) or add(bar, count))
    load(folder, progress=True)
    assert sum(added) == number
    shown = capsys.readouterr().out
    assert f"{number}/{number}" in shown and shown.endswith("\n")
    for silent in (False, None):
        load(folder, progress=silent)
        assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("keras_txf.checkpoints.loading.LARGE", 100)
    load(folder)  # large files have a bar by default
    assert "tensor" in capsys.readouterr().out
