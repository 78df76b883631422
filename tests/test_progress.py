"""Bars count what is done, on standard error, where a person looks; errors close them."""

import functools
import io
import sys

import keras
import numpy as np
import pytest

import keras_txf as txf
from keras_txf.progress import bar, word

tqdm = pytest.importorskip("tqdm")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def in_terminal(monkeypatch):
    """Called in a test: between a fixture and its test pytest sets the stream anew."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    return sys.stderr


def test_a_bar_counts_except_for_short_work(monkeypatch):
    terminal = in_terminal(monkeypatch)
    assert list(bar(range(3))) == [0, 1, 2]
    assert not terminal.getvalue().strip()
    assert list(bar(range(3), unit="line", name="reading", verbose=1)) == [0, 1, 2]
    assert "reading: 100%" in terminal.getvalue() and "3/3" in terminal.getvalue()
    with bar(total=5, unit="batch", verbose=1) as shown:
        shown.update(2)
        shown.update(3)
    assert "5/5" in terminal.getvalue()


@pytest.mark.parametrize("verbose", [0, "auto"])
def test_silence(verbose, capfd):
    """Without a terminal, and for work of less than a second."""
    assert list(bar(range(3), verbose=verbose)) == [0, 1, 2]
    with word("compiling"):
        pass
    assert capfd.readouterr() == ("", "")


def test_a_word_is_taken_away(monkeypatch):
    terminal = in_terminal(monkeypatch)
    with pytest.raises(ZeroDivisionError), word("compiling"):
        assert terminal.getvalue() == "compiling"
        raise ZeroDivisionError
    assert terminal.getvalue() == "compiling\r         \r"


@pytest.mark.parametrize("verbose", [None, -1, 2, 1.5, "yes"])
def test_another_verbose_is_refused(verbose):
    with pytest.raises(ValueError, match="`verbose` must be"):
        bar(range(3), verbose=verbose)


def test_generate_says_that_it_compiles_once(monkeypatch):
    terminal = in_terminal(monkeypatch)
    model = txf.models.decoder_generator(11, 1, 8, 2)
    model.generate([[1, 2]], 2)
    assert ("generate compiles" in terminal.getvalue()) == (keras.backend.backend() != "torch")
    before = len(terminal.getvalue())
    model.generate([[3, 4]], 2)
    assert len(terminal.getvalue()) == before


def test_text_shows_bars(monkeypatch):
    terminal = in_terminal(monkeypatch)
    tf, _ = pytest.importorskip("tensorflow"), pytest.importorskip("tensorflow_text")
    texts = [f"line {number}" for number in range(70)]
    txf.text.WordPieceTokenizer.train(texts, 60, verbose=1)
    assert "70line" in terminal.getvalue()
    examples = tf.data.Dataset.from_tensor_slices(np.ones((70, 3), "int32"))
    examples = examples.filter(lambda row: row[0] > 0)  # whose number it does not know
    assert txf.text.bucket_lengths(examples, verbose=1)
    assert len(txf.text.counted(examples.batch(2), verbose=1)) == 35
    assert "35batch" in terminal.getvalue()


def test_scores_show_a_bar(monkeypatch, uncompiled):
    terminal = in_terminal(monkeypatch)
    model = txf.models.decoder_generator(11, 1, 8, 2)
    prompts, short = np.ones((5, 2), "int32"), dict(batch_size=2, max_new_tokens=1)
    scores = txf.training.GenerationScores(prompts, ["a"] * 5, detokenize=str, verbose=1, **short)
    scores.score(model)
    assert "generating: 100%" in terminal.getvalue() and "3/3" in terminal.getvalue()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports from TensorFlow")
def test_an_export_shows_its_steps(monkeypatch, tmp_path):
    monkeypatch.setitem(txf.text.export.__globals__, "_save", lambda *arguments: arguments[-1].update(3))
    terminal = in_terminal(monkeypatch)
    model, tokenizer = txf.models.encoder_classifier(260, 2, 1, 8, 2), txf.text.ByteTokenizer(length=4)
    for verbose in (0, 1):
        txf.text.export(model, tokenizer, tmp_path / str(verbose), verbose=verbose)
        assert ("3/3" in terminal.getvalue()) == bool(verbose)


def shown_by(name, lines, small):
    """A method of a task that shows a bar, with its arguments."""
    short = small | {"vocab_size": 20}
    if name in ("generate", "chat"):
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        task = txf.tasks.TextGenerator.from_scratch(lines, chat_template=template, **short)
        return functools.partial(getattr(task, name), lines, max_new_tokens=1, batch_size=1)
    if name == "translate":
        task = txf.tasks.TextToText.from_scratch(lines, lines, **short)
        return functools.partial(task.generate, lines, max_new_tokens=1, batch_size=1)
    if name == "fill":
        task = txf.tasks.MaskedLanguageModel.from_scratch(lines, **small)
        return functools.partial(task.fill, ["the [MASK]"] * 10, batch_size=1)
    return functools.partial(txf.tasks.PairClassifier.from_scratch(lines, lines, **small).rank, "a", lines, 1)


@pytest.mark.filterwarnings("ignore:Even though the `tf.config")  # pipelines are compiled whatever `uncompiled` says
@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ["generate", "rank", "chat", "fill", "translate"])
def test_tasks_show_bars(monkeypatch, uncompiled, name):
    pytest.importorskip("tensorflow_text")
    small = dict(vocab_size=60, num_layers=1, dim=8, num_heads=2)
    call = shown_by(name, ["the cat sat", "a dog ran"] * 5, small)
    terminal = in_terminal(monkeypatch)
    call(verbose=1)  # a bar shows ten batches or more
    assert "10/10" in terminal.getvalue()
    with pytest.raises(ValueError, match="`verbose` must be"):
        call(verbose=None)
