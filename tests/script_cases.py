"""Runs the examples: here, as importing TensorFlow takes longer than most of them, or in a process of their own.

With a small checkpoint for those that read one.
"""

import contextlib
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
import types
import warnings

import numpy as np

import keras_txf as txf

ROOT = pathlib.Path(__file__).parents[1]


def run(script, *arguments):
    """Calls the script's `main`. Returns what `run_apart` does; an error other than an exit comes through."""
    out, err, code, argv = io.StringIO(), io.StringIO(), 0, sys.argv
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a process of its own, where they stop nothing
            sys.argv = [f"{script}.py", *map(str, arguments)]
            importlib.import_module(script).main()
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):  # Python prints it
            err.write(f"{code}\n")
            code = 1
    finally:
        sys.argv = argv
    return types.SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def process_of(script, *arguments, **environment):
    """The command and the environment of a process of its own."""
    command = [sys.executable, ROOT / "examples" / f"{script}.py", *map(str, arguments)]
    return command, {**os.environ, "PYTHONPATH": str(ROOT), **environment}


def run_apart(script, *arguments, **environment):
    command, environment = process_of(script, *arguments, **environment)
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def assert_kept(folder, printed, **epochs):
    """`folder` has the last result that was printed, and logs of so many epochs each."""
    *_, result = (folder / "results.txt").read_text(encoding="utf-8").splitlines()
    assert any(result.endswith(f": {line}") for line in printed.splitlines())
    for name, count in epochs.items():
        header, *rows = (folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        assert "loss" in header.split(",") and [row.split(",")[0] for row in rows] == list(map(str, range(count)))


def output(script, *arguments):
    """What the script prints where all goes well."""
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_bert(folder, words, layers=1, dim=16, heads=2, length=128, spread=None):
    """A checkpoint of random weights with a vocabulary of these words; `spread` is the deviation of all weights."""
    vocabulary = [*SPECIAL, *words]
    config = dict(
        model_type="bert", architectures=["BertModel"], vocab_size=len(vocabulary), hidden_size=dim,
        num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=24, max_position_embeddings=length,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    model = txf.models.encoder(
        len(vocabulary), layers, dim, heads, intermediate_dim=24, activation="gelu", position_encoding="learned",
        max_length=length, token_types=2, scale_embedding=False, embedding_norm=True,
    )  # fmt: skip
    if spread is not None:
        random = np.random.default_rng(4)
        model.set_weights([random.normal(0, spread, weight.shape) for weight in model.get_weights()])
    txf.checkpoints.save(model, folder, config)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def write_similarities(folder):
    """The files of the STS benchmark, with four pairs of sentences."""
    rows = ["5.0\ta man eats food\tthe man eats", "4.0\ta cat sits\tthe cat on a mat", "0.5\ta film\tfood",
            "2.5\tflute\ta man plays"]  # fmt: skip
    for name in ("sts-train.csv", "sts-dev.csv"):
        (folder / name).write_text("".join(f"main\tx\t2012\t{i}\t{row}\n" for i, row in enumerate(rows)))


def write_reviews(folder):
    lines = [f"a {word} film\t{label}\n" for word, label in (("good", 1), ("dull", 0)) for _ in range(9)]
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("".join(lines), encoding="utf-8")
