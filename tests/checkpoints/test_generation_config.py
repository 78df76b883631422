"""`generation_config.json` as the defaults of `generate`, key by key."""

import json
import shutil

import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from folders import BERT, LLAMA, tensors, write

import keras_txf as txf
from keras_txf.checkpoints.checkpoint_info import read_checkpoint_info, share_checkpoint_info, write_checkpoint_info
from keras_txf.checkpoints.generation_config import load_generate_defaults
from keras_txf.generation import (
    Beam,
    ForbiddenTokens,
    ForcedTokens,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
)
from keras_txf.generation.option_tables import with_defaults

load = txf.checkpoints.load
NAMES = ["max_new_tokens", "max_length", "sampler", "stop_ids", "start_id", "processors"]
PLAIN = {"sampler": "greedy", "processors": ()}


def defaults(model, **given):
    return with_defaults(model, given, NAMES)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write(tmp_path_factory.mktemp("llama"), LLAMA, tensors(LLAMA))


@pytest.fixture(scope="module")
def models(llama):
    """Models that are loaded once, to be given the defaults of one file after the other."""
    return {"llama": load(llama), **{name: load(GOLDEN / name) for name in ("bart", "whisper")}}


def give(model, folder, **values):
    """The model, with the defaults of such a file."""
    (folder / "generation_config.json").write_text(json.dumps(values))
    load_generate_defaults(model, folder, {})
    return model


@pytest.mark.parametrize("values, expected", [
    ({}, {}), ({"max_length": 20, "num_beams": 1, "top_k": 50, "temperature": 0.6, "repetition_penalty": 1.0}, {}),
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
def test_what_a_decoder_is_given(models, values, expected, tmp_path):
    assert defaults(give(models["llama"], tmp_path, **values)) == {**PLAIN, **expected}


def test_what_an_encoder_decoder_is_given(models, tmp_path, uncompiled):
    model = give(models["bart"], tmp_path, min_length=6, eos_token_id=2, forced_bos_token_id=3, forced_eos_token_id=2,
                 bos_token_id=5, max_length=9)  # fmt: skip
    first = (MinimumLength(5), ForcedTokens({0: 3}))
    assert defaults(model) == {
        "sampler": "greedy", "stop_ids": (2,), "start_id": 5, "max_length": 9,
        "processors": (*first, ForcedTokens({7: 2})),
    }  # fmt: skip
    for given, last in (
        ({"max_new_tokens": 4}, 3), ({"max_length": 6}, 4), ({"max_new_tokens": 9, "max_length": 5}, 3),
    ):  # fmt: skip
        found = defaults(model, **given)
        assert found["processors"] == (*first, ForcedTokens({last: 2})) and found.items() >= given.items()
    answer = model.generate([[4, 5, 6]])
    assert answer.shape == (1, 8) and answer[0, 0] == 3 and answer[0, -1] == 2 and 2 not in answer[0, :5]
    assert defaults(give(model, tmp_path, forced_eos_token_id=2))["processors"] == (ForcedTokens({63: 2}),)


LANGUAGES = {"lang_to_id": {"<|en|>": 7, "<|de|>": 8}, "task_to_id": {"transcribe": 9, "translate": 10}}
NO_TIMES = {"no_timestamps_token_id": 11, "return_timestamps": False}


@pytest.mark.parametrize("values, start_id, chosen", [
    ({}, 3, None), ({"forced_decoder_ids": [[1, 5], [2, 6]]}, (3, 5, 6), None),
    ({"forced_decoder_ids": [[1, 11]], **NO_TIMES}, (3, 11), None), (NO_TIMES, (3, 11), None),
    ({**LANGUAGES, "language": "de"}, (3, 8, 9), None),
    ({**LANGUAGES, **NO_TIMES, "language": "<|en|>", "task": "translate"}, (3, 7, 10, 11), None),
    ({**LANGUAGES, "language": "en", "forced_decoder_ids": [[1, 5]]}, (3, 7, 9), None),
    ({**LANGUAGES, **NO_TIMES, "forced_decoder_ids": [[1, None], [2, 9]]}, 3, {0: [7, 8], 1: 9, 2: 11}),
    ({**LANGUAGES, "forced_decoder_ids": [[1, 8], [2, 9]]}, (3, 8, 9), None),
    ({**LANGUAGES, "task": "translate"}, 3, {0: [7, 8], 1: 10}),
    ({"forced_decoder_ids": [[1, None], [2, 9]]}, (3, 9), None),
    ({"language": "en", "task": "translation"}, 3, None),  # words of a model without their tables
])  # fmt: skip
def test_the_start_of_an_answer_of_whisper(values, start_id, chosen, models, tmp_path):
    settings = {"decoder_start_token_id": 3, "suppress_tokens": [20], "begin_suppress_tokens": [21, 2]}
    later = [ForbiddenTokens([20]), ForbiddenTokens([21, 2], [len(chosen or ())])]
    found = defaults(give(models["whisper"], tmp_path, **settings, **values))
    assert found["start_id"] == start_id
    assert found["processors"] == (*later, *([ForcedTokens(chosen)] if chosen else []))


def test_a_last_token_is_forced_after_all_start_tokens(models, tmp_path):
    values = {"decoder_start_token_id": 3, "forced_decoder_ids": [[1, 5], [2, 6]], "forced_eos_token_id": 2}
    model = give(models["whisper"], tmp_path, max_length=9, **values)
    assert defaults(model)["processors"] == (ForcedTokens({5: 2}),)


@pytest.mark.parametrize("values", [
    {"forced_decoder_ids": [[2, 5]]}, {"forced_decoder_ids": [[1, 999]]}, {"forced_decoder_ids": 5},
    {"lang_to_id": [7]}, {"task_to_id": None, "lang_to_id": {"<|en|>": 999}}, {**LANGUAGES, "language": ["en", "de"]},
    {**LANGUAGES, "language": "fr"}, {**LANGUAGES, "task": "sing"}, {"return_timestamps": True},
])  # fmt: skip
def test_what_whisper_cannot_begin_with_is_warned_of(values, models, tmp_path):
    with pytest.warns(UserWarning, match=[*values][-1]):
        model = give(models["whisper"], tmp_path, decoder_start_token_id=3, **values)
    assert defaults(model)["start_id"] == 3


@pytest.mark.parametrize("key, values, kept", [
    ("forced_decoder_ids", {"forced_decoder_ids": [[1, 3]]}, {}), ("guidance_scale", {"guidance_scale": 1.5}, {}),
    ("num_beam_groups", {"num_beam_groups": 2}, {}), ("forced_bos_token_id", {"forced_bos_token_id": 3}, {}),
    ("encoder_no_repeat_ngram_size", {"encoder_no_repeat_ngram_size": 3}, {}),
    ("do_sample", {"num_beams": 2, "do_sample": True}, {"sampler": Beam(2)}),
    ("typical_p", {"do_sample": True, "typical_p": 0.5}, {"sampler": Sampling(1.0, 50)}),
    ("temperature", {"do_sample": True, "temperature": -1.0}, {}), ("num_beams", {"num_beams": "many"}, {}),
    ("min_length", {"min_length": 3, "eos_token_id": 2}, {"stop_ids": (2,)}),
    ("repetition_penalty", {"repetition_penalty": -1.0}, {}), ("stop_strings", {"stop_strings": [""]}, {}),
    ("stop_strings", {"stop_strings": ["."], "num_beams": 2}, {"sampler": Beam(2)}),
])  # fmt: skip
def test_what_generate_has_not_is_warned_of(models, key, values, kept, tmp_path):
    with pytest.warns(UserWarning, match=f"^generation_config.json asks .*{key}"):
        model = give(models["llama"], tmp_path, **values)
    assert defaults(model) == {**PLAIN, **kept}


def test_stop_strings_end_the_answers_of_calls_with_a_tokenizer(models, tmp_path, uncompiled):
    model, letters = give(models["llama"], tmp_path, stop_strings=["b"], max_new_tokens=4), "bbbbbbbbbbbb".__getitem__
    assert len(model.generate([[5]], tokenizer=lambda ids: "".join(map(letters, ids)))[0]) == 2
    assert len(model.generate([[5]], stop_strings=())[0]) == 5
    with pytest.warns(UserWarning, match=r"^The model's stop strings, \('b',\), do not end answers") as found:
        assert len(model.generate([[5]])[0]) == 5 and callable(model.make_generate_function(longest_prompt=2))
    assert [warning.filename for warning in found] == [__file__] * 2


def test_load_warns_its_caller_once(llama, tmp_path):
    folder = shutil.copytree(llama, tmp_path / "folder")
    (folder / "generation_config.json").write_text('{"guidance_scale": 1.5, "num_beam_groups": 2}')
    with pytest.warns(UserWarning) as found:
        load(folder)
    ours = [warning for warning in found if ".json" in str(warning.message)]  # TensorFlow gives other warnings
    assert [warning.filename for warning in ours] == [__file__] and "num_beam_groups" in str(ours[0].message)


def test_an_option_of_the_caller_replaces_its_default(models, tmp_path, uncompiled):
    values = {"max_new_tokens": 2, "eos_token_id": 2, "num_beams": 2, "repetition_penalty": 1.5}
    model = give(models["llama"], tmp_path, **values)
    assert model.generate([[5, 6]]).shape == (1, 4)
    assert model.generate([[5, 6]], max_new_tokens=3, stop_ids=()).shape == (1, 5)
    found = model.generate([[5, 6]], 4, sampler="greedy", processors=(), stop_ids=())
    np.testing.assert_array_equal(found, give(model, tmp_path).generate([[5, 6]], 4))
    with pytest.raises(TypeError):
        model.generate([[5]], prompt_ids=[[5]])


def test_old_keys_of_config_json(tmp_path):
    """They count where the folder has no generation_config.json."""
    folder = write(tmp_path, {**LLAMA, "num_beams": 2, "eos_token_id": 3, "max_length": 20}, tensors(LLAMA))
    assert defaults(load(folder)) == {**PLAIN, "sampler": Beam(2), "stop_ids": (3,)}
    (folder / "generation_config.json").write_text("{}")
    assert defaults(load(folder)) == PLAIN


def test_saved_and_carried_on(llama, tmp_path):
    folder = shutil.copytree(llama, tmp_path / "folder")
    text = json.dumps({"eos_token_id": 2, "pad_token_id": 4, "max_new_tokens": 3})
    (folder / "generation_config.json").write_text(text)
    model = load(folder)
    txf.checkpoints.save(model, tmp_path / "saved")
    assert (tmp_path / "saved" / "generation_config.json").read_text() == text
    assert defaults(load(tmp_path / "saved")) == defaults(model)
    txf.checkpoints.save(load(folder, pad_id=1), tmp_path / "padded")
    assert json.loads((tmp_path / "padded" / "generation_config.json").read_text())["pad_token_id"] == 1
    write_checkpoint_info(model, tmp_path / "origin")
    other, third = (txf.models.decoder_generator(11, 1, 8, 2) for _ in range(2))
    read_checkpoint_info(other, tmp_path / "origin")
    share_checkpoint_info(other, third)
    assert defaults(third)["stop_ids"] == defaults(model)["stop_ids"] == (2,)


def test_a_model_without_generate_has_no_defaults(tmp_path):
    folder = write(tmp_path, BERT, tensors(BERT))
    (folder / "generation_config.json").write_text('{"begin_suppress_tokens": [3]}')
    load(folder)
