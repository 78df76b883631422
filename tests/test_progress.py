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


def test_a_bar_counts(monkeypatch):
    terminal = in_terminal(monkeypatch)
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


def test_short_work_shows_no_bar_in_a_terminal(monkeypatch):
    terminal = in_terminal(monkeypatch)
    assert list(bar(range(3))) == [0, 1, 2]
    assert not terminal.getvalue().strip()


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
    pytest.importorskip("tensorflow_text")
    texts = [f"line {number}" for number in range(70)]
    tokenizer = txf.text.WordPieceTokenizer.train(texts, 60, verbose=1)
    assert "70line" in terminal.getvalue()
    examples = txf.text.next_token(texts, tokenizer)
    assert txf.text.bucket_lengths(examples, verbose=1)
    assert len(txf.text.counted(examples.batch(2), verbose=1)) == 35
    assert "35batch" in terminal.getvalue()
    model = txf.models.decoder_generator(tokenizer.vocab_size, 1, 8, 2)
    scores = txf.training.GenerationScores(
        np.ones((5, 2), "int32"), ["a"] * 5, tokenizer, batch_size=2, verbose=1, max_new_tokens=2
    )
    scores.score(model)
    assert "generating: 100%" in terminal.getvalue() and "3/3" in terminal.getvalue()


@pytest.mark.parametrize("name", ["generate", "chat", "translate", "fill", "rank"])
def test_tasks_show_bars(monkeypatch, name):
    pytest.importorskip("tensorflow_text")
    lines, small = ["the cat sat", "a dog ran"] * 5, dict(vocab_size=60, num_layers=1, dim=8, num_heads=2)
    short, one_each = small | {"vocab_size": 20}, dict(batch_size=1)
    if name in ("generate", "chat"):
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        task = txf.tasks.TextGenerator.from_scratch(lines, chat_template=template, **short)
        call = functools.partial(getattr(task, name), lines, max_new_tokens=1, **one_each)
    elif name == "translate":
        task = txf.tasks.TextToText.from_scratch(lines, lines, **short)
        call = functools.partial(task.generate, lines, max_new_tokens=1, **one_each)
    elif name == "fill":
        task = txf.tasks.MaskedLanguageModel.from_scratch(lines, **small)
        call = functools.partial(task.fill, ["the [MASK]"] * 10, **one_each)
    else:
        call = functools.partial(txf.tasks.PairClassifier.from_scratch(lines, lines, **small).rank, "a", lines, 1)
    terminal = in_terminal(monkeypatch)
    call(verbose=0)
    assert "/10" not in terminal.getvalue()
    call(verbose=1)
    assert "10/10" in terminal.getvalue()
    with pytest.raises(ValueError, match="`verbose` must be"):
        call(verbose=None)
