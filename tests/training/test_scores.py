"""GenerationScores against sacrebleu itself, with fake models and tokenizers."""

import inspect
import sys

import keras
import numpy as np
import pytest
import sacrebleu
from refusals import refused

import keras_txf as txf
from keras_txf.generation.option_tables import GenerateOptions
from keras_txf.models.generative import Generator
from keras_txf.models.seq2seq_model import Seq2Seq
from keras_txf.training import scores

WORDS = "- a dog runs in the snow . cat sleeps here now".split()
STOP = 11
SOURCES = [[1, 2, 3, 4, 5, 6, 7], [1, 8, 9], [1, 2, 3, 10, 7], [1, 8, 3, 4, 5], [1, 2]]
TEXTS = [" ".join(WORDS[i] for i in source) for source in SOURCES]


class Echo:
    """Generates its sources, the word "dog" as "cat", and notes what it was asked."""

    def __init__(self):
        self.calls = []

    def generate(self, sources, **options):
        self.calls.append(([list(source) for source in sources], options))
        return [[8 if i == 2 else int(i) for i in source] + [STOP] for source in sources]


class Tokenizer:
    def detokenize(self, ids):
        return " ".join(WORDS[i] for i in ids if i != STOP)


def expected(tokenize="13a", lowercase=False, references=TEXTS):
    texts = [text.replace("dog", "cat") for text in TEXTS]
    bleu = sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize, lowercase=lowercase)
    return {"val_bleu": bleu.score, "val_chrf": sacrebleu.corpus_chrf(texts, [references]).score}


def scoring(**options):
    return txf.training.GenerationScores(
        **{"inputs": SOURCES, "references": TEXTS, "detokenize": Tokenizer(), **options}
    )  # fmt: skip


def test_scores_are_those_of_sacrebleu():
    result = scoring().score(Echo())
    assert result == pytest.approx(expected())
    assert 0 < result["val_bleu"] < 100 and 0 < result["val_chrf"] < 100
    echoed = [text.replace("dog", "cat") for text in TEXTS]
    perfect = scoring(references=echoed, detokenize=Tokenizer().detokenize)
    assert perfect.score(Echo()) == pytest.approx({"val_bleu": 100.0, "val_chrf": 100.0})


def test_tokenization_and_case_are_chosen():
    references = [text.replace(" .", ".").title() for text in TEXTS]
    assert len({expected(how, references=references)["val_bleu"] for how in ("13a", "none")}) == 2
    for how in ("13a", "none", "char"):
        scores = scoring(references=references, tokenize=how, prefix="")
        assert scores.score(Echo())["bleu"] == pytest.approx(expected(how, references=references)["val_bleu"])
    found = scoring(references=references, lowercase=True).score(Echo())
    assert found["val_bleu"] == pytest.approx(expected(lowercase=True, references=references)["val_bleu"])


def test_rows_go_in_full_batches_of_like_length():
    model = Echo()
    scores = scoring(batch_size=2, stop_ids=STOP, max_new_tokens=9)
    assert scores.generate(model) == [text.replace("dog", "cat") for text in TEXTS]
    assert [[len(source) for source in sources] for sources, _ in model.calls] == [[2, 3], [5, 5], [7, 7]]
    assert all(options == {"padded": False, "stop_ids": STOP, "max_new_tokens": 9} for _, options in model.calls)
    found = scoring(inputs=np.array([[1, 2, 3], [4, 5, 6]]), references=["a", "b"]).generate(Echo())
    assert found == ["a cat runs", "in the snow"]


@pytest.mark.slow
def test_other_callbacks_find_the_scores(tmp_path, capsys):
    model = txf.models.encoder_decoder(12, 12, 1, 8, 2)
    model.compile("sgd", txf.training.TokenCrossEntropy(), run_eagerly=True)
    inputs, targets = txf.training.teacher_forcing(np.array([[1, 2], [3, 4]]), np.array([[1, 5, 6], [1, 7, 8]]))
    only_one = [lambda logits, history: logits * 0 + keras.ops.one_hot(1, 12)]
    options = {"samples": 1, "max_new_tokens": 3, "processors": only_one}
    scores = scoring(inputs=SOURCES[:2], references=TEXTS[:2], **options)
    callbacks = [
        scores,
        keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=1),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", "val_chrf", mode="max", save_weights_only=True),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    history = model.fit(inputs, targets, epochs=5, verbose=0, callbacks=callbacks).history
    assert len(history["val_bleu"]) == len(history["val_chrf"]) == 2  # the same each time: early stopping has seen it
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "epoch,loss,val_bleu,val_chrf"
    assert capsys.readouterr().out == 2 * f"\nreference  {TEXTS[0]}\nmodel      a a a\n"


REFUSED = [
    ({"inputs": 3}, ["`inputs`", "3"]), ({"inputs": [1, 2, 3, 4, 5]}, ["`inputs`", "rows", "[1, 2, 3, 4, 5]"]),
    ({"inputs": [["a"]] * 5}, ["`inputs`", "'a'"]), ({"inputs": np.ones((5, 2))}, ["`inputs`", "1."]),
    ({"references": "texts"}, ["`references`", "'texts'"]),
    ({"references": [*TEXTS[:4], b"a"]}, ["`references`", "b'a'"]),
    ({"references": TEXTS[:4]}, ["must have the same number of items, at least 1; received 5 and 4"]),
    ({"detokenize": "nope"}, ["`detokenize`", "'nope'"]),
    ({"detokenize": Tokenizer}, ["`detokenize`", "not its class", "Tokenizer"]),
    ({"tokenize": "nope"}, ["`tokenize`", "13a", "'nope'"]), ({"samples": -1}, ["`samples`", "-1"]),
    ({"samples": True}, ["`samples`", "True"]), ({"prefix": None}, ["`prefix`", "None"]),
    ({"batch_size": 0}, ["`batch_size`", "0"]), ({"max_tokens": 3}, ["'max_tokens'", "max_new_tokens"]),
    ({"padded": True}, ["`padded` must be left out: the callback sets it; received padded=True"]),
]  # fmt: skip


def test_the_options_are_those_of_generate():
    fixed = {*scores.FIXED, *GenerateOptions.__annotations__}
    for kind in (Generator, Seq2Seq):
        # The callback has no `inputs` besides the ids, and does not cut texts.
        others = {"inputs", "stop_strings", "tokenizer"}
        assert {*list(inspect.signature(kind.generate).parameters)[2:]} - others <= fixed
    assert {*inspect.signature(Generator.generate).parameters, *inspect.signature(Seq2Seq.generate).parameters} >= fixed


def test_early_errors(monkeypatch):
    for options, words in REFUSED:
        refused(lambda: scoring(**options), words)
    refused(lambda: scoring(detokenize=lambda ids: None).score(Echo()), ["must return a string; received None"])
    callback, plain = scoring(), keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    for call in (callback.set_model, callback.score):
        refused(lambda: call(plain), ["`model`", "`generate`", "Sequential"])
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(ImportError, match=r"pip install sacrebleu"):
        scoring()


def test_ragged_inputs():
    tf = pytest.importorskip("tensorflow")
    assert scoring(inputs=tf.ragged.constant(SOURCES)).score(Echo()) == expected()


def test_ids_that_the_tokenizer_does_not_have_are_no_text():
    class Smaller(Tokenizer):
        vocab_size = STOP

        def detokenize(self, ids):
            assert max(ids) < STOP
            return super().detokenize(ids)

    assert scoring(detokenize=Smaller()).score(Echo()) == expected()
