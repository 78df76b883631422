"""`generation_config.json` as the defaults of `generate`, key by key."""

import json

import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from folders import BERT, LLAMA, tensors, write

import keras_txf as txf
from keras_txf.checkpoints.origin_files import read_origin, share_origin, write_origin
from keras_txf.generation import (
    Beam,
    ForbiddenTokens,
    ForcedTokens,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
)
from keras_txf.models.generate_defaults import with_defaults

load = txf.checkpoints.load
NAMES = ["max_new_tokens", "max_length", "sampler", "stop_ids", "start_id", "processors"]
PLAIN = {"sampler": "greedy", "processors": ()}


def defaults(model, **given):
    return with_defaults(model, given, NAMES)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama"), LLAMA, tensors(LLAMA))


def of(folder, **values):
    (folder / "generation_config.json").write_text(json.dumps(values))
    return load(folder)


@pytest.mark.parametrize("values, expected", [
    ({}, {}),
    ({"max_length": 20, "num_beams": 1, "top_k": 50, "temperature": 0.6, "repetition_penalty": 1.0}, {}),
    ({"eos_token_id": 2}, {"stop_ids": (2,)}),
    ({"eos_token_id": [2, 3, 50256]}, {"stop_ids": (2, 3)}),  # a token that never comes
    ({"max_new_tokens": 5, "max_length": 6}, {"max_new_tokens": 5, "max_length": 7}),  # as the model's positions
    ({"max_length": 4096}, {"max_length": 7}),
    ({"num_beams": 3, "early_stopping": "never", "length_penalty": None}, {"sampler": Beam(3, 1.0, "never")}),
    ({"do_sample": True}, {"sampler": Sampling(1.0, 50)}),
    ({"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 4}, {"sampler": Sampling(0.7, 4, 0.8)}),
    ({"do_sample": True, "top_k": 0, "top_p": 1.0, "min_p": 0.1}, {"sampler": Sampling(min_p=0.1)}),
    ({"eos_token_id": 2, "min_new_tokens": 3, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5},
     {"stop_ids": (2,), "processors": (RepetitionPenalty(1.5), NoRepeatNgrams(2), MinimumLength(3))}),
    ({"eos_token_id": 2, "bad_words_ids": [[2], [3, 2], [999]], "suppress_tokens": [4]},
     {"stop_ids": (2,), "processors": (ForbiddenTokens([[3, 2]]), ForbiddenTokens([4]))}),
])  # fmt: skip
def test_what_a_decoder_is_given(llama, values, expected):
    assert defaults(of(llama, **values)) == {**PLAIN, **expected}


def test_what_an_encoder_decoder_is_given(tmp_path):
    for file in (GOLDEN / "bart").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    model = of(tmp_path, min_length=6, eos_token_id=2, forced_bos_token_id=3, forced_eos_token_id=2, bos_token_id=5,
               max_length=9)  # fmt: skip
    first = (MinimumLength(5), ForcedTokens({0: 3}))
    assert defaults(model) == {
        "sampler": "greedy", "stop_ids": (2,), "start_id": 5, "max_length": 9,
        "processors": (*first, ForcedTokens({7: 2})),
    }  # fmt: skip
    for given, last in (
        ({"max_new_tokens": 4}, 3),
        ({"max_length": 6}, 4),
        ({"max_new_tokens": 9, "max_length": 5}, 3),
    ):
        found = defaults(model, **given)
        assert found["processors"] == (*first, ForcedTokens({last: 2})) and found.items() >= given.items()
    answer = model.generate([[4, 5, 6]])
    assert answer.shape == (1, 8) and answer[0, 0] == 3 and answer[0, -1] == 2 and 2 not in answer[0, :5]
    assert defaults(of(tmp_path, forced_eos_token_id=2))["processors"] == (ForcedTokens({63: 2}),)


LANGUAGES = {"lang_to_id": {"<|en|>": 7, "<|de|>": 8}, "task_to_id": {"transcribe": 9, "translate": 10}}
NO_TIMES = {"no_timestamps_token_id": 11, "return_timestamps": False}


@pytest.mark.parametrize("values, start_id, chosen", [
    ({}, 3, None),
    ({"forced_decoder_ids": [[1, 5], [2, 6]]}, (3, 5, 6), None),
    ({"forced_decoder_ids": [[1, 11]], **NO_TIMES}, (3, 11), None),
    (NO_TIMES, (3, 11), None),
    ({**LANGUAGES, "language": "de"}, (3, 8, 9), None),
    ({**LANGUAGES, **NO_TIMES, "language": "<|en|>", "task": "translate"}, (3, 7, 10, 11), None),
    ({**LANGUAGES, "language": "en", "forced_decoder_ids": [[1, 5]]}, (3, 7, 9), None),
    ({**LANGUAGES, **NO_TIMES, "forced_decoder_ids": [[1, None], [2, 9]]}, 3, {0: [7, 8], 1: 9, 2: 11}),
    ({**LANGUAGES, "forced_decoder_ids": [[1, 8], [2, 9]]}, (3, 8, 9), None),
    ({**LANGUAGES, "task": "translate"}, 3, {0: [7, 8], 1: 10}),
    ({"forced_decoder_ids": [[1, None], [2, 9]]}, (3, 9), None),
    ({"language": "en", "task": "translation"}, 3, None),  # words of a model without their tables
])  # fmt: skip
def test_the_start_of_an_answer_of_whisper(values, start_id, chosen, whisper):
    settings = {"decoder_start_token_id": 3, "suppress_tokens": [20], "begin_suppress_tokens": [21, 2]}
    model = of(whisper, **settings, **values)
    later = [ForbiddenTokens([20]), ForbiddenTokens([21, 2], [len(chosen or ())])]
    found = defaults(model)
    assert found["start_id"] == start_id
    assert found["processors"] == (*later, *([ForcedTokens(chosen)] if chosen else []))


def test_a_last_token_is_forced_after_all_start_tokens(whisper):
    model = of(
        whisper, decoder_start_token_id=3, forced_decoder_ids=[[1, 5], [2, 6]], forced_eos_token_id=2, max_length=9
    )
    assert defaults(model)["processors"] == (ForcedTokens({5: 2}),)


@pytest.mark.parametrize("values", [
    {"forced_decoder_ids": [[2, 5]]},
    {"forced_decoder_ids": [[1, 999]]},
    {"forced_decoder_ids": 5},
    {"lang_to_id": [7]},
    {"task_to_id": None, "lang_to_id": {"<|en|>": 999}},
    {**LANGUAGES, "language": ["en", "de"]},
    {**LANGUAGES, "language": "fr"},
    {**LANGUAGES, "task": "sing"},
    {"return_timestamps": True},
])  # fmt: skip
def test_what_whisper_cannot_begin_with_is_warned_of(values, whisper):
    with pytest.warns(UserWarning, match=[*values][-1]):
        model = of(whisper, decoder_start_token_id=3, **values)
    assert defaults(model)["start_id"] == 3


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    for file in (GOLDEN / "whisper").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(
    "values",
    [
        {"forced_decoder_ids": [[1, 3]]}, {"guidance_scale": 1.5}, {"encoder_no_repeat_ngram_size": 3},
        {"num_beam_groups": 2}, {"num_beams": 2, "do_sample": True}, {"do_sample": True, "typical_p": 0.5},
        {"min_length": 3, "eos_token_id": 2}, {"forced_bos_token_id": 3}, {"repetition_penalty": -1.0},
        {"num_beams": "many"}, {"do_sample": True, "temperature": -1.0}, {"stop_strings": ["."]},
    ],
)  # fmt: skip
def test_what_generate_has_not_is_warned_of(llama, values):
    key = [*values][-1] if "min_length" not in values else "min_length"
    with pytest.warns(UserWarning) as found:
        model = of(llama, **values)
    ours = [warning for warning in found if ".json" in str(warning.message)]  # TensorFlow has some of its own
    assert len(ours) == 1 and ours[0].filename == __file__ and key in str(ours[0].message)
    assert model.generate([[5, 6]], 3).shape[1] <= 5


def test_an_option_that_is_given_takes_the_place_of_its_default(llama):
    model = of(llama, max_new_tokens=2, eos_token_id=2, num_beams=2, repetition_penalty=1.5)
    assert model.generate([[5, 6]]).shape == (1, 4)
    assert model.generate([[5, 6]], max_new_tokens=3, stop_ids=()).shape == (1, 5)
    plain = {"sampler": "greedy", "processors": (), "stop_ids": ()}
    (llama / "generation_config.json").unlink()
    np.testing.assert_array_equal(model.generate([[5, 6]], 4, **plain), load(llama).generate([[5, 6]], 4))
    with pytest.raises(TypeError):
        model.generate([[5]], prompt_ids=[[5]])


def test_old_keys_of_config_json(llama, tmp_path):
    """They count where the folder has no generation_config.json."""
    folder = write(tmp_path, {**LLAMA, "num_beams": 2, "eos_token_id": 3, "max_length": 20}, tensors(LLAMA))
    assert defaults(load(folder)) == {**PLAIN, "sampler": Beam(2), "stop_ids": (3,)}
    assert defaults(of(folder)) == PLAIN


def test_saved_and_carried_on(llama, tmp_path):
    model = of(llama, eos_token_id=2, pad_token_id=4, max_new_tokens=3)
    txf.checkpoints.save(model, tmp_path / "saved")
    saved = (tmp_path / "saved" / "generation_config.json").read_text()
    assert saved == (llama / "generation_config.json").read_text()
    assert defaults(load(tmp_path / "saved")) == defaults(model)
    txf.checkpoints.save(load(llama, pad_id=1), tmp_path / "padded")
    assert json.loads((tmp_path / "padded" / "generation_config.json").read_text())["pad_token_id"] == 1
    write_origin(model, tmp_path / "origin")
    other = txf.models.decoder_generator(11, 1, 8, 2)
    read_origin(other, tmp_path / "origin")
    third = txf.models.decoder_generator(11, 1, 8, 2)
    share_origin(other, third)
    assert defaults(third)["stop_ids"] == defaults(model)["stop_ids"]


def test_a_model_without_generate_has_none(tmp_path):
    of(write(tmp_path, BERT, tensors(BERT)), begin_suppress_tokens=[3])
