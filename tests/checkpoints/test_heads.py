"""Heads of checkpoints: new ones on a body, and bodies out of folders with a head."""

import json
import shutil

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from keras import ops

import keras_txf as txf

IDS = np.array([[5, 6, 7, 8], [9, 4, 0, 0]])


def numpy(outputs):
    return [ops.convert_to_numpy(value) for value in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_body_gets_a_new_head_for_spans_which_is_saved_with_it(family, tmp_path):
    model = txf.checkpoints.load(GOLDEN / family, "question_answering")
    txf.checkpoints.save(model, tmp_path)
    again = txf.checkpoints.load(tmp_path)
    for one, other in zip(numpy(model(IDS)), numpy(again(IDS)), strict=True):
        np.testing.assert_array_equal(one, other)
    body, before = (txf.checkpoints.load(folder, "encoder") for folder in (tmp_path, GOLDEN / family))
    np.testing.assert_array_equal(*numpy([body(IDS), before(IDS)]))


def test_a_head_of_spans_has_no_number_of_classes():
    with pytest.raises(ValueError, match="num_classes"):
        txf.checkpoints.load(GOLDEN / "bert", "question_answering", num_classes=3)


def test_a_head_that_the_file_lacks_is_refused_with_the_one_it_has():
    with pytest.raises(ValueError, match="no head for 'sequence_classification'.* The file is of the task 'masked_lm'"):
        txf.checkpoints.load(GOLDEN / "bert", "sequence_classification")


def test_a_decoder_becomes_a_classifier_and_its_body_alone_is_saved(tmp_path):
    keras.utils.set_random_seed(2)
    model = txf.checkpoints.load(GOLDEN / "llama", "sequence_classification", num_classes=1)  # a reward
    assert model(IDS).shape == (2, 1)
    txf.checkpoints.save(model, tmp_path / "reward")
    again = txf.checkpoints.load(tmp_path / "reward")
    np.testing.assert_array_equal(*numpy([model(IDS), again(IDS)]))
    body = txf.checkpoints.load(tmp_path / "reward", "encoder")
    txf.checkpoints.save(body, tmp_path / "body")
    states = [
        body(IDS),
        txf.checkpoints.load(tmp_path / "body")(IDS),
        txf.checkpoints.load(GOLDEN / "llama", "encoder")(IDS),
    ]
    for other in numpy(states)[1:]:
        np.testing.assert_array_equal(ops.convert_to_numpy(states[0]), other)


def test_the_body_of_a_decoder_may_attend_both_ways():
    """As in LLM2Vec: https://arxiv.org/abs/2404.05961."""
    causal, both = (txf.checkpoints.load(GOLDEN / "llama", "encoder", **how) for how in ({}, {"causal": False}))
    other = IDS.copy()
    other[0, 3] = 5
    for model, changes in ((causal, False), (both, True)):
        before, after = numpy([model(IDS), model(other)])
        assert np.allclose(before[0, 0], after[0, 0], atol=1e-6) is not changes


def test_a_classifier_of_a_decoder_hides_the_token_that_ends_texts_where_it_is_padding(tmp_path):
    config = json.loads((GOLDEN / "llama" / "config.json").read_text())
    config = {**config, "pad_token_id": config["eos_token_id"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(GOLDEN / "llama" / "model.safetensors", tmp_path)
    model = txf.checkpoints.load(tmp_path, "sequence_classification", num_classes=3)
    end = config["eos_token_id"]
    one, other = numpy([model(np.array([[5, 6, 7]])), model(np.array([[5, 6, 7, end, end]]))])
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_encoder_of_a_t5_alone(tmp_path):
    pair = txf.checkpoints.load(GOLDEN / "t5", return_hidden_states=True)
    model = txf.checkpoints.load(GOLDEN / "t5", "encoder")
    txf.checkpoints.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["T5EncoderModel"]
    states = pair({"source_ids": IDS, "target_ids": IDS})
    last = max(name for name in states if name.startswith("encoder_hidden_states"))
    for one in (model, txf.checkpoints.load(tmp_path)):
        np.testing.assert_allclose(*numpy([one(IDS), states[last]]), atol=1e-6)


def test_a_new_discriminator_of_an_electra():
    model = txf.checkpoints.load(GOLDEN / "electra", "replaced_token_detection")
    assert model(IDS).shape == (2, 4, 1)


@pytest.mark.parametrize(
    "family, options",
    [("llama", {"tie_embeddings": True}), ("bert", {"head_activation": None}), ("bert", {"head_bias": False})],
)
def test_options_that_leave_out_trained_tensors_are_refused(family, options):
    [name] = options
    with pytest.raises(ValueError, match=f"With the options .'{name}'.: "):
        txf.checkpoints.load(GOLDEN / family, **options)


def test_options_that_ask_for_other_tensors_are_named():
    with pytest.raises(ValueError, match="With the options .'sinks'.: The model has weights"):
        txf.checkpoints.load(GOLDEN / "llama", sinks=True)
