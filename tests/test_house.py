"""The house: imports point one way, files stay small, importing is cheap and brings no other backend."""

import ast
import functools
import graphlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import keras_txf as txf

ROOT = pathlib.Path(txf.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What each part may import of the others, besides itself. A new part needs a row.
MAY_IMPORT = {
    "version": "", "checks": "", "backend": "", "strangers_process": "", "strangers": "",
    "disk": "checks", "progress": "checks",
    "ops": "backend checks", "layers": "checks ops backend", "generation": "checks progress ops layers backend",
    "models": "checks ops layers generation backend",
    "training": "checks progress disk ops layers generation backend",
    "text": "checks progress disk strangers strangers_process layers generation backend",
    "checkpoints": "checks disk strangers ops layers generation models training text backend",
    "tasks": "checks progress disk layers generation models training text checkpoints",
    "visualize": "checks disk ops layers models backend", "__main__": "checkpoints",
}  # fmt: skip

# Backends of Keras, which backend/ alone names, and text/lazy_imports.py: no other backend has strings.
BACKENDS = {"tensorflow", "tensorflow_text", "jax", "torch"}


def module_name(file):
    parts = (ROOT.name, *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}
# Private names of Keras stand in backend/ alone, where test_keras_private.py says what a new Keras broke.
PRIVATE = re.compile(
    r"keras\.src|_(keras_|tracker$|untrack|trainable_variables$|flatten_layers$|deferred_|nodes_by_depth$|run_through)"
)


@functools.cache
def nodes(name):
    """Everything in a file of the package."""
    return list(ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))))


@functools.cache
def imported_names(name):
    """Everything that a file imports, anywhere in it, as dotted names."""
    names = []
    for node in nodes(name):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import, which this test does not follow"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def imported_modules(name):
    """The package's own modules that a file imports."""
    own = [imported for imported in imported_names(name) if imported.split(".")[0] == ROOT.name]
    return {imported if imported in MODULES else imported.rpartition(".")[0] for imported in own}


@pytest.mark.parametrize("name", [name for name in MODULES if name != ROOT.name])
def test_imports_point_one_way(name):
    part = name.split(".")[1]
    assert part in MAY_IMPORT, f"add a row for {part}"
    imported = {module.split(".")[1] if "." in module else "the package itself" for module in imported_modules(name)}
    itself = set() if MODULES[name].parent == ROOT else {part}
    assert imported <= itself | {*MAY_IMPORT[part].split()}


def test_imports_have_no_circles():
    graph = {name: imported_modules(name) - {name} for name in MODULES}
    assert any(graph.values())
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


# Whose type Keras takes from floatx: arange has int16 under bfloat16.
NEEDS_A_TYPE = {"arange": 4, "zeros": 2, "ones": 2, "full": 3, "linspace": 4, "eye": 4}


def test_every_tensor_of_numbers_has_its_type():
    """`keras.config.set_floatx` changes the type of weights, not of positions, masks and sums."""
    for name in MODULES:
        calls = [node for node in nodes(name) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        for call in calls:
            owner = ast.unparse(call.func.value)
            if owner in ("ops", "keras.ops") and call.func.attr in NEEDS_A_TYPE:
                typed = len(call.args) >= NEEDS_A_TYPE[call.func.attr] or any(k.arg == "dtype" for k in call.keywords)
                assert typed, f"{name}:{call.lineno}"


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(f"{ROOT.name}.backend")])
def test_backends_and_private_names_of_keras_stand_in_one_folder(name):
    imported = {imported.split(".")[0] for imported in imported_names(name)}
    used = [getattr(node, "attr", getattr(node, "value", None)) for node in nodes(name)]
    words = [text for text in used if isinstance(text, str)]
    assert not [text for text in words + imported_names(name) if PRIVATE.match(text)]
    if not name.startswith(f"{ROOT.name}.text."):
        assert not (imported | {*words}) & BACKENDS
    elif name != f"{ROOT.name}.text.lazy_imports":
        assert not imported & BACKENDS


# The mathematics, which no family of checkpoints has a name in.
CORE = ("ops", "layers", "generation", "models", "training", "visualize", "backend")
FAMILY = re.compile(
    r"bert|gpt|llama|qwen|gemma|mistral|mixtral|deepseek|whisper|bart|pegasus|t5|dino|electra|siglip", re.I
)
OTHER_WORDS = {
    "llama3",
    "_llama3",
    "gptq",
}  # a scaling of rotary positions by its name in the field, and Keras' quantization


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[1:2] and name.split(".")[1] in CORE])
def test_no_family_has_a_name_in_the_core(name):
    """Identifiers and strings of one word. Docstrings and the meanings of options say who uses what."""
    found = [getattr(node, key, None) for node in nodes(name) for key in ("id", "attr", "name", "arg", "value")]
    words = {text for text in found if isinstance(text, str) and " " not in text.strip()}
    assert not [text for text in words - OTHER_WORDS if FAMILY.search(text)]


@pytest.mark.parametrize("name", MODULES)
def test_files_are_short_and_messages_show_a_line_of_data_at_most(name):
    """Values that come from a caller or a file go into a message through `short_repr`."""
    assert len(MODULES[name].read_text().splitlines()) <= 400
    shown = [node for node in nodes(name) if isinstance(node, ast.FormattedValue) and node.conversion == ord("r")]
    assert not [ast.unparse(node.value) for node in shown]


def test_public_things_have_a_docstring():
    for name in [ROOT.name, *(f"{ROOT.name}.{info.name}" for info in pkgutil.iter_modules([ROOT]) if info.ispkg)]:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            thing = getattr(module, public)
            if callable(thing) or type(thing) is type(sys):
                own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__  # not a parent's
                assert own and own.strip(), f"{name}.{public}"
            else:
                assert isinstance(thing, str)  # the version


IMPORT = """
import json, sys
import keras
before = set(sys.modules)
import keras_txf
for name in keras_txf.__all__:
    getattr(keras_txf, name)
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""
LAZY = {*"tensorflow_text tokenizers sentencepiece jinja2 matplotlib transformers huggingface_hub sacrebleu".split()}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_importing_brings_no_other_backend_and_nothing_that_few_calls_need(backend):
    if not importlib.util.find_spec(backend):
        pytest.skip(f"{backend} is not installed")
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-c", IMPORT]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    modules = set(json.loads(result.stdout.splitlines()[-1]))
    assert ROOT.name in modules and not modules & LAZY
    assert backend == "tensorflow" or "tensorflow" not in modules
