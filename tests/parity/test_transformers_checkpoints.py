"""Checkpoints of every family: what transformers computes from a folder, we compute, and it from ours."""

import checkpoint_cases
import keras
import numpy as np
import pytest
from checkpoint_cases import CASES

import keras_txf as txf

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.drawn(5),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]


# Names of outputs there -> ours, where they differ.
OURS = {
    "last_hidden_state": "output", "prediction_logits": "logits", "seq_relationship_logits": "next_sentence_logits",
    "logits_per_image": "logits", "image_embeds": "image_embeddings", "text_embeds": "text_embeddings",
}  # fmt: skip


@pytest.fixture(params=CASES, ids=lambda case: case.name, scope="module")
def loaded(request, tmp_path_factory):
    """A case, its model in transformers, the folder that it was written to, and our model of that."""
    folder = tmp_path_factory.mktemp(request.param.name)
    model = request.param.model()
    model.save_pretrained(folder)
    yield request.param, model, folder, txf.checkpoints.load(folder)
    keras.backend.clear_session()


def theirs(model, values):
    with torch.no_grad():
        return model(**{name: torch.tensor(value) for name, value in values.items()}, output_hidden_states=True)


def answers_of(outputs):
    """The names of a model's outputs without its hidden states: logits, or else the states after the last norm.

    DeiT's logits are the mean of two that it returns too.
    """
    if "logits" in outputs:
        return ["logits"]
    if "logits_per_image" in outputs:
        return ["logits_per_image", "image_embeds", "text_embeds"]
    return [name for name in outputs if name.endswith("logits")] or ["last_hidden_state"]


def assert_close(ours, expected, real=None, tolerance=1e-4):
    ours, expected = keras.ops.convert_to_numpy(ours), expected.numpy()
    assert ours.shape == expected.shape
    if real is not None and expected.shape[:2] == real.shape:
        ours, expected = ours[real], expected[real]
    np.testing.assert_allclose(ours, expected, atol=tolerance * max(1, np.abs(expected).max()))


def test_logits_and_hidden_states_are_those_of_transformers(loaded):
    case, model, folder, _ = loaded
    values, own, real = checkpoint_cases.inputs(case, model.config)
    expected = theirs(model, values)
    outputs = txf.checkpoints.load(folder, return_hidden_states=True)(own)
    for name in answers_of(expected):
        if case.architecture == "ElectraForPreTraining":
            expected[name] = expected[name][..., None]  # ours is a classifier of one class
        assert_close(outputs[OURS.get(name, name)], expected[name], real)
    sides = {"encoder_": "encoder_hidden_states", "decoder_": "decoder_hidden_states"}
    if not model.config.is_encoder_decoder:
        sides = {"": "hidden_states"}
    if "logits_per_image" in expected:
        sides = {"image_": "vision_model_output", "text_": "text_model_output"}
    for prefix, name in sides.items():
        states = getattr(expected[name], "hidden_states", expected[name])
        here = real
        if prefix == "encoder_":
            here = values["attention_mask"].astype(bool) if "attention_mask" in values else None
        # Where a norm follows the last block, transformers may give its output or what comes before.
        for index, state in enumerate(states[:-1]):
            assert_close(outputs[f"{prefix}hidden_states_{index}"], state, here)
        assert f"{prefix}hidden_states_{len(states)}" not in outputs


def test_what_is_saved_is_what_was_read(loaded, tmp_path):
    case, model, _, ours = loaded
    txf.checkpoints.save(ours, tmp_path)
    back, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    before, after = model.state_dict(), back.state_dict()
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name
    values, *_ = checkpoint_cases.inputs(case, model.config)
    before, after = theirs(model, values), theirs(back.eval(), values)
    for name in answers_of(before):
        assert_close(after[name].numpy(), before[name])


def test_greedy_answers_are_those_of_transformers(loaded):
    _, model, _, ours = loaded
    if not hasattr(ours, "generate"):
        return
    prompts, forbidden, expected = checkpoint_cases.greedy(model)
    np.testing.assert_array_equal(checkpoint_cases.answers(ours, prompts, forbidden), expected)
