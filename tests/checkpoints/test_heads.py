"""Heads of checkpoints: new ones on a body, bodies out of folders with a head, and heads that no task has."""

import json
import shutil

import keras
import numpy as np
import pytest
from cases import numpy
from checkpoints.test_golden import GOLDEN, changed_folder, expected
from folders import BERT, GPT2, LLAMA, tensors, write
from refusals import refused
from safetensors.numpy import load_file, save_file

import keras_txf as txf

load, save = txf.checkpoints.load, txf.checkpoints.save
IDS = np.array([[5, 6, 7, 8], [9, 4, 0, 0]])


def same(model, other):
    """Both have the same outputs."""
    for one, two in zip(numpy(model(IDS)), numpy(other(IDS)), strict=True):
        np.testing.assert_array_equal(one, two)


def class_of(folder):
    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    return name


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_body_gets_a_new_head_for_spans_which_is_saved_with_it(family, tmp_path):
    model = load(GOLDEN / family, "question_answering")
    save(model, tmp_path)
    same(load(tmp_path), model)
    same(load(tmp_path, "encoder"), load(GOLDEN / family, "encoder"))


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "vit"])
def test_a_new_head_needs_the_number_of_classes(family):
    task = "image_classification" if family == "vit" else "sequence_classification"
    if family != "vit":
        words = ["no head for 'sequence_classification'", "The file is of the task 'masked_lm'"]
        refused(lambda: load(GOLDEN / family, task), words)
    assert load(GOLDEN / family, task, num_classes=7)(expected(family)[0]).shape[-1] == 7


@pytest.mark.slow
def test_a_head_of_another_number_of_classes_is_a_new_one(tmp_path):
    model = load(GOLDEN / "bert", "token_classification", num_classes=5)
    save(model, tmp_path)
    assert class_of(tmp_path) == "BertForTokenClassification"
    assert len(json.loads((tmp_path / "config.json").read_text())["id2label"]) == 5
    same(load(tmp_path), model)
    other = load(tmp_path, num_classes=3)
    assert other.get_layer("logits").units == 3
    tables = [one.get_layer("embedding").token.embeddings for one in (other, model)]
    np.testing.assert_array_equal(*numpy(tables))


def test_a_pair_gets_a_head_of_its_class(tmp_path):
    save(load(GOLDEN / "bart", "sequence_classification", num_classes=3), tmp_path)
    assert class_of(tmp_path) == "BartForSequenceClassification" and load(tmp_path).output.shape[-1] == 3


def test_a_new_head_leaves_the_other_heads_of_the_file(tmp_path):
    save(load(GOLDEN / "bert", "token_classification", num_classes=5), tmp_path)
    values = load_file(tmp_path / "model.safetensors")
    save_file({**values, "other_head.weight": np.ones((2, 2), "float32")}, tmp_path / "model.safetensors")
    refused(lambda: load(tmp_path), ["other_head.weight"])
    assert load(tmp_path, num_classes=3).get_layer("logits").units == 3


def test_a_shared_table_may_have_the_name_of_one_side(tmp_path):
    folder = shutil.copytree(GOLDEN / "bart", tmp_path / "bart")
    values = load_file(folder / "model.safetensors")
    values["model.encoder.embed_tokens.weight"] = values.pop("model.shared.weight")
    save_file(values, folder / "model.safetensors")
    for one, other in zip(load(folder).get_weights(), load(GOLDEN / "bart").get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_tasks_and_options_that_do_not_fit_the_file_raise_value_error():
    for family, task, options, words in (
        ("bert", "poetry", {}, ["`task` must be one of", "received 'poetry'"]),
        ("llama", None, {"num_classes": 3}, ["`num_classes` is for classifiers"]),
        ("bert", "question_answering", {"num_classes": 3}, ["num_classes"]),
        ("llama", None, {"tie_embeddings": True}, ["With the options ['tie_embeddings']: "]),
        ("bert", None, {"head": None}, ["With the options ['head']: "]),
        ("llama", None, {"sinks": True}, ["With the options ['sinks']: The model has weights"]),
    ):
        refused(lambda: load(GOLDEN / family, task, **options), words)


def test_a_decoder_becomes_a_classifier_and_its_body_alone_is_saved(tmp_path):
    keras.utils.set_random_seed(2)
    model = load(GOLDEN / "llama", "sequence_classification", num_classes=1)  # a reward
    assert model(IDS).shape == (2, 1)
    save(model, tmp_path / "reward")
    same(load(tmp_path / "reward"), model)
    body = load(tmp_path / "reward", "encoder")
    save(body, tmp_path / "body")
    same(load(tmp_path / "body"), body)
    same(load(GOLDEN / "llama", "encoder"), body)


def test_the_body_of_a_decoder_may_attend_both_ways():
    """As in LLM2Vec: https://arxiv.org/abs/2404.05961."""
    causal, both = (load(GOLDEN / "llama", "encoder", **how) for how in ({}, {"causal": False}))
    other = IDS.copy()
    other[0, 3] = 5
    for model, changes in ((causal, False), (both, True)):
        before, after = numpy([model(IDS), model(other)])
        assert np.allclose(before[0, 0], after[0, 0], atol=1e-6) is not changes


def test_a_classifier_of_a_decoder_hides_the_token_that_ends_texts_where_it_is_padding(tmp_path):
    end = json.loads((GOLDEN / "llama" / "config.json").read_text())["eos_token_id"]
    model = load(changed_folder("llama", tmp_path, pad_token_id=end), "sequence_classification", num_classes=3)
    one, other = numpy([model(np.array([[5, 6, 7]])), model(np.array([[5, 6, 7, end, end]]))])
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_encoder_of_a_t5_alone(tmp_path):
    states = load(GOLDEN / "t5", return_hidden_states=True)({"source_ids": IDS, "target_ids": IDS})
    last = max(name for name in states if name.startswith("encoder_hidden_states"))
    model = load(GOLDEN / "t5", "encoder")
    save(model, tmp_path)
    assert class_of(tmp_path) == "T5EncoderModel"
    np.testing.assert_allclose(*numpy([model(IDS), states[last]]), atol=1e-6)
    same(load(tmp_path), model)


def test_a_new_discriminator_of_an_electra():
    assert load(GOLDEN / "electra", "replaced_token_detection")(IDS).shape == (2, 4, 1)


def with_head(config, name, rows=2):
    head = {f"{name}.weight": np.ones((rows, 8), "float32"), f"{name}.bias": np.ones(rows, "float32")}
    return {**tensors(config), **head}


def bert_with(folder, name, architecture):
    """A body of BERT with a head that differs from the head of its pretraining."""
    arrays = {key: array for key, array in with_head(BERT, name).items() if not key.startswith("cls.")}
    return write(folder, {**BERT, "architectures": [architecture]}, arrays)


@pytest.fixture(scope="module")
def bodies(tmp_path_factory):
    """Encoders of plain folders."""
    folders = {config["model_type"]: tmp_path_factory.mktemp(config["model_type"]) for config in (BERT, LLAMA)}
    return {
        name: load(write(folders[name], c, tensors(c)), "encoder") for name, c in (("bert", BERT), ("llama", LLAMA))
    }


def test_a_file_with_a_head_that_no_task_has_is_an_encoder(bodies, tmp_path):
    folder = bert_with(tmp_path / "file", "rank_outputs", "BertForRanking")
    model = load(folder)
    same(model, bodies["bert"])
    assert load(folder, "sequence_classification", num_classes=3).output.shape[-1] == 3
    refused(lambda: load(folder, "masked_lm"), ["must have a tensor", "cls.predictions.bias"])
    save(model, tmp_path / "saved")
    assert class_of(tmp_path / "saved") == "BertForRanking"
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "saved"))
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
    same(load(tmp_path / "saved"), model)
    save(load(folder, "encoder"), tmp_path / "asked")
    save(model, tmp_path / "described", {**BERT, "architectures": ["BertModel"]})
    for place in ("asked", "described"):
        assert class_of(tmp_path / place) == "BertModel"
        assert not [name for name in load_file(tmp_path / place / "model.safetensors") if "rank_outputs" in name]


def test_a_question_answering_file_is_an_encoder_too(bodies, tmp_path):
    folder = bert_with(tmp_path / "bert", "qa_outputs", "BertForQuestionAnswering")
    assert load(folder)(IDS).keys() == {"start_logits", "end_logits"}
    same(load(folder, "encoder"), bodies["bert"])
    # The class of Llama calls the body `transformer` where the others of the family call it `model`.
    arrays = {name.replace("model.", "transformer."): array for name, array in with_head(LLAMA, "qa_outputs").items()}
    folder = write(tmp_path / "llama", {**LLAMA, "architectures": ["LlamaForQuestionAnswering"]}, arrays)
    same(load(folder, "encoder"), bodies["llama"])


def test_the_head_of_a_decoder_is_passed_over_only_for_a_task_that_is_named(tmp_path):
    """The file has a bias that its class in transformers lacks: no task takes the head unchanged."""
    config = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
    folder = write(tmp_path, config, with_head(LLAMA, "score"))
    refused(lambda: load(folder), ["no weight of the model", "score.bias"])
    assert load(folder, "causal_lm").output.shape[-1] == 11


@pytest.mark.parametrize("name", ["transformer.extra", "lm_head.extra"])
def test_what_may_change_the_model_is_not_passed_over(tmp_path, name):
    """A tensor of the body, or of the head that is asked for."""
    folder = write(tmp_path, GPT2, with_head(GPT2, name))
    refused(lambda: load(folder, "causal_lm"), ["no weight of the model", f"{name}.weight"])


def test_tensors_next_to_a_body_without_a_prefix_are_ignored(bodies, tmp_path):
    """Such as the `linear` of ColBERT; a tensor within the modules of the body is not."""
    head = with_head(BERT, "linear")
    body = {name.removeprefix("bert."): array for name, array in head.items() if "cls." not in name}
    with pytest.warns(UserWarning, match=r"ignored: \['linear.bias', 'linear.weight'\]"):
        same(load(write(tmp_path, {**BERT, "architectures": ["HF_ColBERT"]}, body)), bodies["bert"])
    body["encoder.extra"] = body["linear.bias"]
    refused(lambda: load(write(tmp_path, BERT, body), "encoder"), ["no weight of the model", "['encoder.extra']"])
