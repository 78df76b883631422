"""The other files of a saved folder, and the checks that its config.json describes the model."""

import copy
import json
import tempfile

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN, parts
from checkpoints.test_loading import same
from folders import BERT, GPT2, LLAMA, tensors, write
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf

load, save = txf.checkpoints.load, txf.checkpoints.save
POOLER = {"bert.pooler.dense.weight": np.eye(8, dtype="float32"), "bert.pooler.dense.bias": np.ones(8, "float32")}


@pytest.mark.parametrize("family, task, prefix", [
    ("roberta", "encoder", ""), ("mpnet", "encoder", ""), ("bart", None, "model."),
])  # fmt: skip
def test_rows_of_no_position_come_back_under_the_names_of_another_class(family, task, prefix, tmp_path):
    """Their tables have rows before the first real position; the body alone, or BART's file, has no prefix."""
    config, before = parts(family)
    bare = {name.removeprefix(prefix): array for name, array in before.items()}
    model = load(write(tmp_path / "file", config, bare), task)
    same(model, load(GOLDEN / family, task))
    save(model, tmp_path / "again")
    same(load(tmp_path / "again"), model)
    after = load_file(tmp_path / "again" / "model.safetensors")
    assert all(any(name.endswith(known) for name in before) for known in after)
    tables = [name for name in after if "position" in name and after[name].ndim == 2 and "relative" not in name]
    assert len(tables) == (2 if family == "bart" else 1)
    for name in tables:
        [old] = [known for known in before if known.endswith(name)]
        np.testing.assert_array_equal(after[name], before[old])
        assert before[old][:2].any()


@pytest.mark.parametrize("tied", [True, False])
def test_config_holds_whether_the_head_is_tied(tied, tmp_path):
    """A Llama that says nothing is not tied."""
    config = {name: value for name, value in LLAMA.items() if name != "tie_word_embeddings"}
    config = {**config, "tie_word_embeddings": True} if tied else config
    arrays = {name: array for name, array in tensors(LLAMA).items() if not (tied and name == "lm_head.weight")}
    save(load(write(tmp_path / "file", config, arrays)), tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tie_word_embeddings"] is tied


def test_a_new_head_begins_with_what_the_file_has_of_it(tmp_path):
    pooler = {**POOLER, "bert.pooler.dense.weight": np.eye(8, dtype="float32")[::-1].copy()}
    model = load(write(tmp_path / "one", BERT, {**tensors(BERT), **pooler}), "sequence_classification", num_classes=3)
    kernel, bias = model.get_layer("head").get_weights()
    np.testing.assert_array_equal(kernel, pooler["bert.pooler.dense.weight"].T)
    np.testing.assert_array_equal(bias, 1.0)
    assert model.get_layer("logits").units == 3
    without = load(write(tmp_path / "two", BERT, tensors(BERT)), "sequence_classification", num_classes=3)
    assert not without.get_layer("head").get_weights()[1].any()  # as it begins


@pytest.mark.parametrize("config, pad, ends, expected", [
    (GPT2, 3, 3, None), (GPT2, 3, [5, 3], None), (GPT2, 3, 5, 3), (GPT2, None, 5, None), (LLAMA, 4, 4, None),
    (LLAMA, 4, 5, 4),
])  # fmt: skip
def test_a_token_that_ends_texts_is_no_padding_of_a_decoder(config, pad, ends, expected, tmp_path, uncompiled):
    """As in transformers, which attends to it without a mask."""
    model = load(write(tmp_path / "file", {**config, "pad_token_id": pad, "eos_token_id": ends}, tensors(config)))
    assert model.get_layer("embedding").pad_id == expected
    save(model, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["pad_token_id"] == pad
    if expected is None and pad is not None:
        assert model.generate([[pad, 1, pad], [pad]], 2, padded=False)[0][:3] == [pad, 1, pad]


def test_files_of_the_tokenizer_go_along(tmp_path):
    folder = write(tmp_path / "file", GPT2, tensors(GPT2))
    for name in ("chat_template.jinja", "tokenizer.json"):
        (folder / name).write_text(name)
    (folder / "tokenizer_notes").mkdir()
    save(load(folder), tmp_path / "saved")
    assert (tmp_path / "saved" / "chat_template.jinja").read_text() == "chat_template.jinja"
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"
    ]  # fmt: skip


def test_a_config_that_is_of_another_model_raises_value_error(tmp_path):
    model = load(write(tmp_path / "gpt2", GPT2, tensors(GPT2)))
    for key, value, words in (
        ("vocab_size", 12, ["vocab_size=12 of embedding (received 11)"]),
        ("n_layer", 3, ["num_layers=3 (received 2)"]),
        ("n_positions", 9, ["embedding/position", "(9, 8)", "(7, 8)"]),
        ("n_head", 3, ["n_head=3"]),
    ):
        refused(lambda: save(model, tmp_path / "no", {**GPT2, key: value}), ["config", *words])
    classifier = load(write(tmp_path / "bert", BERT, tensors(BERT)), "sequence_classification", num_classes=3)
    refused(lambda: save(classifier, tmp_path / "no", BERT), ["`config`", "head_activation"])
    assert not (tmp_path / "no").exists()
    save(model, tmp_path / "yes", GPT2)
    same(load(tmp_path / "yes"), model)
    save(classifier, tmp_path / "classes", {**BERT, "architectures": ["BertForSequenceClassification"]})
    same(load(tmp_path / "classes"), classifier)


def test_the_body_alone_keeps_the_files_pooler(tmp_path):
    """Of a file whose class had none of it as well: transformers would draw a random one."""
    file = write(tmp_path / "file", BERT, {**tensors(BERT), **POOLER})
    model = load(file, "encoder")
    for config in (None, {**BERT, "architectures": ["BertModel"]}):  # which says the same
        save(model, tmp_path / "saved", config)
        saved = load_file(tmp_path / "saved" / "model.safetensors")
        for name, tensor in POOLER.items():
            np.testing.assert_array_equal(saved[name.removeprefix("bert.")], tensor)
        assert not any(name.startswith("bert.") for name in saved)


def test_a_body_that_goes_by_the_name_of_its_pretraining_is_an_encoder(tmp_path):
    body = {name: tensor for name, tensor in tensors(BERT).items() if not name.startswith("cls.")}
    assert load(write(tmp_path / "file", BERT, body)).name.startswith("encoder")
    assert load(write(tmp_path / "whole", BERT, tensors(BERT))).name.startswith("masked_language_model")


def test_a_head_of_other_classes_has_another_problem(tmp_path):
    config = {**BERT, "architectures": ["BertForSequenceClassification"]}
    old = {"problem_type": "single_label_classification", "id2label": {"0": "no", "1": "yes"}}
    old |= {"label2id": {"no": 0, "yes": 1}}
    model = load(write(tmp_path / "file", {**config, **old}, tensors(BERT)), "sequence_classification", num_classes=1)
    save(model, tmp_path / "saved")
    values = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "problem_type" not in values and values["id2label"] == {"0": "LABEL_0"}


def test_a_padding_that_is_not_the_tokenizers_is_asked_about(tmp_path):
    folder = write(tmp_path / "file", BERT, tensors(BERT))
    tokens = [{"id": 0, "content": "<s>"}, {"id": 1, "content": "<pad>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    refused(lambda: load(folder), ["pad_token_id=0", "'<pad>'", "pad_id=1"])
    assert load(folder, pad_id=1).get_layer("embedding").pad_id == 1
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "<s>"}}))
    assert load(folder).get_layer("embedding").pad_id == 0


@pytest.mark.drawn(2)
@pytest.mark.parametrize("wrong", [3, True, b"x", [], [None], ["a", 1], np.ones(2), "", "a\0b"])
def test_arguments_of_another_kind(wrong, tmp_path):
    model = load(write(tmp_path / "gpt2", GPT2, tensors(GPT2)))
    refused(lambda: save(wrong, tmp_path / "no"), ["`model`", "built Keras model"])
    refused(lambda: save(None, tmp_path / "no"), ["`model`", "None"])
    refused(lambda: save(model, wrong), ["`folder`", "path"])
    refused(lambda: save(model, tmp_path / "no", wrong), ["`config`", "path"])
    refused(lambda: load(tmp_path / "gpt2", dtype=wrong), ["`dtype`"])
    if wrong is not True:
        refused(lambda: load(tmp_path / "gpt2", progress=wrong), ["`progress`", "True or False"])
    if not isinstance(wrong, str) or not wrong:
        for call in (load, txf.checkpoints.find):
            refused(lambda: call(tmp_path / "gpt2", revision=wrong), ["`revision`", "branch"])
    refused(lambda: save(model, tmp_path / "no", tmp_path / "none"), ["`config`", "config.json", "none"])
    assert not (tmp_path / "no").exists()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("options, words", [
    (dict(num_heads=2), ["num_heads=4 of decoder_0 (received 2)", "head_dim=8 of decoder_0 (received 16)"]),
    (dict(position="alibi"), ["position='Rotary' of decoder_0 (received 'ALiBi')"]),
    (dict(norm_placement="post", final_norm=True), ["norm_placement='pre' of decoder_0 (received 'post')"]),
    (dict(scale_embedding=True), ["scale=False of embedding (received True)"]),
    (dict(window=2), ["window=None of decoder_0 (received 2)"]),
    (dict(attention=txf.layers.MultiHeadSelfAttention(4, causal=True, position="rotary", use_bias=False, scale=1.0),
          num_heads=None, position=None, position_encoding=None), ["scale=0.353553", "of decoder_0 (received 1.0)"]),
    (dict(position=None, position_encoding="sinusoidal"),
     ["position_encoding=None of embedding (received 'sinusoidal')"]),
], ids=str)  # fmt: skip
def test_options_without_weights_that_differ_from_the_config_raise_value_error(options, words, tmp_path):
    """Such a folder would load, and have other logits."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11, "hidden_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 16,
    }  # fmt: skip
    right = dict(
        num_heads=4, intermediate_dim=40, gated=True, activation="silu", use_bias=False, norm="rms", norm_epsilon=1e-6,
        norm_placement="pre", position="rotary", scale_embedding=False, pad_id=None,
    )  # fmt: skip
    model = txf.models.decoder_generator(11, 1, 32, **right)
    save(model, tmp_path / "right", config)
    same(load(tmp_path / "right"), model)
    other = txf.models.decoder_generator(11, 1, 32, **{**right, **options})
    refused(lambda: save(other, tmp_path / "other", config), ["`config` must describe the model", *words])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: through_file(model)], ids=["deepcopy", "file"])
def test_a_copy_and_a_keras_file_know_their_checkpoint(again, tmp_path):
    model = load(GOLDEN / "llama")
    save(model, tmp_path / "first")
    save(again(model), tmp_path / "second")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    refused(lambda: save(again(load(GOLDEN / "llama", window=3)), tmp_path / "third"), ["cannot hold: ['window']"])
    odd = again(load(write(tmp_path / "file", BERT, {**tensors(BERT), **POOLER}), "encoder"))
    refused(lambda: save(odd, tmp_path / "third"), ["`model` must have all tensors of its checkpoint"])


def through_file(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        return keras.saving.load_model(f"{folder}/model.keras")


def test_what_config_json_cannot_say_is_not_saved(tmp_path):
    model = load(GOLDEN / "llama", window=3)
    refused(lambda: save(model, tmp_path), ["options that config.json cannot hold: ['window']"])
    plain = txf.models.encoder(100, 1, 8, 2)
    refused(lambda: save(plain, tmp_path), ["`config` must be a dict of config.json", "`family`"])
    refused(lambda: save(plain, tmp_path, GOLDEN / "llama"), ["it asks for num_layers=2 (received 1), ", " weights."])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("config", [BERT, GPT2, LLAMA], ids=lambda c: c["model_type"])
def test_a_padding_token_of_the_caller_is_saved(tmp_path, config):
    model = load(write(tmp_path / "file", config, tensors(config)), pad_id=1)
    save(model, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["pad_token_id"] == 1
    again = load(tmp_path / "saved")
    assert again.get_layer("embedding").pad_id == 1
    same(again, model)
    save(load(tmp_path / "saved", pad_id=None), tmp_path / "without")
    assert load(tmp_path / "without").get_layer("embedding").pad_id is None


def test_a_padding_token_of_an_encoder_decoder_is_saved(tmp_path):
    save(load(GOLDEN / "t5", pad_id=3), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 3
    load(tmp_path)


def test_a_padding_token_that_config_json_cannot_hold(tmp_path):
    folder = write(tmp_path / "file", {**LLAMA, "eos_token_id": [2, 3]}, tensors(LLAMA))
    refused(lambda: save(load(folder, pad_id=3), tmp_path / "saved"), ["pad_id=3", "also ends texts"])
    refused(lambda: save(load(GOLDEN / "roberta", pad_id=3), tmp_path / "saved"), ["pad_id=3", "positions"])
