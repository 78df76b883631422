"""The examples that need data: what they say without it, and each from start to end on a few lines."""

import functools
import gzip
import hashlib
import json
import re
import types
import urllib.request

import classify_sentiment
import data
import generate_text
import keras
import numpy as np
import prefer_answers
import pretrain_encoder
import pytest
import translate
from script_cases import assert_kept, output, run, write_reviews

import keras_txf

SCRIPTS = ("classify_sentiment", "generate_text", "pretrain_encoder", "translate")


def test_a_local_copy_is_taken_as_it_is_and_names_what_it_lacks(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    assert data.find(tmp_path, "http://nowhere.invalid", {"a.txt": "0" * 64}) == {"a.txt": tmp_path / "a.txt"}
    with pytest.raises(SystemExit, match=r"^error: --data .* lacks b.txt, c.txt\.$"):
        data.find(tmp_path, "http://nowhere.invalid", dict.fromkeys(("a.txt", "b.txt", "c.txt")))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Empty, of downloads, by the proxies that there are now."""
    cached = functools.partial(keras.utils.get_file, cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(keras.utils, "get_file", cached)
    urllib.request.install_opener(None)
    yield
    urllib.request.install_opener(None)


def test_a_download_with_the_right_sum_is_taken_and_another_refused(cache, tmp_path):
    (tmp_path / "a.txt").write_text("text")
    paths = data.find(None, tmp_path.as_uri(), {"a.txt": hashlib.sha256(b"text").hexdigest()})
    assert paths["a.txt"].read_text() == "text" and paths["a.txt"] != tmp_path / "a.txt"
    with pytest.raises(SystemExit, match=r"^error: could not download file:.*/a.txt .* with --data DIR\.$"):
        data.find(None, tmp_path.as_uri(), {"a.txt": "0" * 64})


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_without_data_and_without_internet_one_sentence_says_so(script, cache, monkeypatch):
    for name, value in (("https_proxy", "http://127.0.0.1:9"), ("no_proxy", "")):
        monkeypatch.setenv(name, value)
    done = run(script)
    error = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert error.startswith("error: could not download https://") and error.endswith("with --data DIR.")


@pytest.mark.slow
def test_classify_sentiment(tmp_path):
    write_reviews(tmp_path)
    printed = output("classify_sentiment", "--data", tmp_path, "--out", tmp_path / "out", "--epochs", 2, "--batch", 8)
    accuracy = re.search(r"^Dev accuracy (\d\.\d{4})$", printed, re.M)
    assert 0 <= float(accuracy[1]) <= 1
    assert_kept(tmp_path / "out", printed, log=2)
    assert reload(tmp_path / "out", "sentiment")(np.array([[2, 3, 0]])).shape == (1, 2)
    again = output("classify_sentiment", "a good film", "--out", tmp_path / "out")
    assert re.fullmatch(r" *\d+\.\d% positive: a good film\n", again)


def test_a_sentence_to_judge_is_split_as_the_data_are():
    text = "It isn\u2019t good, it's TOO long-winded... I can't say we'd like the '60s!"
    words = "it is n't good , it 's too long winded i ca n't say we 'd like the 60s !".split()
    assert classify_sentiment.split(text) == words
    assert classify_sentiment.split(" ".join(words)) == words


def test_the_embedding_of_sentiment_begins_with_how_often_words_praise():
    ids = classify_sentiment.encode([["a", "good", "good"], ["a", "dull"], ["an", "odd"]], ["a", "good", "dull"])
    assert ids.tolist() == [[2, 3, 3], [2, 4, 0], [1, 1, 0]]
    tones = classify_sentiment.tone(ids, [1, 0, 1], vocab_size=5)
    praise, blame = np.array([1, 2, 2, 2, 1]), np.array([1, 1, 2, 1, 2])  # sentences with the word, and one more
    np.testing.assert_allclose(tones, np.log(praise / 8) - np.log(blame / 7))
    options = types.SimpleNamespace(rate=0.1)
    table = classify_sentiment.build(tones, options, steps=9).get_layer("embedding").token.embeddings
    np.testing.assert_allclose(table[:, 0], tones, rtol=1e-6)


@pytest.mark.slow
def test_generate_text(tmp_path, monkeypatch):
    monkeypatch.setitem(generate_text.SIZES, "cpu", {**generate_text.SIZES["cpu"], "layers": 1})
    (tmp_path / "input.txt").write_text("To be, or not to be.\n\n" * 50, encoding="utf-8")
    printed = output("generate_text", "--data", tmp_path, "--out", tmp_path / "out", "--steps", "1", "--length", "70")
    loss = re.search(r"^Validation cross-entropy (\d+\.\d{3})$", printed, re.M)
    assert 0 < float(loss[1]) < 10
    assert_kept(tmp_path / "out", printed, log=1)
    characters = (tmp_path / "out" / "characters.txt").read_text(encoding="utf-8")
    assert characters == "".join(sorted(set("To be, or not to be.\n")))
    logits = reload(tmp_path / "out", "shakespeare")(np.array([[0, 1, 2]]))
    assert logits.shape == (1, 3, len(characters))
    again = output("generate_text", "To be", "--out", tmp_path / "out", "--length", "9")
    assert len(again) == len("To be") + 9 + 1 and again.startswith("To be")
    learned = ("--out", tmp_path / "learned")
    printed = output("generate_text", "--data", tmp_path, *learned, "--steps", "1", "--positions", "learned")
    written = re.split(r"cross-entropy \d+\.\d{3}\n", printed)[1]
    assert len(written) == 64 + 1  # to the end of the context
    long = run("generate_text", "to be" * 13, *learned)
    assert long.returncode == 1 and long.stderr.endswith("learned positions end at 64 characters; the text has 65.\n")
    unknown = run("generate_text", "Zwölf", "--out", tmp_path / "out")
    assert unknown.returncode == 1 and unknown.stderr.endswith("error: the model has never seen Z f l w ö.\n")


def test_the_better_of_two_answers_has_fewer_letters_e():
    samples = np.zeros((3, 2, prefer_answers.PROMPT + prefer_answers.ANSWER), "int32")  # all "a"
    samples[0, 0, 20:22] = samples[1, 1, 30] = samples[0, 1, -1] = samples[2, :, 40] = 1
    samples[1, 0, :9] = 2  # of the prompt
    pairs = prefer_answers.judged(samples, "aeE")
    np.testing.assert_array_equal(pairs["token_ids"], [samples[0, ::-1], samples[1]])
    assert pairs["answer_mask"].sum(axis=-1).tolist() == [[prefer_answers.ANSWER] * 2] * 2


@pytest.mark.slow
def test_prefer_answers(tmp_path, monkeypatch):
    monkeypatch.setitem(generate_text.SIZES, "cpu", {**generate_text.SIZES["cpu"], "layers": 1})
    (tmp_path / "input.txt").write_text("To be, or not to be.\n\n" * 50, encoding="utf-8")
    small = ("--steps", 1, "--pairs", 40, "--held", 5, "--epochs", 1)
    printed = output("prefer_answers", "--data", tmp_path, "--out", tmp_path / "out", *small)
    line = r"^(.+): (\d+\.\d\d) letters e in 100 characters, validation cross-entropy (\d+\.\d{3})$"
    assert [name for name, *_ in re.findall(line, printed, re.M)] == ["before", *prefer_answers.METHODS]


@pytest.mark.slow
def test_translate(tmp_path, shallow):
    write_captions(tmp_path)
    printed = output("translate", "--data", tmp_path, "--out", tmp_path / "out", "--epochs", "1", "--dim", "16")
    assert printed.count("English    a dog runs .") == 6
    assert printed.splitlines()[-1].startswith("Validation perplexity ")
    assert_kept(tmp_path / "out", printed, log=1)
    logits = reload(tmp_path / "out", "translate")({"source_ids": np.array([[4, 5]]), "target_ids": np.array([[1]])})
    assert logits.shape == (1, 1, 8)  # padding, start, stop, unknown and four words
    page = tmp_path / "pages" / "dog.html"
    again = output("translate", "A dog runs.", "--out", tmp_path / "out", "--view", page)
    assert set(again.split()) <= {"<start>", "<unknown>", "ein", "hund", "rennt", "."}
    shown = json.loads(re.search(r"<script[^>]*json[^>]*>(.*?)</script>", page.read_text(), re.S)[1])
    assert shown["tokens"] == [*again.split(), "<stop>"][:40] and shown["source_tokens"] == ["a", "dog", "runs", "."]
    titles = [kind["title"] for kind in shown["kinds"]]
    assert titles == ["Encoder self-attention", "Decoder self-attention", "Cross-attention"]


@pytest.mark.slow
def test_the_view_of_a_translation_has_the_steps_that_chose_its_words(tmp_path, monkeypatch):
    english, german = (
        translate.tokenizer(translate.frequent([words] * 3)) for words in ("a dog runs .", "ein hund rennt .")
    )
    sizes = english.vocab_size, german.vocab_size
    model = keras_txf.models.encoder_decoder(*sizes, 1, dim=8, num_heads=2, share_embeddings=False)
    asked = []
    monkeypatch.setattr(keras_txf.visualize, "view_attention", lambda *arguments: asked.append(arguments))
    translate.view(tmp_path, "a dog", "ein <unknown> hund", model, english, german)
    translate.view(tmp_path, "a dog", " ".join(["hund"] * translate.LONGEST), model, english, german)
    scores, *rest = asked[0]
    assert rest == [["ein", "<unknown>", "hund", "<stop>"], ["a", "dog"], tmp_path]
    ids = {"source_ids": np.array([[4, 5]]), "target_ids": np.array([[1, 4, 3, 5]])}  # start, ein, unknown, hund
    for name, weights in keras_txf.visualize.attention_scores(model, ids).items():
        np.testing.assert_array_equal(scores[name], weights)
    assert asked[1][1] == ["hund"] * translate.LONGEST  # cut off: there is no step that chose to stop


def test_a_model_without_attention_has_no_view(tmp_path):
    words = translate.tokenizer(translate.frequent([]))
    model = keras_txf.models.recurrent_encoder_decoder(4, 4, num_layers=1, dim=8, attention=None)
    with pytest.raises(SystemExit, match="^error: --view: `model` must have an attention layer"):
        translate.view(tmp_path / "page.html", "a", "", model, words, words)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
def test_pretrain_encoder(tmp_path, shallow):
    write_captions(tmp_path)
    once = ("--pretraining-epochs", "1", "--epochs", "1", "--dim", "16")
    printed = output("pretrain_encoder", "--data", tmp_path, "--out", tmp_path / "out", *once)
    scored = re.findall(r"^BLEU \d+\.\d\d, chrF \d+\.\d\d on test 2016, (.*)$", printed, re.M)
    assert scored == ["from scratch", "pretrained"]
    assert (tmp_path / "out" / "translation.png").stat().st_size > 0
    assert_kept(tmp_path / "out", printed, pretraining=1, from_scratch=1, pretrained=1)
    again = output("pretrain_encoder", "A [MASK] runs [MASK]", "--out", tmp_path / "out")
    assert [len(re.findall(r"\S+ \d+%", line)) for line in again.splitlines()] == [5, 5]
    nothing = run("pretrain_encoder", "A dog", "--out", tmp_path / "out")
    reason = nothing.stderr.splitlines()[-1]
    assert nothing.returncode == 1 and reason.startswith("error: there is no [MASK] in 'A dog'")


@pytest.mark.slow
def test_a_translator_begins_with_the_encoder_of_the_masked_language_model():
    width = dict(num_layers=2, dim=8, num_heads=2, dropout=0.0)
    pretrained = keras_txf.models.masked_language_model(9, **width)
    translator = keras_txf.models.encoder_decoder(9, 9, share_embeddings=False, **width)
    before = {weight.path: keras.ops.convert_to_numpy(weight) for weight in translator.weights}
    pretrain_encoder.begin_with(translator, pretrained)
    ids = np.array([[4, 5, 6, 0]])
    both = ((pretrained, pretrained.input), (translator, translator.input["source_ids"]))
    states = [keras.Model(inputs, model.get_layer("encoder_1").output)(ids) for model, inputs in both]
    np.testing.assert_array_equal(*states)
    for weight in translator.weights:
        if weight.path.startswith(("decoder", "target")):
            np.testing.assert_array_equal(weight, before[weight.path])


@pytest.mark.slow
def test_tag_entities(tmp_path):
    lines = ["Cancer B-Disease", "is O", "bad O", "", "We O", "saw O", "colon B-Disease", "cancer I-Disease", ". O", ""]
    for name in ("train.tsv", "devel.tsv", "test.tsv"):
        (tmp_path / name).write_text("\n".join(line.replace(" ", "\t") for line in lines * 12))
    out = tmp_path / "out"
    printed = output("tag_entities", "--data", tmp_path, "--out", out, "--epochs", 8, "--batch", 4, "--rate", 0.01)
    assert float(re.search(r"Test F1 ([\d.]+) of entities", printed).group(1)) > 0.9
    assert json.loads((out / "scores.json").read_text())["f1"] > 0.9
    assert_kept(out, printed)
    again = output("tag_entities", "We saw colon cancer.", "--out", out)
    assert re.fullmatch(r" +7-19 +Disease +\d+\.\d% +colon cancer\n", again)


def write_captions(folder):
    for language, line in (("en", "A dog runs ."), ("de", "Ein Hund rennt .")):
        for name in ("train", "val", "test_2016_flickr"):
            with gzip.open(folder / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write(f"{line}\n" * 8)


def reload(folder, name):
    assert not list(folder.glob("unfinished.*"))
    return keras.models.load_model(folder / f"{name}.keras")
