"""Runs the examples: here, as importing TensorFlow takes longer than most of them, or in a process of their own."""

import contextlib
import importlib
import io
import os
import pathlib
import subprocess
import sys
import types
import warnings

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


def run_apart(script, *arguments, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / f"{script}.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def assert_kept(folder, printed, **epochs):
    """`folder` has the last result that was printed, and logs of so many epochs each."""
    *_, result = (folder / "results.txt").read_text(encoding="utf-8").splitlines()
    assert any(result.endswith(f": {line}") for line in printed.splitlines())
    for name, count in epochs.items():
        header, *rows = (folder / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        assert "loss" in header.split(",") and [row.split(",")[0] for row in rows] == list(map(str, range(count)))
