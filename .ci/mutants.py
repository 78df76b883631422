"""Small faults are put into the package one by one; the tests must notice them.

    pip install pytest-cov
    python .ci/mutants.py --number 16 --seed 1        # of each area; some hours

All mutants meet the quick tests (README's command) of the files that run their line. What survives meets the slow and
parity tests of its area that are drawn today, what is left every case of all of them. The file `--results` keeps what
is known if the run is interrupted. The mutants that survive are printed: each is equivalent, or lacks a test.
`backend`, `checks`, `visualize` and the modules of no folder are no areas.
"""

import argparse
import ast
import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).parents[1]
PARITY = "tests/parity/test_"
OPS = ("torch_attention", "transformers_positions", "transformers_speech")
AREAS = {  # what all tests of an area are, beside those in its own folder
    "ops": ["tests/layers", *(f"{PARITY}{name}.py" for name in OPS)],
    "layers": [f"{PARITY}torch_blocks.py", f"{PARITY}torch_attention.py"],
    "models": ["tests/generation", f"{PARITY}decoder_heads.py", f"{PARITY}transformers_vision.py"],
    "generation": [f"{PARITY}transformers_generation.py", f"{PARITY}transformers_processors.py"],
    "training": ["tests/models/test_training_features.py", f"{PARITY}peft.py"],
    "text": ["tests/tasks", f"{PARITY}transformers_chat.py", f"{PARITY}transformers_tags.py"],
    "checkpoints": [f"{PARITY}transformers_{name}.py" for name in ("keys", "folders", "checkpoints")],
    "tasks": ["tests/text", f"{PARITY}transformers_answers.py", f"{PARITY}transformers_tasks.py"],
}
STAGES = ["quick", "drawn", "all"]
LONGEST = {"quick": 1200, "drawn": 3600, "all": 10800}  # seconds of a stage; a fault may make a loop endless
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip


def variants(node):
    """Expressions with one small fault to put in the place of `node`."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
        yield ast.BoolOp(node.op, node.values[:-1]) if len(node.values) > 2 else node.values[0]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        yield node.left  # a missing scale, bias or step
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Call) and node.keywords:
        yield ast.Call(node.func, node.args, node.keywords[:-1])
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not node.keywords:
        yield ast.Call(node.func, [*node.args[1::-1], *node.args[2:]], [])
    elif isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
        if any(isinstance(element, ast.Slice) for element in node.elts):
            return  # `x[:, None]`
        yield type(node)([*node.elts[:-2], node.elts[-1], node.elts[-2]], node.ctx)
    elif isinstance(node, ast.Dict) and len(node.values) > 1 and all(node.keys):
        yield ast.Dict(node.keys, [node.values[1], node.values[0], *node.values[2:]])


def places(tree):
    """The expressions of a module that a fault may enter; messages, hints and decorators are left alone."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)):
            continue
        if isinstance(child, ast.AnnAssign):
            child = ast.Module([ast.Expr(child.value)] if child.value else [], [])
        elif isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            defaults = child.args.defaults + child.args.kw_defaults if isinstance(child, ast.FunctionDef) else []
            child = ast.Module([*child.body, *(ast.Expr(default) for default in defaults if default)], [])
        elif isinstance(child, ast.expr):
            yield child
        yield from places(child)


def mutants(area, number, seed):
    """(file, line, place in the file, replaced text, new text) of faults drawn among all that the area may have."""
    found = collections.defaultdict(list)
    for file in sorted((ROOT / "keras_txf" / area).rglob("*.py")):
        source = file.read_bytes()  # columns of ast are bytes
        starts = [0, *(place + 1 for place, letter in enumerate(source) if letter == 10)]
        if file.stem in ("__init__", "option_tables"):
            continue
        tree = ast.parse(source)
        statements = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)}
        for node in places(tree):
            line = max(first for first in statements if first <= node.lineno)  # the line that coverage knows
            for variant in variants(node):
                start = starts[node.lineno - 1] + node.col_offset
                stop = starts[node.end_lineno - 1] + node.end_col_offset
                new = f"({ast.unparse(variant)})" if not isinstance(variant, ast.Constant) else ast.unparse(variant)
                found[file].append((line, start, source[start:stop].decode(), new))
    draw = random.Random(f"{seed} {area}")
    every = [(file.relative_to(ROOT).as_posix(), *one) for file, many in found.items() for one in many]
    chosen = draw.sample(every, min(number, len(every)))
    return [one for one in chosen if not _are_same(*one[3:])]  # (None, None) swapped


def _are_same(old, new):
    return ast.dump(ast.parse(f"({old})")) == ast.dump(ast.parse(f"({new})"))


def files_that_run(area, file, line, database):
    """The quick test files that run a line, files of its name first; the area's files if only imports run the line."""
    with sqlite3.connect(database) as table:
        rows = table.execute(
            "select context, numbits from line_bits join context on context.id = context_id"
            " join file on file.id = file_id where path like ?", (f"%/{file}",)
        ).fetchall()  # fmt: skip
    runs = {
        context.split("::")[0] for context, bits in rows if len(bits) > line // 8 and bits[line // 8] >> line % 8 & 1
    }
    words = set(pathlib.Path(file).stem.split("_"))
    folder = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / area).rglob("test_*.py"))
    return sorted(
        runs - {""} or folder,
        key=lambda name: (-len(words & set(pathlib.Path(name).stem.split("_"))), f"/{area}/" not in name, name),
    )


def pytest(tree, *arguments, seconds=LONGEST["quick"], **environment):
    """Runs tests in a tree, up to the first failure. Returns the test that failed, None without one.

    Raises a RuntimeError if pytest ends in another way, such as for want of memory.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", **environment}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end within {seconds} s"
    if done.returncode in (0, 5):  # 5: nothing to run
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (1, 2) or not failed:  # 2: an error while tests are collected
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-300:]} {done.stderr[-300:]}")
    return failed[0]


def judge(tree, stage, area, mutant, options):
    """The test of a stage that fails with a mutant in the tree, and without it does not; None without one."""
    file, line, start, old, new = mutant
    path = tree / file
    source = path.read_bytes()
    path.write_bytes(source[:start] + new.encode() + source[start + len(old.encode()) :])
    days = ("--all",) if stage == "all" else ("--turn", str(options.turn))
    backend = {"KERAS_BACKEND": "torch"} if area == "checkpoints" else {}
    failed = None
    try:
        if stage != "drawn":
            failed = pytest(tree, *days, *files_that_run(area, file, line, options.coverage), seconds=LONGEST[stage])
        if stage != "quick" and failed is None:
            parts = ("-m", "slow or parity", f"tests/{area}", *AREAS[area])
            failed = pytest(tree, *days, *parts, seconds=LONGEST[stage], **backend)
    finally:
        path.write_bytes(source)
    name = failed and failed.split(" - ")[0].partition(" ")[2]
    if failed and failed.startswith("FAILED"):
        marks = ("-m", "slow or parity or not slow", "--all")
        if any(pytest(tree, *marks, name, **more) for more in ({}, backend)):
            raise RuntimeError(f"{name} fails without a mutant.")
    return failed and failed[:120]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=16, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=1, help="of the draw of mutants")
    parser.add_argument("--areas", nargs="+", default=list(AREAS), choices=AREAS)
    parser.add_argument("--turn", type=int, default=datetime.date.today().toordinal(), help="the day of the draw")
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("mutants.jsonl"), help="what is known")
    parser.add_argument(
        "--coverage", type=pathlib.Path, default=pathlib.Path("mutants.coverage"), help="which tests run which lines"
    )
    options = parser.parse_args()
    options.coverage = options.coverage.resolve()
    every = [(area, mutant) for area in options.areas for mutant in mutants(area, options.number, options.seed)]
    with tempfile.TemporaryDirectory() as folder:
        run(options, every, [pathlib.Path(folder) / name for name in ("first", "second")])


def run(options, every, trees):
    for tree in trees:
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
    if not options.coverage.exists():
        environment = {"COVERAGE_FILE": str(options.coverage)}
        command = ["-n", "auto", "--turn", str(options.turn), "--cov=keras_txf", "--cov-context=test", "--cov-report="]
        failed = pytest(trees[0], *command, **environment)
        if failed:
            options.coverage.unlink(missing_ok=True)
            sys.exit(f"The tests must pass before mutants meet them: {failed}")
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    known = {(stage, *mutant): test for stage, *mutant, test in map(json.loads, lines)}  # test: what failed, or None
    left, killed, stopped = every, {}, threading.Event()
    for stage in options.stages:
        todo = iter([one for one in left if (stage, *one[1]) not in known])  # of both threads

        def work(tree, stage=stage, todo=todo):
            for area, mutant in todo:
                if stopped.is_set():
                    return
                known[stage, *mutant] = test = judge(tree, stage, area, mutant, options)
                with options.results.open("a") as file:
                    file.write(json.dumps([stage, *mutant, test]) + "\n")
                print(stage, *mutant[:2], *map(repr, mutant[3:]), test or "survived", sep=" | ", flush=True)

        with concurrent.futures.ThreadPoolExecutor(len(trees)) as pool:
            try:
                list(pool.map(work, trees))
            except BaseException:  # Ctrl-C too: the other thread ends after its mutant
                stopped.set()
                raise
        killed[stage] = sum(known[stage, *mutant] is not None for _, mutant in left)
        left = [one for one in left if known[stage, *one[1]] is None]
    print(f"{len(every)} mutants, {sum(killed.values())} of them killed:", killed)
    print("Survivors:")
    for _, (file, line, _, old, new) in left:
        print(f"{file}:{line}: {old[:80]!r} -> {new[:80]!r}")


if __name__ == "__main__":
    main()
