"""Adapters of peft without peft: small folders that it wrote, and what is broken in others."""

import json
import pathlib
import random
import shutil

import keras
import numpy as np
import pytest
from adapter_cases import same, values
from checkpoints.test_fuzzing import edit, swap
from checkpoints.test_golden import GOLDEN
from mutations import BYTES, edit_text
from refusals import refused
from safetensors.numpy import load_file, save_file

import keras_txf as txf
from keras_txf.backend.keras_private import trainable_by_nature

ADAPTERS = pathlib.Path(__file__).parent / "golden_adapters"
load_adapter, save_adapter = txf.checkpoints.load_adapter, txf.checkpoints.save_adapter
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OPTIONS = {"gpt2": {}, "roberta": {"task": "sequence_classification", "num_classes": 5}}


@pytest.fixture(scope="module")
def models():
    """The bases, without adapters."""
    return {family: txf.checkpoints.load(GOLDEN / family, **options) for family, options in OPTIONS.items()}


@pytest.fixture(params=OPTIONS)
def adapted(request, models):
    model = models[request.param]
    load_adapter(model, ADAPTERS / request.param, "theirs")
    yield request.param, model
    txf.training.remove_adapter(model, "theirs")


def logits(family, model):
    with np.load(ADAPTERS / family / "expected.npz") as file:
        ids, real, expected = file["ids"], file["real"], file["logits"]
    found = keras.ops.convert_to_numpy(model(ids))
    return (found[real], expected[real]) if found.ndim == 3 else (found, expected)


def test_logits_are_those_of_peft(adapted):
    np.testing.assert_allclose(*logits(*adapted), atol=1e-4)


def test_adapted_logits_bring_their_base_along_as_peft_writes_it(tmp_path):
    model, base = txf.checkpoints.load(GOLDEN / "phi"), load_file(GOLDEN / "phi" / "model.safetensors")
    txf.training.add_adapter(model, rank=2, targets=["logits"])
    save_adapter(model, tmp_path)
    found = load_file(tmp_path / WEIGHTS)
    for part in ("weight", "bias"):
        copy = found.pop(f"base_model.model.lm_head.base_layer.{part}")
        np.testing.assert_array_equal(copy, base[f"lm_head.{part}"])
    assert {name.rpartition("lm_head.")[2] for name in found} == {"lora_A.weight", "lora_B.weight"}
    load_adapter(model, tmp_path, "again")


def test_what_is_written_is_what_was_read(adapted, tmp_path):
    family, model = adapted
    (tmp_path / "adapter").mkdir()
    for _ in range(2):  # the second time there is one
        save_adapter(model, tmp_path / "adapter", "theirs", base="org/name")
        (tmp_path / "adapter" / "README.md").write_text("Mine.")
    before, after = load_file(ADAPTERS / family / WEIGHTS), load_file(tmp_path / "adapter" / WEIGHTS)
    same(after, before)
    config, original = (json.loads((at / CONFIG).read_text()) for at in (tmp_path / "adapter", ADAPTERS / family))
    kept = ("r", "lora_alpha", "use_rslora", "lora_dropout", "fan_in_fan_out", "task_type", "bias", "peft_type")
    assert {key: config[key] for key in kept} == {key: original[key] for key in kept}
    assert config["base_model_name_or_path"] == "org/name"
    assert [file.name for file in tmp_path.iterdir()] == ["adapter"]
    assert (tmp_path / "adapter" / "README.md").read_text() == "Mine."
    if family == "gpt2":  # of the other one norms are trained, which two adapters cannot share
        load_adapter(model, tmp_path / "adapter", "again")
        np.testing.assert_allclose(*logits(*adapted), atol=1e-4)
        txf.training.remove_adapter(model, "again")


def test_it_is_trained_and_merged(models, tmp_path):
    model = txf.checkpoints.load(GOLDEN / "gpt2")
    load_adapter(model, ADAPTERS / "gpt2")
    base = [variable for variable in trainable_by_nature(model) if "/default_" not in variable.path]
    before, (_, expected) = values(base), logits("gpt2", model)
    refused(lambda: txf.checkpoints.save(model, tmp_path), ["`model`", "adapter", "merge_adapter"])
    txf.training.merge_adapter(model)
    np.testing.assert_allclose(logits("gpt2", model)[0], expected, atol=1e-4)
    txf.checkpoints.save(model, tmp_path / "merged")
    np.testing.assert_allclose(logits("gpt2", txf.checkpoints.load(tmp_path / "merged"))[0], expected, atol=1e-4)
    changed = [path for path, value in values(base).items() if (value != before[path]).any()]
    assert len(changed) == 2 * 5  # kernels of query, key, value, output and feed-forward output of two blocks


def test_a_model_of_a_keras_file_knows_its_config(tmp_path):
    model = txf.checkpoints.load(GOLDEN / "gpt2", window=99)  # which `save` would refuse
    load_adapter(model, ADAPTERS / "gpt2")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    save_adapter(again, tmp_path / "adapter")
    same(load_file(tmp_path / "adapter" / WEIGHTS), load_file(ADAPTERS / "gpt2" / WEIGHTS))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_base_in_int8(tmp_path):
    model = txf.checkpoints.load(GOLDEN / "gpt2")
    model.quantize("int8")
    load_adapter(model, ADAPTERS / "gpt2")
    np.testing.assert_allclose(*logits("gpt2", model), atol=0.1)
    save_adapter(model, tmp_path / "adapter")
    same(load_file(tmp_path / "adapter" / WEIGHTS), load_file(ADAPTERS / "gpt2" / WEIGHTS))


def test_layers_with_matrices_of_their_own_become_blocks(models, tmp_path):
    model, draw = models["gpt2"], np.random.default_rng(3)
    txf.training.add_adapter(model, "mine", rank=3, alpha=5, targets=["*/query", "decoder_1/attention/value"])
    for variable in model.trainable_variables:
        variable.assign(draw.normal(size=variable.shape))
    tuned = logits("gpt2", model)[0]
    save_adapter(model, tmp_path / "adapter", "mine")
    tensors = load_file(tmp_path / "adapter" / WEIGHTS)
    shapes = [tensors[f"base_model.model.transformer.h.{i}.attn.c_attn.lora_B.weight"].shape for i in range(2)]
    assert shapes == [(24, 3), (24, 6)]
    txf.training.remove_adapter(model, "mine")
    load_adapter(model, tmp_path / "adapter", "mine")
    np.testing.assert_allclose(logits("gpt2", model)[0], tuned, atol=1e-4)
    txf.training.remove_adapter(model, "mine")


def state(model):
    return [(variable.path, id(variable), variable.trainable) for variable in model.variables]


def unchanged(model, call, words):
    before, numbers = state(model), values(model.variables)
    refused(call, words)
    assert state(model) == before
    same(values(model.variables), numbers)


def put(**changes):
    """A damage: other values of adapter_config.json; `...` takes the key away."""
    return lambda config, tensors: [config.update(changes), [config.pop(key) for key in changes if changes[key] is ...]]


def tensor(key, change):
    def damage(config, tensors):
        tensors[key] = change(tensors[key])

    return damage


A, B = (f"base_model.model.transformer.h.1.attn.c_attn.lora_{letter}.weight" for letter in "AB")
LORA = ["c_attn", "c_proj"]


def more(name):
    """A damage: a tensor too many."""
    return lambda config, tensors: tensors.update({name: tensors[A]})


DAMAGES = [
    *[(put(peft_type=value), ["`peft_type`"]) for value in ("IA3", None, 3, [], {}, ...)],
    *[(put(r=value), ["`r`"]) for value in (0, -1, True, "2", 2.0, [2], {})],
    *[(put(lora_alpha=value), ["`lora_alpha`"]) for value in (0, -1, True, "2", [2], 1e300, 10**400)],
    *[(put(lora_dropout=value), ["`lora_dropout`"]) for value in (1, -0.1, True, "2")],
    *[(put(use_rslora=value), ["`use_rslora`"]) for value in (1, "yes")],
    *[(put(target_modules=value), ["`target_modules`"]) for value in (None, [], "", 3, [3], {"a": 1}, ..., ["no"])],
    *[(put(modules_to_save=value), ["`modules_to_save`"]) for value in ("wte", 3, [3], ["wte"], ["transformer"])],
    *[(put(rank_pattern=value), ["`rank_pattern`"]) for value in ([], 3, {"c_proj": 0}, {"c_proj": "3"})],
    *[(put(alpha_pattern=value), ["`alpha_pattern`"]) for value in (3, {"c_proj": 0}, {"c_proj": None})],
    *[(put(layers_to_transform=value), ["`layers_to_transform`"]) for value in ("1", [1.5], {})],
    *[(put(bias=value), ["`bias`"]) for value in ("all", "lora_only", 3)],
    *[(put(init_lora_weights=value), ["`init_lora_weights`"]) for value in ("pissa", "olora", "loftq", 3)],
    *[(put(**{key: True}), [key]) for key in ("use_dora", "use_qalora", "lora_bias", "new_trick")],
    (put(layer_replication=[[0, 2], [1, 2]]), ["layer_replication"]), (put(rank_pattern={"(": 3}), []),
    (put(trainable_token_indices=[3]), ["trainable_token_indices"]), (put(target_modules="("), []),
    (put(target_modules="((.+)+)+!"), ["it took more than 1 seconds"]),  # a pattern that goes back and forth
    # what does not go with the tensors, or with the model
    (put(r=4), ["(4, 8)", "(2, 8)"]), (put(r=10**12), ["(1000000000000, 8)"]),
    (put(rank_pattern={}), ["c_proj", "(2, 32)", "(3, 32)"]),
    (put(target_modules=["c_attn"]), ["attn.c_proj.lora_A", "`target_modules`"]),
    (put(target_modules=[*LORA, "c_fc"]), ["h.0.mlp.c_fc.lora_A.weight"]),
    (put(exclude_modules=["attn.c_attn"]), ["attn.c_attn.lora_A", "`target_modules`"]),
    (put(layers_to_transform=[0]), ["h.1.", "`target_modules`"]),
    (put(modules_to_save=["ln_f"]), ["transformer.ln_f.weight"]),
    (put(target_modules=[*LORA, "wte"], modules_to_save=["c_attn"]), ["c_attn.weight"]),
    (tensor(A, lambda x: x[:1].copy()), [A, "(1, 8)"]), (tensor(A, lambda x: x.T.copy()), [A, "(8, 2)"]),
    (tensor(A, lambda x: x[..., None].copy()), [A, "(2, 8, 1)"]), (tensor(B, lambda x: x[:0].copy()), [B, "(0, 2)"]),
    (tensor(B, lambda x: x[:8].copy()), [B, "(8, 2)"]), (tensor(A, lambda x: x.astype("int32")), [A, "I32"]),
    (lambda config, tensors: tensors.pop(A), [A]), (lambda config, tensors: tensors.pop(B), [B]),
    (lambda config, tensors: tensors.clear(), ["lora_A"]), (more("surplus"), ["surplus"]),
    (more("base_model.model.lm_head.lora_A.weight"), ["lm_head.lora_A", "tied"]),
    (more("base_model.model.transformer.wte.lora_embedding_A"), ["wte", "not a Dense layer"]),
    (more(A.replace("h.1", "h.7")), ["h.7"]), (more(A.replace("c_attn", "c_fc")), ["c_fc"]),
    (more(A.replace("lora_A.weight", "lora_magnitude_vector")), ["lora_magnitude_vector"]),
    (lambda config, tensors: tensors.update({"base_model.model.transformer.ln_f.weight": tensors[A][0]}), ["ln_f"]),
]  # fmt: skip


@pytest.mark.parametrize("damage, words", DAMAGES)
def test_broken_configurations_and_tensors(damage, words, models, tmp_path, monkeypatch):
    monkeypatch.setattr(txf.strangers, "SECONDS", 1)
    config, tensors = json.loads((ADAPTERS / "gpt2" / CONFIG).read_text()), load_file(ADAPTERS / "gpt2" / WEIGHTS)
    damage(config, tensors)
    (tmp_path / CONFIG).write_text(json.dumps(config))
    save_file(tensors, tmp_path / WEIGHTS)
    unchanged(models["gpt2"], lambda: load_adapter(models["gpt2"], tmp_path), [CONFIG, *words])


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_empty_and_missing_files(name, models, tmp_path):
    shutil.copytree(ADAPTERS / "gpt2", tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    unchanged(models["gpt2"], lambda: load_adapter(models["gpt2"], tmp_path), [name])
    (tmp_path / name).unlink()
    unchanged(models["gpt2"], lambda: load_adapter(models["gpt2"], tmp_path), [name])


def test_an_adapter_of_another_model(models):
    for family, other in (("gpt2", "roberta"), ("roberta", "gpt2")):
        words = [CONFIG, *(["`base_model_name_or_path`"] if family == "gpt2" else [])]
        unchanged(models[family], lambda: load_adapter(models[family], ADAPTERS / other), words)


def test_what_cannot_be_written(models, tmp_path):
    model, save = models["gpt2"], save_adapter
    refused(lambda: save(model, tmp_path), ["`name`", "'default'"])
    load_adapter(model, ADAPTERS / "gpt2")
    try:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "book.txt").write_text("A book.")
        refused(lambda: save(model, tmp_path / "mine"), ["`folder`", "mine"])
        refused(lambda: save(model, tmp_path / "mine" / "book.txt"), ["`folder`", "book.txt"])
        refused(lambda: save(model, tmp_path / "new", dtype="int8"), ["`dtype`", "int8"])
        txf.training.unfreeze(model, "embedding/token")  # a table that the logits use too
        refused(lambda: save(model, tmp_path / "new"), ["`model`", "embedding/token/embeddings", "wte"])
        assert [file.name for file in tmp_path.iterdir()] == ["mine"]
    finally:
        txf.training.remove_adapter(model)


def load_damaged(model, folder, name, damages, number, seed):
    """How many damaged folders were loaded: whatever happens, the bare model is as it was."""
    draw, loaded, before, bare = random.Random(seed), 0, state(model), values(model.variables)
    shutil.copytree(ADAPTERS / "gpt2", folder, dirs_exist_ok=True)
    content = (folder / name).read_bytes()
    for _ in range(number):
        (folder / name).write_bytes(draw.choice(damages)(draw, content))
        try:
            load_adapter(model, folder)
            txf.training.remove_adapter(model)
            txf.training.unfreeze(model)
            loaded += 1
        except ValueError as error:
            assert name in str(error) and "\n" not in str(error), error
            assert state(model) == before
    assert [(path, key) for path, key, _ in state(model)] == [(path, key) for path, key, _ in before]
    same(values(model.variables), bare)
    return loaded


@pytest.mark.parametrize("number", [60, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name, damages", [(WEIGHTS, [*BYTES, edit, edit, swap]), (CONFIG, [*BYTES, *[edit_text] * 6])])
def test_damaged_files(name, damages, number, tmp_path):
    model = txf.checkpoints.load(GOLDEN / "gpt2")
    assert 0 < load_damaged(model, tmp_path, name, damages, number, seed=2) < 0.7 * number


def test_trained_experts_have_no_module_of_peft(tmp_path):
    model = txf.checkpoints.load(GOLDEN / "mixtral")
    txf.training.add_adapter(model, rank=2, targets="*/query")
    save_adapter(model, tmp_path / "adapter")
    model.get_layer("decoder_0").feed_forward.gate.trainable = True
    words = ["`model`", "peft has a module for", "decoder_0/feed_forward/gate_kernel"]
    refused(lambda: save_adapter(model, tmp_path / "other"), words)


def test_the_other_functions_that_load_name_the_one_for_a_folder_of_peft(models):
    words = ["the folder of a model", "txf.checkpoints.load_adapter"]
    refused(lambda: txf.checkpoints.load(ADAPTERS / "gpt2"), ["`path`", *words])
    words = ["a file of `save_adapter`", "txf.checkpoints.load_adapter"]
    refused(lambda: txf.training.load_adapter(models["gpt2"], ADAPTERS / "gpt2", "other"), ["`file`", *words])
