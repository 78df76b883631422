"""examples/translation_time.py: the loop without a cache, and the whole script."""

import json
import re

import keras
import numpy as np
import pytest
import translation_time
from script_cases import assert_kept, output

import keras_txf as txf


@pytest.fixture
def model():
    # Tied embeddings with random weights answer with one token over and over.
    return txf.models.encoder_decoder(30, 30, num_layers=2, dim=12, num_heads=3, tie_embeddings=False)


@pytest.mark.slow
def test_the_loop_without_a_cache_gives_the_tokens_of_generate(model, uncompiled):
    source_ids = np.array([[9, 4, 17, 28, 6]], "int32")
    tokens = keras.ops.convert_to_numpy(translation_time.NaiveLoop(model, 2, 7)(source_ids))
    np.testing.assert_array_equal(tokens, model.generate(source_ids, 7, start_id=translation_time.START))
    assert len(set(tokens[0].tolist())) > 1


@pytest.mark.slow
def test_what_is_timed_reads_one_sentence_of_the_length_asked_for(model, uncompiled):
    models = {"Transformer": model, "LSTM": txf.models.recurrent_encoder_decoder(30, 30, 1, 10, attention="additive")}
    for each in models.values():
        each.compile("adam", txf.training.TokenCrossEntropy(), run_eagerly=True)
    calls = translation_time.make_calls(models, 6, 30, 2)
    assert set(calls) == {*translation_time.TRAINING, *translation_time.INFERENCE}
    before = model.get_weights()
    for label in ("Transformer, forward", "LSTM, forward"):
        assert calls[label]().shape == (1, 6, 30)
    for label in ("Transformer, no cache", "Transformer, cache"):
        assert calls[label]().shape == (1, 6)
    assert all(map(np.array_equal, model.get_weights(), before))
    assert np.isfinite(calls["Transformer, step"]()) and np.isfinite(calls["LSTM, step"]())
    assert not all(map(np.array_equal, model.get_weights(), before))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["quick", "full"])
def test_the_two_models_have_about_as_many_parameters(size):
    _, *sizes = translation_time.SIZES[size]
    counts = [model.count_params() for model in translation_time.build(*sizes).values()]
    assert min(counts) > 0.95 * max(counts)


@pytest.mark.slow
def test_the_script_measures_draws_and_prints_a_table(tmp_path):
    printed = output("translation_time", "--out", tmp_path / "new", "--quick", "--repeats", 1)
    results = json.loads((tmp_path / "new" / "results.json").read_text())
    assert set(results) == {"lengths", "parameters", "seconds"} and results["lengths"] == [8, 16]
    assert set(results["parameters"]) == {"Transformer", "LSTM"}
    assert list(results["seconds"]) == [*translation_time.TRAINING, *translation_time.INFERENCE]
    assert all(len(times) == 2 and min(times) > 0 for times in results["seconds"].values())
    rows = [line for line in printed.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [len(row.split("|")) for row in rows] == [10, 10]
    assert_kept(tmp_path / "new", printed)
    assert (tmp_path / "new" / "translation_time.png").read_bytes().startswith(b"\x89PNG")
