"""`txf.text.export`: a process without this package answers texts as Python does."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import drawing
import keras
import numpy as np
import pytest
from refusals import built, refused
from text_cases import CORPUS, START_AND_END, learnt

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, NoRepeatNgrams
from keras_txf.text import serving
from keras_txf.text.lazy_imports import tf

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports from TensorFlow")
slow = pytest.mark.slow
LABELS = ["bad", "neither", "good"]
LENGTH = 12


def two_hundred_texts():
    """Texts that are empty, blank or too long, and words of several scripts in any number."""
    random, words = np.random.default_rng(5), " ".join(CORPUS[:6]).split()
    drawn = [" ".join(random.choice(words, random.integers(0, 9))) for _ in range(192)]
    return ["", " ", "\u0301\u200d", "</s>[SEP]<pad>", "x" * 3000, " ".join(words), "狗" * 99, "🦊 \x00 \ufffd", *drawn]


TEXTS = two_hundred_texts()


def tokenizer():
    return learnt("unigram", start="<s>", length=LENGTH)


@functools.cache
def make(builder, *sizes, **options):
    size = learnt("unigram").vocab_size
    sizes = (size, size) if builder == "encoder_decoder" else (size, *sizes)
    model = getattr(txf.models, builder)(*sizes, **{"num_layers": 1, "dim": 16, "num_heads": 2, **options})
    return drawing.randomize(model, seed=4)


def classifier():
    return make("encoder_classifier", 3)


def embedder():
    encoder = make("encoder")
    return keras.Model(encoder.input, txf.layers.Pooling("mean")(encoder.output))


def classes(model, ids, labels):
    logits = drawing.array(model(ids))
    names = [labels[i] for i in logits.argmax(1)]
    return {"logits": logits, "label": names, "probabilities": keras.ops.softmax(logits)}


def embeddings(model, ids):
    return {"embeddings": drawing.array(model(ids))}


def generated(model, ids, **options):
    """A text and a score for each row; lists for several sequences."""
    answer = model.generate(ids, padded=False, return_scores=True, **options)
    return {"text": [learnt("unigram").detokenize(row) for row in answer.ids], "scores": answer.scores}


NEW = {"max_new_tokens": 7, "stop_ids": 3}
BEAMS = {**NEW, "sampler": Beam(3), "num_return_sequences": 2, "processors": [NoRepeatNgrams(2)]}
CASES = {  # name -> function of Python's answer, model, options
    "classify": (classes, classifier, {"labels": LABELS}),
    "embed": (embeddings, embedder, {}),
    "complete": (generated, lambda: make("decoder_generator"), NEW),
    "complete within a length": (
        generated, lambda: make("decoder_generator", position_encoding="learned", max_length=20),
        {"max_length": 15, "stop_sequences": [[3], [9, 4]]},
    ),
    "complete by beams": (generated, lambda: make("decoder_generator", position="rotary", window=5), BEAMS),
    "complete by contrast": (generated, lambda: make("decoder_generator"), {**NEW, "sampler": Contrastive(3)}),
    "translate": (generated, lambda: make("encoder_decoder"), {**NEW, "start_id": 2}),
    "translate by beams": (generated, lambda: make("encoder_decoder"), {**BEAMS, "start_id": 1}),
}  # fmt: skip

FRESH = """
import json, sys
sys.modules["keras_txf"] = None  # an import raises
import tensorflow as tf
import tensorflow_text  # registers its kernels

def plain(value):
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

def answers(served):
    lists = {key: x.to_list() if hasattr(x, "to_list") else x.numpy().tolist() for key, x in served.items()}
    return {key: plain(value) for key, value in lists.items()}

texts = json.load(open("texts.json"))
for name in sys.argv[1:]:
    model = tf.saved_model.load(name)
    ends = [0, 1, 3, 10, 40, len(texts)]
    batches = [model.serve(tf.constant(texts[start:end])) for start, end in zip(ends, ends[1:])]
    found = {"all": answers({key: tf.concat([batch[key] for batch in batches], 0) for key in batches[0]})}
    found["list"] = answers(model.serve(texts[:4]))
    assert model.serve.experimental_get_tracing_count() < 2, "a list of strings is traced"
    found["signature"] = answers(model.signatures["serving_default"](text=tf.constant(texts[:4])))
    found["ragged"] = answers(model.serve_ragged(tf.ragged.constant([texts[:3], [], texts[3:4]], dtype=tf.string)))
    found["none"] = answers(model.serve(tf.constant([], tf.string)))
    json.dump(found, open(name + ".json", "w"))
"""


def in_a_fresh_process(folder, names):
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", FRESH, *names]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}


def serve(folder, texts):
    model = tf.saved_model.load(folder)  # keeps its functions alive
    return model.serve(tf.constant(texts))


def assert_same(found, expected):
    assert set(found) == set(expected)
    for key, values in expected.items():
        if isinstance(values, list):
            assert found[key] == values
        else:
            np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=1e-4)


@slow
def test_a_fresh_process_answers_as_python(tmp_path):
    tf.config.run_functions_eagerly(True)  # compiling Python's loop would take most of the time
    expected = {
        name: answer(build(), tokenizer()(TEXTS), **options) for name, (answer, build, options) in CASES.items()
    }
    tf.config.run_functions_eagerly(False)
    for name, (_, build, options) in CASES.items():
        txf.text.export(build(), tokenizer(), tmp_path / name, **options)
    for name, found in in_a_fresh_process(tmp_path, list(CASES)).items():
        assert_same(found["all"], expected[name])
        first = {key: values[:4] for key, values in expected[name].items()}
        assert_same(found["list"], first)
        assert_same(found["signature"], first)
        for key, rows in found["ragged"].items():
            assert [len(row) for row in rows] == [3, 0, 1]
            assert_same({key: rows[0] + rows[2]}, {key: first[key]})
        assert set(found["none"]) == set(first) and not any(found["none"].values())


@slow
@pytest.mark.parametrize("kind, length, seed", [("characters", None, 1), ("bytes", "longest", 2)])
def test_two_tokenizers_without_a_length(tmp_path, kind, length, seed):
    """Texts of any length, if no limit cuts them. Some tokens of answers have no text."""
    source, target = learnt(kind, length=length, end=START_AND_END[kind][1]), learnt("WordPiece")
    model = txf.models.encoder_decoder(source.vocab_size, target.vocab_size + 60, 1, 16, 2)
    drawing.randomize(model, seed)
    txf.text.export(model, source, tmp_path / "m", target, max_new_tokens=5)
    texts = TEXTS[:4] + TEXTS[8:60]
    answers = model.generate(source(texts), max_new_tokens=5, padded=False)
    known = [[token for token in row if token < target.vocab_size] for row in answers]
    assert known != answers and any(known)
    served = serve(tmp_path / "m", texts)["text"]
    assert [text.decode() for text in served.numpy()] == [target.detokenize(row) for row in known]


@slow
def test_an_empty_prompt(tmp_path):
    """The answer to an empty prompt is empty, where `generate` raises; with a start token it is not."""
    model, ids = make("decoder_generator"), learnt("unigram", length="longest")
    texts = ["a fox", "", " "]
    txf.text.export(model, ids, tmp_path / "none", **NEW)
    txf.text.export(model, ids, tmp_path / "start", start_id=[2, 3], **NEW)
    without, start = (serve(tmp_path / folder, texts) for folder in ("none", "start"))
    expected = generated(model, ids(texts[:1]), **NEW)
    assert [text.decode() for text in without["text"].numpy()] == [*expected["text"], "", ""]
    np.testing.assert_allclose(without["scores"], [*expected["scores"], 0, 0], rtol=1e-4)
    expected = generated(model, ids(texts), start_id=[2, 3], **NEW)
    assert [text.decode() for text in start["text"].numpy()] == expected["text"] and "" not in expected["text"]
    assert serve(tmp_path / "none", [""])["text"].numpy().tolist() == [b""]


@slow
def test_seeds(tmp_path):
    model, options = make("decoder_generator"), {"max_new_tokens": 7, "sampler": "sampling"}
    keras.utils.set_random_seed(3)  # must not seed a model without a seed
    draws = []
    for folder, seed in (("one", 1), ("another", 2), ("none", None)):
        txf.text.export(model, tokenizer(), tmp_path / folder, seed=seed, **options)
        served = tf.saved_model.load(tmp_path / folder)
        draws.append([served.serve(tf.constant(TEXTS[:9]))["text"].numpy().tolist() for _ in range(2)])
    one, another, none = draws
    assert one[0] == one[1] and another[0] == another[1] and none[0] != none[1]
    keras.utils.set_random_seed(3)
    again = serve(tmp_path / "none", TEXTS[:9])["text"].numpy().tolist()
    assert len({str(draw) for draw in (one[0], another[0], *none, again)}) == 5


@slow
def test_a_compiled_loop_draws_as_python(tmp_path):
    model, options = make("decoder_generator"), {**NEW, "sampler": "sampling", "seed": 5, "num_return_sequences": 2}
    txf.text.export(model, tokenizer(), tmp_path / "m", **options, jit_compile=True)
    served = serve(tmp_path / "m", TEXTS)
    expected = generated(model, tokenizer()(TEXTS), **options)
    assert [[text.decode() for text in row] for row in served["text"].numpy()] == expected["text"]
    np.testing.assert_allclose(served["scores"], expected["scores"], rtol=1e-4, atol=1e-4)


SPECIAL = ["[PAD]", "[UNK]", "[START]", "[END]"]
LETTERS = txf.text.CharacterTokenizer([*SPECIAL, *"abcdefg"], special_tokens=SPECIAL, length=6)


def letters(**options):
    return txf.text.CharacterTokenizer.from_config({**LETTERS.get_config(), **options})


def refuses(words, kind="decoder_generator", tokenizer=LETTERS, model=None, **options):
    refused(lambda: txf.text.export(model or built(kind), tokenizer, "nowhere", **options), words)
    assert not os.path.exists("nowhere")


@pytest.mark.parametrize("words, options", [
    (["`tokenizer`", "BytePairTokenizer"], {"tokenizer": learnt("byte pairs")}),
    (["`target_tokenizer`", "BytePairTokenizer"],
     {"kind": "encoder_decoder", "target_tokenizer": learnt("byte pairs")}),
    (["`target_tokenizer`", "11 tokens", "259"], {"kind": "encoder_decoder", "target_tokenizer": learnt("bytes")}),
    (["`target_tokenizer`", "'decoder_generator"], {"target_tokenizer": LETTERS}),
    (["`tokenizer`", "11 tokens", "259"], {"tokenizer": learnt("bytes")}),
    (["`tokenizer`", "11 tokens", "259"], {"kind": "encoder_classifier", "tokenizer": learnt("bytes")}),
    (["`tokenizer`", "pad_id=0", "received 3"], {"tokenizer": letters(pad_token="[END]")}),
    (["`tokenizer`", "pad_id=0", "None"],
     {"kind": "encoder_classifier", "tokenizer": letters(pad_token=None, length=None)}),
    (["'stream'", "an option of `export`", "Known"], {"stream": True}),
    (["'stop_id'", "Did you mean 'stop_ids'"], {"stop_id": 2}),
    (["`labels`", "'decoder_generator"], {"labels": LABELS}),
    (["`stop_ids`", "'encoder_classifier", "labels"], {"kind": "encoder_classifier", "stop_ids": 2}),
    (["`multi_label`", "does not fit the model"], {"kind": "encoder_classifier", "multi_label": True}),
    (["`thresholds`", "does not fit the model"],
     {"kind": "encoder_classifier", "labels": LABELS, "thresholds": [0.5, 0.5, 0.5]}),
    (["`thresholds`", "list of 3 numbers between 0 and 1"],
     {"kind": "encoder_classifier", "labels": LABELS, "multi_label": True, "thresholds": [0.5, 1.5, 0.5]}),
    (["`labels`", "3, one for each class"], {"kind": "encoder_classifier", "labels": ["good", "bad"]}),
    (["`labels`", "different strings"], {"kind": "encoder_classifier", "labels": ["good", "bad", "bad"]}),
    (["one vector for each text", "Pooling"], {"kind": "encoder"}),
    (["token ids", "nothing else", "context"], {"kind": "decoder"}),
    (["`stop_ids`", "11"], {"stop_ids": 11}),
    (["`start_id`", "11"], {"start_id": 11}),
    (["`start_id`", "11"], {"kind": "encoder_decoder", "start_id": 11}),
    (["`max_length`", "6", "prompt of 6"], {"max_length": 6}),
    (["`length`", "max_length=9"], {"max_length": 9, "tokenizer": letters(length=None)}),
])  # fmt: skip
def test_refuses(tmp_path, monkeypatch, words, options):
    monkeypatch.chdir(tmp_path)
    refuses(words, **options)


@slow
def test_refuses_lengths_and_padding_that_a_model_does_not_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = dict(num_layers=1, dim=8, num_heads=2)
    short = txf.models.encoder_classifier(11, 3, **sizes, position_encoding="learned", max_length=5)
    refuses(["`length`", "max_length=5", "6"], model=short)
    refuses(["`length`", "max_length=5", "None"], model=short, tokenizer=letters(length=None))
    sizes_of_pair = {**sizes, "share_embeddings": "tokens", "position_encoding": "learned", "max_length": 5}
    short = txf.models.encoder_decoder(11, 11, **sizes_of_pair)
    refuses(["`length`", "max_length=5", "6"], model=short)
    short = txf.models.decoder_generator(11, **sizes, position_encoding="learned", max_length=8)
    refuses(["max_length=8", "6 prompt tokens", "max_new_tokens=3"], model=short, max_new_tokens=3)
    unpadded = txf.models.encoder_classifier(11, 3, **sizes, pad_id=None)
    refuses(["fixed `length`", "'longest'"], model=unpadded, tokenizer=letters(length="longest"))
    ids = keras.Input((None,), dtype="int32")
    nested = keras.Model(ids, txf.layers.Pooling("mean")(built("encoder")(ids)))
    refuses(["`tokenizer`", "11 tokens", "259"], model=nested, tokenizer=learnt("bytes"))
    refuses(["packed=False"], model=txf.models.decoder_generator(11, **sizes, packed=True))


@slow
def test_a_model_stays_as_it_was(tmp_path):
    model = txf.models.encoder_classifier(11, 3, num_layers=1, dim=8, num_heads=2, dropout=0.5)
    model.layers[1].trainable = False
    before, trainable = [variable.numpy() for variable in model.variables], [layer.trainable for layer in model.layers]
    txf.text.export(model, LETTERS, tmp_path / "m")
    assert [layer.trainable for layer in model.layers] == trainable
    for one, variable in zip(before, model.variables, strict=True):  # also the states of dropout's seeds
        np.testing.assert_array_equal(one, variable)


def test_a_sequential_model_that_was_never_called(tmp_path):
    layers = [
        keras.layers.Embedding(11, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3, name="logits"),
    ]
    model = keras.Sequential([keras.Input((6,), dtype="int32"), *layers])
    txf.text.export(model, LETTERS, tmp_path / "m")
    texts = ["abc", "", "cabbage"]
    np.testing.assert_allclose(serve(tmp_path / "m", texts)["logits"], model(LETTERS(texts)), atol=1e-6)
    unbuilt = keras.Sequential(layers[:1])
    refused(lambda: txf.text.export(unbuilt, LETTERS, tmp_path / "n"), ["`model`", "built", "Sequential"])
    refused(lambda: txf.text.export(model, LETTERS, 3), ["`folder`", "3"])


def test_refuses_another_backend(monkeypatch, tmp_path):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    refused(lambda: txf.text.export(built("encoder_classifier"), LETTERS, tmp_path / "m"), ["TensorFlow", "'jax'"])


@slow
def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    folder, model = tmp_path / "deep" / "model", built("encoder_classifier")
    txf.text.export(model, LETTERS, folder)
    refused(lambda: txf.text.export(model, LETTERS, folder), ["`folder`", "exists", "overwrite=True"])
    txf.text.export(model, LETTERS, folder, labels=LABELS, overwrite=True)
    assert "label" in serve(folder, ["abc"])

    def fail(module, path, signatures):
        (pathlib.Path(path) / "assets").mkdir()
        raise OSError("the disk is full")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(ValueError, match="`folder` must be a writable path; .*full"):
        txf.text.export(model, LETTERS, folder, overwrite=True)
    assert os.listdir(folder.parent) == ["model"] and (folder / "saved_model.pb").is_file()

    def forbid(module, path, signatures):
        raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(tf.saved_model, "save", forbid)
    with pytest.raises(ValueError, match="`folder` must be a writable path") as error:
        txf.text.export(model, LETTERS, folder, overwrite=True)
    assert "Permission denied" in str(error.value) and "unfinished" not in str(error.value)
    monkeypatch.undo()
    (tmp_path / "mine").mkdir()
    refused(lambda: txf.text.export(model, LETTERS, tmp_path / "mine", overwrite=True), ["`folder`", "no SavedModel"])


@slow
def test_a_prompt_keeps_what_is_padding_to_the_tokenizer_alone(tmp_path):
    ids = letters(pad_token="[START]", start="[START]")
    model = txf.models.decoder_generator(11, 1, 8, 2, pad_id=None)
    txf.text.export(model, ids, tmp_path / "m", max_new_tokens=5)
    prompts = [[ids.token_to_id("[START]"), *row] for row in ids.tokenize(["abc", "g"]).to_list()]
    answers = model.generate(prompts, 5, padded=False)
    assert [text.decode() for text in serve(tmp_path / "m", ["abc", "g"])["text"].numpy()] == ids.detokenize(answers)


@slow
def test_answers_begin_and_end_as_the_tokenizer_says(tmp_path):
    """`start` and `end` of the tokenizer replace the defaults of `generate`."""
    first, last = LETTERS.token_to_id("[START]"), LETTERS.token_to_id("[END]")
    one, texts = letters(start="[START]", end="[END]"), ["abc", "g", "dead"]
    several = letters(start=["[START]", "[END]"], end="[END]")  # the model has learnt to continue with the other tokens
    for kind, ids, prompts, options in (
        ("encoder_decoder", one, one(texts), {"start_id": first}),
        ("encoder_decoder", several, several(texts), {"start_id": first}),
        ("decoder_generator", one, letters(start="[START]")(texts), {}),
    ):
        model = built(kind)
        txf.text.export(model, ids, tmp_path / kind, max_new_tokens=12, overwrite=True)
        answers = model.generate(prompts, 12, stop_ids=last, padded=False, **options)
        assert [text.decode() for text in serve(tmp_path / kind, texts)["text"].numpy()] == ids.detokenize(answers)
        txf.text.export(model, ids, tmp_path / kind, max_new_tokens=12, stop_ids=[], overwrite=True, **options)
        answers = model.generate(prompts, 12, padded=False, **options)
        assert [text.decode() for text in serve(tmp_path / kind, texts)["text"].numpy()] == ids.detokenize(answers)


@pytest.mark.parametrize("thresholds", [None, [0.45, 0.55, 0.5]])
def test_several_labels_of_a_text_stand_at_their_places(thresholds):
    answer = serving.classifier(make("encoder_classifier", 3), tokenizer(), LABELS, True, thresholds)
    found = {name: value.numpy() for name, value in answer(tf.constant(["a fox", "the lazy dog", "x"])).items()}
    shares = 1 / (1 + np.exp(-found["logits"].astype("float64")))
    np.testing.assert_allclose(found["probabilities"], shares, atol=1e-6)
    least = thresholds or [0.5] * 3
    expected = [[label if share > x else "" for label, share, x in zip(LABELS, row, least)] for row in shares]
    assert [[label.decode() for label in row] for row in found["labels"]] == expected


@pytest.mark.parametrize("labels", [None, LABELS])
def test_numbers_of_a_model_in_bfloat16_are_float32(labels):
    model = make("encoder_classifier", 3, dtype="mixed_bfloat16")
    answers = [serving.classifier(model, tokenizer(), labels)(tf.constant(["a fox"]))]
    answers.append(serving.pair_classifier(model, tokenizer(), labels, "</s>")(tf.constant(["a"]), tf.constant(["b"])))
    for answer in answers:
        assert answer.pop("label", tf.constant("")).dtype == tf.string
        assert {value.dtype for value in answer.values()} == {tf.float32}
