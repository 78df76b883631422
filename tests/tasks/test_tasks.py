"""Every task learns from strings, answers in strings, and survives a round trip through a folder."""

import functools
import sys

import keras
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

import keras_txf as txf
from keras_txf.tasks.answers import whole_characters
from keras_txf.tasks.labels import MacroF1

tasks = txf.tasks
GOOD, BAD = ["a good film", "what a fine cast", "fine and good"], ["a bad film", "what a dull cast", "dull and bad"]
TEXTS, LABELS = (GOOD + BAD) * 4, (["+"] * 3 + ["-"] * 3) * 4
SETS, NUMBERS = [["good"], ["fine", "cast"], ["fine", "good"], [], ["cast"], []] * 4, [2.5, 9, 11, -3, -4.5, -6] * 4
SMALL = dict(vocab_size=60, num_layers=1, dim=16, num_heads=2, dropout=0.0)
LINES = ["the cat sat on the mat", "the dog sat on the rug", "a bird sang"] * 8
WORDS, TAGS = [["Ada", "is", "here"], ["who", "saw", "Ada"]] * 12, [["B-PER", "O", "O"], ["O", "O", "B-PER"]] * 12
SOURCES, TARGETS = ["one dog", "two cats", "one cat"] * 8, ["ein Hund", "zwei Katzen", "eine Katze"] * 8

MAKE = {
    "TextClassifier": lambda: tasks.TextClassifier.from_scratch(TEXTS, LABELS, **SMALL),
    "TextClassifier of sets": lambda: tasks.TextClassifier.from_scratch(
        TEXTS, SETS, problem_type="multi_label_classification", **SMALL
    ),
    "TextClassifier of a number": lambda: tasks.TextClassifier.from_scratch(
        TEXTS, NUMBERS, problem_type="regression", **SMALL
    ),
    "TokenClassifier": lambda: tasks.TokenClassifier.from_scratch(WORDS, TAGS, **SMALL),
    "PairClassifier": lambda: tasks.PairClassifier.from_scratch(SOURCES, TARGETS, ["no", "yes"], **SMALL),
    "PairClassifier of a score": lambda: tasks.PairClassifier.from_scratch(SOURCES, TARGETS, **SMALL),
    "TextEmbedder": lambda: tasks.TextEmbedder.from_scratch(SOURCES, TARGETS, **SMALL),
    "TextGenerator": lambda: tasks.TextGenerator.from_scratch(LINES, **{**SMALL, "vocab_size": 30}),
    "TextToText": lambda: tasks.TextToText.from_scratch(SOURCES, TARGETS, **{**SMALL, "vocab_size": 24}),
    "MaskedLanguageModel": lambda: tasks.MaskedLanguageModel.from_scratch(LINES, **SMALL),
}
DATA = {
    "TextClassifier": (TEXTS, LABELS), "TokenClassifier": (WORDS, TAGS),
    "TextClassifier of sets": (TEXTS, SETS), "TextClassifier of a number": (TEXTS, NUMBERS),
    "PairClassifier": (SOURCES, TARGETS, ["no", "yes", "yes"] * 8),
    "PairClassifier of a score": (SOURCES, TARGETS, [0, 0.5, 1] * 8),
    "TextEmbedder": (SOURCES, TARGETS), "TextGenerator": (LINES,), "TextToText": (SOURCES, TARGETS),
    "MaskedLanguageModel": (LINES,),
}  # fmt: skip
SCORES = {
    "TextClassifier of sets": {"f1"}, "TextClassifier of a number": {"spearman", "pearson"},
    "TextClassifier": {"accuracy", "f1"}, "PairClassifier": {"accuracy", "f1"},
    "TokenClassifier": {"accuracy", "precision", "recall", "f1"},
    "PairClassifier of a score": {"spearman", "pearson"}, "TextEmbedder": {"accuracy"}, "TextGenerator": {"perplexity"},
    "TextToText": {"perplexity", "token_accuracy", "bleu", "chrf"},
    "MaskedLanguageModel": {"perplexity", "token_accuracy"},
}  # fmt: skip


def ask(task):
    """An answer of a task that depends on its weights and tokenizers."""
    if isinstance(task, tasks.TextClassifier):
        return task.predict(["a fine film", "dull"], return_probabilities=task.labels is not None)
    if isinstance(task, tasks.TokenClassifier):
        return np.concatenate(task.predict(WORDS[:2], return_probabilities=True))
    if isinstance(task, tasks.PairClassifier):
        return task.predict(["one dog"], ["eine Katze"], return_probabilities=True)
    if isinstance(task, tasks.TextEmbedder):
        return task.encode(["one dog", "a much longer text of a cat"])
    if isinstance(task, tasks.MaskedLanguageModel):
        return np.array([score for _, score in task.fill("the [MASK] sat", k=3)])
    return task.generate(["the cat", "one dog"], max_new_tokens=4)


@pytest.fixture(scope="module")
def of():
    """The untrained task of a name, made once for all tests that do not change it."""
    return functools.cache(lambda name: MAKE[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_a_task_trains_and_is_the_same_after_a_folder(name, tmp_path, monkeypatch):
    keras.utils.set_random_seed(1)
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--token", "hf_secret"])
    task, data = MAKE[name](), DATA[name]
    answer, before = ask(task), task.evaluate(*data, batch_size=6)
    options = dict(epochs=4, batch_size=6, learning_rate=0.01, verbose=0)
    history = task.fit(*data, validation_data=data, **options).history
    after = task.evaluate(*data, batch_size=6)
    assert before.keys() == after.keys() == {"loss", *SCORES[name]}
    np.testing.assert_allclose([after[key] for key in after], [history[f"val_{key}"][-1] for key in after], rtol=1e-4)
    assert after["loss"] < before["loss"]
    trained = ask(task)
    assert isinstance(answer, list) or not np.array_equal(answer, trained)
    task.save(tmp_path / "new" / "folder")
    again = type(task).load(tmp_path / "new" / "folder")
    assert ask(again) == trained if isinstance(trained, list) else np.allclose(ask(again), trained, atol=1e-6)
    assert again.get_config() == task.get_config() and again.record == task.record
    card = (tmp_path / "new" / "folder" / "README.md").read_text()
    assert type(task).__name__ in card and f"val_{sorted(SCORES[name])[-1]} |" in card
    labels = getattr(task, "labels", None)
    assert not labels or f"Labels: {', '.join(labels)}." in card
    assert "on 24 examples by `train.py`:" in card
    assert "secret" not in card + (tmp_path / "new" / "folder" / "task.json").read_text()


@pytest.mark.slow
def test_callbacks_find_the_scores():
    stopping = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=0)
    data = (SOURCES[:3], TARGETS[:3])
    options = dict(epochs=5, learning_rate=1e-9, callbacks=[stopping], verbose=0)
    history = MAKE["TextToText"]().fit(*data, validation_data=data, **options)
    assert len(history.history["val_bleu"]) < 5


def test_a_folder_with_a_command_line_does_not_publish_it(of, tmp_path):
    """Earlier versions wrote the arguments of the script that trained the task."""
    task = of("TextClassifier")
    task.record = [{"examples": 3, "epochs": 1, "scores": {}, "command": "train.py --token hf_secret"}]
    task.save(tmp_path / "task")
    task.record = []
    (tmp_path / "task" / "README.md").unlink(missing_ok=True)
    tasks.TextClassifier.load(tmp_path / "task").save(tmp_path / "task")
    for name in ("README.md", "task.json"):
        assert "secret" not in (tmp_path / "task" / name).read_text()
    assert "on 3 examples:" in (tmp_path / "task" / "README.md").read_text()


def test_saving_again_keeps_other_files_and_a_card_by_hand(of, tmp_path):
    task = of("TextClassifier")
    for epochs in (3, 8):  # the card of `save` follows the training
        task.record = [{"examples": 9, "epochs": epochs, "scores": {"val_f1": 0.5}}]
        task.save(tmp_path / "task")
        assert f"Trained for {epochs} epochs" in (tmp_path / "task" / "README.md").read_text()
    task.record = []
    (tmp_path / "task" / "README.md").write_text("mine")
    (tmp_path / "task" / "notes").mkdir()
    (tmp_path / "task" / "notes" / "a.txt").write_text("mine, too")
    for _ in range(2):
        task.save(tmp_path / "task")
        assert (tmp_path / "task" / "README.md").read_text() == "mine"
    assert (tmp_path / "task" / "notes" / "a.txt").read_text() == "mine, too"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match="`folder` must be new, empty, or the folder of a task"):
        task.save(tmp_path / "thesis")
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["a.txt"]


def test_macro_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    targets, logits = rng.integers(0, 4, 50), rng.normal(size=(50, 4)).astype("float32")
    metric = MacroF1()
    for start in range(0, 50, 7):
        metric.update_state(targets[start : start + 7], logits[start : start + 7])
    expected = sklearn.metrics.f1_score(targets, logits.argmax(1), average="macro")
    np.testing.assert_allclose(float(metric.result()), expected, atol=1e-6)
    for targets, found in (
        ([0, 0, 2, 2], [0, 0, 2, 0]),
        ([2], [2]),
    ):  # the other classes have no targets and no predictions
        metric.reset_state()
        metric.update_state(targets, np.eye(4)[found])
        expected = sklearn.metrics.f1_score(targets, found, average="macro")
        np.testing.assert_allclose(float(metric.result()), expected, atol=1e-6)


@pytest.mark.drawn(3)
def test_class_weights_weigh_the_loss_of_one_fit_and_the_optimizer_of_the_caller_stays():
    task = MAKE["TextClassifier"]()
    texts, labels = [*GOOD[:1], *BAD], ["+", "-", "-", "-"]
    probabilities = task.predict(texts, return_probabilities=True)
    own = -np.log([probabilities[i, task.labels.index(label)] for i, label in enumerate(labels)])
    task.compile(keras.optimizers.SGD(1e-12), run_eagerly=True)
    for weight, weights in (({"+": 3.0}, [3, 1, 1, 1]), ("balanced", [2, 2 / 3, 2 / 3, 2 / 3]), (None, 1)):
        history = task.fit(texts, labels, class_weight=weight, epochs=1, verbose=0).history
        np.testing.assert_allclose(history["loss"][0], (own * weights).mean(), rtol=1e-5)
    assert isinstance(task.model.optimizer, keras.optimizers.SGD)
    with pytest.raises(ValueError, match="`learning_rate` must be left out"):
        task.fit(texts, labels, learning_rate=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextClassifier", "PairClassifier", "PairClassifier of a score", "TextEmbedder"])
def test_a_task_is_served(name, of, tmp_path, monkeypatch):
    task, is_pair = of(name), "Pair" in name
    monkeypatch.setattr(task, "max_length", 7 if is_pair else task.max_length)  # the last pair is longer
    first, second = [*SOURCES[:3], ""], [*TARGETS[:3], "eine Katze und zwei Katzen und ein Hund"]
    texts = (first, second) if is_pair else (first,)
    task.export(tmp_path / "served")
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    served = loaded.serve(*map(tf.constant, texts))
    if name == "TextEmbedder":
        np.testing.assert_allclose(served["embeddings"], task.encode(first), atol=1e-6)
        return
    found = task.predict(*texts, return_probabilities=True)
    np.testing.assert_allclose(served["score" if task.labels is None else "probabilities"], found, atol=1e-6)
    if task.labels is not None:
        assert [label.decode() for label in served["label"].numpy()] == task.predict(*texts)


@pytest.mark.slow
def test_search_is_the_order_of_all_products(tmp_path):
    task = MAKE["TextEmbedder"]()
    corpus = [f"{source} and {target}" for source in set(SOURCES) for target in set(TARGETS)]
    task.index(corpus)
    products = task.encode(["one dog", "zwei"]) @ task.encode(corpus).T
    for found, row in zip(task.search(["one dog", "zwei"], k=4), products):
        assert [text for text, _ in found] == [corpus[i] for i in np.argsort(-row, kind="stable")[:4]]
        np.testing.assert_allclose([score for _, score in found], np.sort(row)[::-1][:4], atol=1e-6)
    assert task.search("one dog", k=2) == task.search(["one dog"], k=2)[0]
    (tmp_path / "corpus.txt").write_text("\n".join(corpus))
    assert task.index(tmp_path / "corpus.txt").search("one dog") == task.index(corpus).search("one dog")
    np.testing.assert_allclose(np.linalg.norm(task.encode(corpus), axis=1), 1, atol=1e-5)
    found = task.search("one dog")
    for refused in (lambda: task.fit(SOURCES, TARGETS, epochs=0), lambda: task.index(["a"], batch_size=0)):
        with pytest.raises(ValueError):
            refused()
        assert task.search("one dog") == found
    task.fit(SOURCES, TARGETS, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="`index` must be called before `search`, and again after `fit`"):
        task.search("one dog")


def test_rank_orders_by_the_scores_of_pairs(of):
    task = of("PairClassifier of a score")
    ranked = task.rank("one dog", list(dict.fromkeys(TARGETS)))
    scores = [score for _, score in ranked]
    assert scores == sorted(scores, reverse=True)
    np.testing.assert_allclose(scores, [task.predict("one dog", text) for text, _ in ranked], atol=1e-6)


@pytest.mark.parametrize("token_types", [False, True])
def test_the_inputs_of_pairs_equal_predict(token_types, of):
    task = of("PairClassifier")
    if not token_types:
        model = txf.models.encoder_classifier(task.tokenizer.vocab_size, 2, 1, 16, 2, dropout=0.0)
        task = tasks.PairClassifier(model, task.tokenizer, ["no", "yes"])
    pairs = ["one dog", "two cats and one dog"], ["ein Hund", "zwei Katzen"]
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(task.model(task.inputs(*pairs))))
    np.testing.assert_allclose(probabilities, task.predict(*pairs, return_probabilities=True), atol=1e-6)
    assert isinstance(task.inputs(*pairs), dict) == token_types


def test_whole_characters_begin_every_longer_text():
    """Random bytes, of which many are no characters: what a stream has shown stays the beginning of the answer."""
    random, tokenizer = np.random.default_rng(0), txf.text.ByteTokenizer()
    values = np.array([0x61, 0xC3, 0xBC, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF])  # of a, ü, the euro, a smiley
    rows = 3 + random.choice(values, (200, 12))
    texts = [tokenizer.detokenize(rows[:, :end].tolist()) for end in range(1, 13)]
    for row, whole in enumerate(texts[-1]):
        shown = [whole_characters(text[row]) for text in texts]
        assert all(whole.startswith(text) for text in shown)
        assert all(len(text[row]) - len(short) <= 3 for text, short in zip(texts, shown))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextGenerator", "TextToText"])
@pytest.mark.parametrize("tokenizer", ["pieces", "bytes"])
def test_a_stream_is_the_answer_in_whole_characters(name, tokenizer):
    lines = ["größer über äöü", "ßüß äöü größe"] * 8
    bytes_ = txf.text.ByteTokenizer(start="<pad>", end="</s>") if tokenizer == "bytes" else None
    options = {**SMALL, "vocab_size": 30, "tokenizer": bytes_}
    if name == "TextGenerator":
        task = tasks.TextGenerator.from_scratch(lines, **options)
        task.fit(lines, epochs=30, learning_rate=0.03, verbose=0)
    else:
        task = tasks.TextToText.from_scratch(lines, lines, target_tokenizer=bytes_, **options)
        task.fit(lines, lines, epochs=30, learning_rate=0.03, verbose=0)
    asked = ["größer", "ßüß ä"]
    answers = task.generate(asked, max_new_tokens=20)
    pieces = list(task.generate(asked, max_new_tokens=20, stream=True))
    assert ["".join(parts) for parts in zip(*pieces)] == answers
    assert len(pieces) > 3 and "\ufffd" not in "".join(map("".join, pieces)) or "\ufffd" in "".join(answers)
    if name == "TextGenerator":
        whole = task.generate(asked, max_new_tokens=20, return_prompt=True)
        assert whole == [f"{text}{answer}" for text, answer in zip(asked, answers)]
        told = list(task.generate(asked[0], max_new_tokens=20, stream=True, return_prompt=True))
        assert told[0] == asked[0] and "".join(told) == whole[0]
        forced = {"max_new_tokens": 20, "start_id": [4, 5]}  # these tokens come before the text, not in the answer
        pieces = list(task.generate(asked, stream=True, **forced))
        assert task.generate(asked, **forced) == ["".join(parts) for parts in zip(*pieces)]


def test_each_side_has_padding_of_its_own():
    special = dict(special_tokens=("<s>", "<unk>", "</s>", "<p>"), pad_token="<p>", start="<s>", end="</s>")
    own = txf.text.SentencePieceTokenizer.train(TARGETS, 24, **special)
    task = tasks.TextToText.from_scratch(SOURCES, TARGETS, target_tokenizer=own, **SMALL | {"vocab_size": 24})
    inputs, targets = task._batches([["one dog"], ["ein Hund"]], 1, None)[0]
    assert [inputs["source_ids"][0, -1], inputs["target_ids"][0, -1], targets[0, -1]] == [0, 3, 3]
    assert [task.model.get_layer(f"{side}_embedding").pad_id for side in ("source", "target")] == [0, 3]
    assert task._compilation()[0].pad_id == 3


def test_fill_guesses_by_the_models_softmax(of):
    task = of("MaskedLanguageModel")
    [(token, score)] = task.fill(["the [MASK] sat"], k=1)[0]
    ids = np.array([[task.tokenizer.token_to_id(t) for t in ("[CLS]", "the", "[MASK]", "sat", "[SEP]")]])
    row = keras.ops.convert_to_numpy(keras.ops.softmax(task.model(ids)[0, 2]))
    assert token == task.tokenizer.id_to_token(int(row.argmax()))
    np.testing.assert_allclose(score, row.max(), atol=1e-6)
    for text in ("the cat sat", "[MASK] and [MASK]"):
        with pytest.raises(ValueError, match=r"`texts` must each have \[MASK\] once"):
            task.fill(text)


@pytest.mark.slow
def test_of_short_texts_one_token_is_hidden(of):
    task = of("MaskedLanguageModel")
    for _ in range(3):
        [(_, targets)] = task._batches([["cat", "dog"] * 8], 16, None)
        assert ((targets != task.tokenizer.pad_id).sum(axis=1) == 1).all()
    with pytest.raises(ValueError, match="`texts` must have a token to mask.*received .''"):
        task.fit(["", ""], epochs=1, verbose=0)


@pytest.mark.parametrize("name, longest", [(name, 2) for name in MAKE if "Pair" not in name] + [("PairClassifier", 4)])
def test_max_length_leaves_room_for_a_token(name, longest, of):
    task = of(name)
    config = {**task.get_config(), "max_length": longest - (name == "TextToText")}
    with pytest.raises(ValueError, match="`max_length` must leave room for a token of each text.*received"):
        type(task)(task.model, **txf.tasks.folder.tokenizers_of(task), **config)


@pytest.mark.parametrize("call, words", [
    (lambda task: task.fit(TEXTS, LABELS, epoch=2), "'epoch' is not an option of fit. Did you mean 'epochs'"),
    (lambda task: task.fit(TEXTS, LABELS, epochs=2, initial_epoch=3), "`initial_epoch` must be an integer from 0 to 2"),
    (lambda task: task.fit(TEXTS, LABELS, validation_split=0.001), "`validation_split` must leave examples"),
    (lambda task: task.fit(TEXTS, LABELS, validation_split=0.5, validation_data=(TEXTS, LABELS)), "`validation_split`"),
    (lambda task: task.fit(TEXTS, LABELS, columns=("text",)), "`columns` must be the names of 2 columns"),
    (lambda task: task.fit(TEXTS, LABELS, validation_data=(TEXTS, LABELS, [1] * 24)), "`validation_data`.*3 parts"),
    (lambda task: task.fit(TEXTS, LABELS, class_weight={"x": 1.0}), "`class_weight` must be 'balanced' or a dict"),
    (lambda task: task.predict([1]), "`texts` must hold strings; received 1 at index 0"),
    (lambda task: task.save("x", format="pickle"), "`format` must be one of"),
    (lambda task: task.save("x", format="huggingface"), "for a task that did not begin from a checkpoint"),
    (lambda task: tasks.TextClassifier(task.model, task.tokenizer, ["a", "b", "c"]), "`labels` must be 2"),
    (lambda task: tasks.TextClassifier(task.model, task.tokenizer, ["a", 1]), "`labels` must be at least two"),
    (lambda task: tasks.TextEmbedder(task.model, task.tokenizer).search("a"), "`index` must be called"),
], ids=range(13))  # fmt: skip
def test_bad_calls_raise_by_name(call, words, of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        call(of("TextClassifier"))


def test_columns_of_pairs_raise_by_name(of):
    for name, words in (("TextToText", ("sources", "targets")), ("PairClassifier", ("first", "second"))):
        for index, word in enumerate(words):
            columns = [["a", "b"], ["c", "d"], ["no", "yes"]][: 2 + (name == "PairClassifier")]
            columns[index][1] = 3
            with pytest.raises(ValueError, match=f"`{word}` must hold strings; received 3 at index 1"):
                of(name).fit(*columns)


def test_no_texts_have_no_answers(of):
    classifier, pairs, embedder = of("TextClassifier"), of("PairClassifier"), of("TextEmbedder")
    assert classifier.predict([]) == pairs.predict([], []) == pairs.rank("one dog", []) == []
    assert classifier.predict([], return_probabilities=True).shape == (0, 2)
    assert pairs.predict([], [], return_probabilities=True).shape == (0, 2) and embedder.encode([]).shape == (0, 16)


def test_a_task_takes_a_layer_as_attention_without_heads(uncompiled):
    """The layer replaces defaults of the task without an error: they are not the caller's options."""
    small = dict(vocab_size=40, num_layers=2, dim=8)
    attention = txf.layers.MultiHeadSelfAttention(2, causal=True)
    generator = tasks.TextGenerator.from_scratch(LINES, attention=attention, **small)
    assert generator.model.get_layer("decoder_1").attention.num_heads == 2
    assert isinstance(generator.generate("a", max_new_tokens=2), str)
    first = tasks.TextGenerator.from_scratch(LINES, attention=[attention, None], **small).model
    assert [first.get_layer(f"decoder_{i}").attention.num_heads for i in range(2)] == [2, 4]
    own = txf.layers.MultiHeadSelfAttention(2)
    classifier = tasks.TextClassifier.from_scratch(TEXTS, LABELS, attention=[own, own], **small)
    assert classifier.model.get_layer("encoder_1").attention.num_heads == 2
    for name, options in (("num_heads", {"num_heads": 8}), ("position", {"position": "rotary"})):
        with pytest.raises(ValueError, match=f"`{name}` does not go with a layer as `attention`"):
            tasks.TextClassifier.from_scratch(TEXTS, LABELS, attention=own, **options, **small)


@pytest.mark.parametrize("name, count", [("TextClassifier", 1), ("TextGenerator", 1), ("TextToText", 2)])
def test_learned_positions_are_as_many_as_the_tokens_of_an_example(name, count):
    options = {**SMALL, "vocab_size": 24 if name == "TextToText" else 40, "max_length": 12}
    made = getattr(tasks, name).from_scratch(*DATA[name], position_encoding="learned", position=None, **options)
    tokens = [layer for layer in made.model.layers if isinstance(layer, txf.layers.PositionalEmbedding)]
    assert made.max_length == 12 and [layer.max_length for layer in tokens] == [12] * count
