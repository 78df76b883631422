"""Rotary positions that depend on the length of the text, "dynamic" and "longrope", on both sides of that length."""

import json

import checkpoint_cases
import keras
import numpy as np
import pytest
from checkpoint_cases import Case, llama
from decoder_cases import LATENT, rms
from refusals import refused

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TRAINED = 12  # tokens
FACTORS = dict(short_factor=[1.0, 1.2, 1.7], long_factor=[1.3, 3.0, 9.0])
DYNAMIC = dict(rope_type="dynamic", rope_theta=300.0, factor=2.5)
LONGROPE = dict(rope_type="longrope", rope_theta=300.0, **FACTORS)
YARN = dict(rope_type="yarn", rope_theta=300.0, factor=4.0, original_max_position_embeddings=TRAINED)
PHI3 = rms(original_max_position_embeddings=TRAINED, pad_token_id=0)
CASES = [
    Case("dynamic", "llama", "LlamaForCausalLM", llama(max_position_embeddings=TRAINED, rope_parameters=DYNAMIC)),
    Case("dynamic-part", "phi", "PhiForCausalLM",
         checkpoint_cases.decoder_cases.neox(max_position_embeddings=TRAINED,
                                             rope_parameters={**DYNAMIC, "partial_rotary_factor": 0.6})),
    Case("deepseek", "deepseek_v3", "DeepseekV3ForCausalLM",
         rms(**LATENT, n_group=2, topk_group=1, q_lora_rank=14, max_position_embeddings=TRAINED,
             rope_parameters=DYNAMIC)),
    Case("phi3", "phi3", "Phi3ForCausalLM", {**PHI3, "rope_parameters": LONGROPE}),
    Case("phi3-factor", "phi3", "Phi3ForCausalLM",
         {**PHI3, "rope_parameters": {**LONGROPE, "attention_factor": 1.3, "type": "su"}}),
    Case("mistral", "mistral", "MistralForCausalLM",
         llama(sliding_window=None,
               rope_parameters={**LONGROPE, "factor": 3.0, "original_max_position_embeddings": TRAINED})),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def pair(request, tmp_path):
    yield loaded(request.param, tmp_path)
    keras.backend.clear_session()


def loaded(case, folder):
    model = case.model()
    model.save_pretrained(folder)
    return model, txf.checkpoints.load(folder, pad_id=None)


def logits(model, ids, **inputs):
    with torch.no_grad():
        return model(torch.tensor(ids), **inputs).logits.numpy()


def answer(model, prompts, new):
    """What transformers answers greedily, token 0 left out; `prompts` is (B, P), padded on the left with 0."""
    ids = torch.tensor(prompts)
    how = transformers.GenerationConfig(max_new_tokens=new, do_sample=False, pad_token_id=0, suppress_tokens=[0])
    model.generation_config = how
    with torch.no_grad():
        return model.generate(ids, attention_mask=(ids != 0).long()).numpy()[:, ids.shape[1] :]


def ours(model, prompts, new):
    prompts = [row[row != 0].tolist() for row in np.asarray(prompts)]
    rows = model.generate(prompts, new, processors=[txf.generation.ForbiddenTokens([0])], stop_ids=(), sampler="greedy")
    return np.stack([row[len(prompt) : len(prompt) + new] for row, prompt in zip(rows, prompts)])


def test_logits(pair):
    """`model` keeps the frequencies of a long text for shorter ones beyond the trained length: long texts are last."""
    model, own = pair
    ids = np.random.default_rng(2).integers(3, 50, (2, 2 * TRAINED))
    seen = []
    for length in (5, TRAINED, TRAINED + 1, 2 * TRAINED):
        expected = logits(model, ids[:, :length])
        np.testing.assert_allclose(keras.ops.convert_to_numpy(own(ids[:, :length])), expected, atol=1e-4)
        seen.append(expected[:, 4])
    assert np.abs(seen[1] - seen[0]).max() < 1e-4 < 1e-2 < np.abs(seen[2] - seen[1]).max()  # the length counts


PROMPTS = np.random.default_rng(5).integers(3, 50, (3, TRAINED - 4))
PROMPTS[1, :5] = PROMPTS[2, :3] = 0


@pytest.mark.parametrize("longest, factor", [(TRAINED - 4, 4.0), (TRAINED, 4.0), (4 * TRAINED, None)])
def test_yarn_reaches_its_factor_times_the_trained_length(longest, factor, tmp_path):
    """Qwen 2.5's files have the trained length as `max_position_embeddings`; a factor of null is their ratio."""
    values = llama(max_position_embeddings=longest, rope_parameters={**YARN, "factor": factor})
    model, own = loaded(Case("yarn", "qwen2", "Qwen2ForCausalLM", values), tmp_path)
    ids = np.random.default_rng(2).integers(3, 50, (2, 4 * TRAINED))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(own(ids)), logits(model, ids), atol=1e-4)
    np.testing.assert_array_equal(ours(own, PROMPTS, 40), answer(model, PROMPTS, 40))
    refused(lambda: ours(own, PROMPTS, 41), ["max_length=48"])


@pytest.mark.parametrize("name", ["dynamic", "dynamic-part", "deepseek"])
def test_dynamic_answers_across_the_limit(name, tmp_path):
    """Keys in the cache keep the angles of the length at which they were written, here as there.

    A model of transformers that has read a longer text keeps its base for prompts from the trained length on, ours not.
    """
    model, own = loaded(BY_NAME[name], tmp_path)
    logits(model, np.arange(3, 3 + 3 * TRAINED)[None])  # a prompt below the trained length resets the base
    rows = own.generate(
        [row[row != 0].tolist() for row in PROMPTS], 70, stop_ids=(), sampler="greedy", return_scores=True
    )
    ids = torch.tensor(PROMPTS)
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=70, do_sample=False, pad_token_id=0, output_scores=True, return_dict_in_generate=True
    )
    with torch.no_grad():
        found = model.generate(ids, attention_mask=(ids != 0).long())
        scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    np.testing.assert_allclose(rows.log_probs, scores.numpy(), atol=1e-4)
    new = [row[n : n + 70] for row, n in zip(rows.ids, (PROMPTS != 0).sum(1))]
    np.testing.assert_array_equal(new, found.sequences.numpy()[:, PROMPTS.shape[1] :])


@pytest.mark.parametrize("name", ["phi3", "mistral"])
def test_longrope_answers_on_each_side(name, tmp_path):
    model, own = loaded(BY_NAME[name], tmp_path)
    np.testing.assert_array_equal(ours(own, PROMPTS, 5), answer(model, PROMPTS, 5))  # reads 12 tokens
    long = np.concatenate([PROMPTS[::-1], PROMPTS], axis=1)
    long[:, :3] = np.where(long[:, 3:6] == 0, 0, long[:, :3])
    long[long == 0] = 7
    np.testing.assert_array_equal(ours(own, long, 6), answer(model, long, 6))


def test_longrope_raises_value_error_beyond_the_trained_length(tmp_path):
    """Phi-3 of transformers computes the whole cache anew there: a second call does the same."""
    model, own = loaded(BY_NAME["phi3"], tmp_path)
    words = ["longrope", "beyond 12 tokens", "up to 8 tokens and max_new_tokens=6", "max_new_tokens=5", "second call"]
    refused(lambda: ours(own, PROMPTS, 6), words)
    first = ours(own, PROMPTS, 5)
    prompts = np.concatenate([PROMPTS, first], axis=1)
    second = ours(own, prompts, 6)
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), answer(model, PROMPTS, 11))


def test_longrope_in_a_graph(tmp_path):
    _, own = loaded(BY_NAME["phi3"], tmp_path)
    refused(lambda: own.make_generate_function(6), ["`longest_prompt`"])
    refused(lambda: own.make_generate_function(6, longest_prompt=8), ["beyond 12 tokens", "`max_new_tokens=5`"])
    refused(lambda: own.make_generate_function(6, longest_prompt=13), ["beyond 12 tokens", "up to 13 tokens"])
    run = own.make_generate_function(5, longest_prompt=8)
    tokens, *_ = run(PROMPTS[:1], np.array([8]), np.array([3, 0]))
    expected = own.generate(PROMPTS[:1].tolist(), 5)[0, 8:]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(tokens)[0], expected)


@pytest.mark.parametrize("number", [2, 4])
def test_factors_for_another_width_raise_value_error(number, tmp_path):
    """So does transformers' Phi-3; the Llama of transformers fails in its forward pass."""
    BY_NAME["mistral"].model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] |= {name: [1.5] * number for name in FACTORS}
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(lambda: txf.checkpoints.load(tmp_path), ["config.json must", "`long_factor` must be a list of 3 numbers"])


def test_a_fraction_of_a_feature_raises_value_error(tmp_path):
    """Transformers rounds 5.8 features down in the frequencies and up in what turns."""
    parameters = dict(rope_type="default", rope_theta=300.0, partial_rotary_factor=0.58)
    values = checkpoint_cases.decoder_cases.neox(hidden_size=40, num_attention_heads=4, rope_parameters=parameters)
    refused(
        lambda: loaded(Case("share", "gpt_neox", "GPTNeoXForCausalLM", values), tmp_path), ["config.json must", "0.58"]
    )
