"""Folders as people publish them: heads that are not asked for, and a padding token of the caller's."""

import json

import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from folders import BERT, GPT2, LLAMA, tensors, write
from keras import ops
from refusals import refused

import keras_txf as txf

load, save = txf.checkpoints.load, txf.checkpoints.save
IDS = np.array([[2, 5, 3, 1, 1], [4, 2, 6, 7, 9]])


def outputs(model, ids=IDS):
    found = model(ids)
    return ops.convert_to_numpy(found["output"] if isinstance(found, dict) else found)


def with_head(config, name, rows=2):
    head = {f"{name}.weight": np.ones((rows, 8), "float32"), f"{name}.bias": np.ones(rows, "float32")}
    return {**tensors(config), **head}


def test_a_file_with_a_head_that_no_task_has_is_an_encoder(tmp_path):
    body = {name: array for name, array in with_head(BERT, "rank_outputs").items() if not name.startswith("cls.")}
    config = {**BERT, "architectures": ["BertForRanking"]}
    folder = write(tmp_path / "file", config, body)
    model = load(folder)
    np.testing.assert_array_equal(
        outputs(model), outputs(load(write(tmp_path / "plain", BERT, tensors(BERT)), "encoder"))
    )
    assert load(folder, "sequence_classification", num_classes=3).output.shape[-1] == 3
    refused(lambda: load(folder, "masked_lm"), ["must have a tensor", "cls.predictions.bias"])
    save(model, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == ["BertModel"]
    np.testing.assert_array_equal(outputs(load(tmp_path / "saved")), outputs(model))


def test_a_question_answering_file_is_an_encoder_too(tmp_path):
    body = {name: array for name, array in with_head(BERT, "qa_outputs").items() if not name.startswith("cls.")}
    folder = write(tmp_path / "file", {**BERT, "architectures": ["BertForQuestionAnswering"]}, body)
    assert load(folder)(IDS).keys() == {"start_logits", "end_logits"}
    plain = load(write(tmp_path / "plain", BERT, tensors(BERT)), "encoder")
    np.testing.assert_array_equal(outputs(load(folder, "encoder")), outputs(plain))


def test_a_question_answering_file_of_llama_is_an_encoder(tmp_path):
    """Its class calls the body `transformer` where the others of the family call it `model`."""
    arrays = {name.replace("model.", "transformer."): array for name, array in with_head(LLAMA, "qa_outputs").items()}
    folder = write(tmp_path / "file", {**LLAMA, "architectures": ["LlamaForQuestionAnswering"]}, arrays)
    plain = load(write(tmp_path / "plain", LLAMA, tensors(LLAMA)), "encoder")
    np.testing.assert_array_equal(outputs(load(folder, "encoder")), outputs(plain))


def test_the_head_of_a_decoder_is_passed_over_only_for_a_task_that_is_named(tmp_path):
    """The file has a bias that its class in transformers has not: no task takes the head as it is."""
    config = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
    folder = write(tmp_path, config, with_head(LLAMA, "score"))
    refused(lambda: load(folder), ["no weight of the model", "score.bias"])
    assert load(folder, "causal_lm").output.shape[-1] == 11


@pytest.mark.parametrize("name", ["transformer.extra", "lm_head.extra"])
def test_what_may_change_the_model_is_not_passed_over(tmp_path, name):
    """A tensor of the body, or of the head that is asked for."""
    folder = write(tmp_path, GPT2, with_head(GPT2, name))
    refused(lambda: load(folder, "causal_lm"), ["no weight of the model", f"{name}.weight"])


def test_without_a_prefix_every_tensor_must_be_known(tmp_path):
    body = {name.removeprefix("bert."): array for name, array in with_head(BERT, "rank_outputs").items()}
    refused(lambda: load(write(tmp_path, BERT, body), "encoder"), ["no weight of the model", "rank_outputs.weight"])


@pytest.mark.parametrize("config", [BERT, GPT2, LLAMA], ids=lambda c: c["model_type"])
def test_a_padding_token_of_the_caller_is_saved(tmp_path, config):
    model = load(write(tmp_path / "file", config, tensors(config)), pad_id=1)
    save(model, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["pad_token_id"] == 1
    again = load(tmp_path / "saved")
    assert again.get_layer("embedding").pad_id == 1
    np.testing.assert_array_equal(outputs(again), outputs(model))
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
