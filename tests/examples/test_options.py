"""What the examples refuse at once: options that do not apply, and texts before there is a model."""

import shlex

import pytest
import script_cases

TRAINING = [  # options that are not for what one asks
    ("finetune_sentiment", "--rank 2", "--rank: without --lora"),
    ("finetune_sentiment", "--checkpoint DIR 'a film'", "--checkpoint: is for training"),
    ("finetune_generator", "--rank 2", "--rank: is for training"),
    ("classify_sentiment", "--word-dropout 0.1 'a film'", "--word-dropout: is for training"),
    ("pretrain_encoder", "--pretraining-epochs 2 'a [MASK]'", "--pretraining-epochs: is for training"),
    ("translate", "--dim 64 'a dog'", "--dim: is for training"),
    ("translate", "--view page.html", "argument --view: is for a sentence to translate"),
    ("semantic_search", "--rate 0.1 text.txt", "--rate: is for training"),
    ("semantic_search", "--epochs 1 text.txt", "--epochs: fine-tuning needs --data"),
    ("semantic_search", "", "expected a file"),
    ("semantic_search", "--data DIR --count 2", "--count: there is no file"),
    ("finetune_generator", "--prompt ''", "--prompt: expected a text"),
    ("finetune_generator", "--temperature -1", "`temperature` must"),
    ("forecast_series", "--ahead 169", "--ahead: expected at most"),
    ("generate_text", "--length 0", "--length: expected at least 1, got 0"),
    ("generate_text", "--size gpu 'To be'", "--size: is for training"),
    ("generate_text", "--top-p 2", "`top_p` must"),
    ("multi30k", "--variant reverse", "--published: is for --variant reverse or diverse, which must have it"),
    ("multi30k", "--published DIR", "--published: is for --variant reverse or diverse"),
    ("multi30k", "--variant diverse --published DIR", "--reverse: is for --variant diverse, which"),
    ("multi30k", "--variant diverse-2 --published DIR", "--published: is for --variant reverse or diverse, which"),
    ("translate", "--beams 0", "--beams: expected at least 1, got 0"),
    ("classify_sentiment", "...", "text: expected a sentence with at least one word, got '...'"),
    ("question_answering", "Who?", "expected a text file"),
    ("question_answering", "Who? text.txt --epochs 2", "--epochs: is for training"),
    ("rerank", "", "expected --data to train on, or a file to order"),
    ("rerank", "text.txt --epochs 2", "--epochs: is for training"),
    ("tag_entities", "'a text' --epochs 2", "--epochs"),
]
FILES = [  # what is not there
    *((name, "'A text'", "lacks ") for name in "classify_sentiment generate_text pretrain_encoder translate".split()),
    ("question_answering", "Who? text.txt", "train a model first"),
    ("question_answering", "--data text.txt", "no file in SQuAD's format"),
    ("rerank", "text.txt", "train a model first"),
    ("tag_entities", "'a text'", "train a model first"),
]


ROWS = [*((2, *row) for row in TRAINING), *((1, *row) for row in FILES)]


@pytest.mark.parametrize("code, script, arguments, reason", ROWS)
def test_is_refused(code, script, arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a line\n")
    out = ["--out", tmp_path / "out"] if code == 1 else []
    done = script_cases.run(script, *shlex.split(arguments), *out)
    assert done.returncode == code and reason in done.stderr.splitlines()[-1], done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
