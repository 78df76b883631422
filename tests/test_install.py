"""What is installed: the core without TensorFlow, what the errors say to install, TensorFlow's start-up lines."""

import configparser
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import types

import pytest

from keras_txf.backend.startup import without_startup_lines
from keras_txf.text.lazy_imports import require_tensorflow, require_tensorflow_text

ROOT = pathlib.Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]


def run(*command, **environment):
    """Runs Python in another process, where no level of TensorFlow's lines is set."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    environment = {**inherited, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)


NEEDS_TENSORFLOW = (
    "Tokenizers, pipelines and tasks need TensorFlow, on every backend: pip install 'keras_txf[tensorflow]'."
)


def test_what_needs_tensorflow_says_so(monkeypatch):
    """All of it asks `require_tensorflow`; the script below tries each."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=f"^{re.escape(NEEDS_TENSORFLOW)}$"):
        require_tensorflow()
    monkeypatch.undo()  # before anything of TensorFlow is looked for


# An environment without TensorFlow always runs it on JAX; where there is TensorFlow, it is hidden.
HIDDEN = [pytest.mark.slow] if importlib.util.find_spec("tensorflow") else []


@pytest.mark.parametrize("backend", [pytest.param("jax", marks=HIDDEN), pytest.param("torch", marks=pytest.mark.slow)])
def test_without_tensorflow_all_but_text_works(backend):
    if not importlib.util.find_spec(backend):
        pytest.skip(f"{backend} is not installed")
    result = run("tests/without_tensorflow.py", KERAS_BACKEND=backend)
    assert result.returncode == 0, result.stderr
    messages = json.loads(result.stdout.splitlines()[-1])
    assert len(messages) > 17 and messages == dict.fromkeys(messages, NEEDS_TENSORFLOW)


MISSING = """
import importlib.machinery, sys
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = sys.argv[1].split(",")
        if name in ("jax", "tensorflow", "torch") and name not in hidden and not path:
            return importlib.machinery.ModuleSpec(name, None, origin="a file")
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
try:
    import keras_txf
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("backend, missing, others", [
    ("jax", "jax", "tensorflow or torch"), ("tensorflow", "tensorflow,torch", "jax"),
    ("torch", "jax,tensorflow,torch", None),
])  # fmt: skip
def test_a_missing_backend(backend, missing, others):
    message = f"Keras' backend {backend} is not installed: pip install 'keras_txf[{backend}]'"
    message += f", or set the environment variable KERAS_BACKEND to {others}." if others else "."
    assert run("-c", MISSING, missing, KERAS_BACKEND=backend).stdout.splitlines() == [message]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="TensorFlow is not installed")
def test_tensorflow_starts_in_silence():
    command = "import keras_txf, tensorflow; print(int(tensorflow.constant(3)))"
    result = run("-c", command, KERAS_BACKEND="tensorflow")
    assert (result.stdout, result.stderr) == ("3\n", "")
    command = "import keras_txf; print(keras_txf.text.ByteTokenizer(length=1)('a').shape)"
    assert run("-c", command, KERAS_BACKEND="jax").stderr == ""


LINES = {
    "absl": "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I": "I0000 00:00:1795721636.400202   25959 port.cc:153] oneDNN custom operations are on.",
    "W": "W0000 00:00:1795721636.400202   25959 cuda.cc:1] A word.",
    "E": "E0000 00:00:1795721636.400202   25959 cuda.cc:1] An error.",
    "other": "UserWarning: Input is out of range.",
}


@pytest.mark.parametrize("level, shown", [
    (None, ["other"]), ("3", ["other"]), ("2", ["E", "other"]), ("1", ["W", "E", "other"]), ("0", [*LINES]),
    ("x", [*LINES]),
])  # fmt: skip
def test_the_level_holds_for_the_first_lines(level, shown, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level or "")
    if level is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    with pytest.raises(ZeroDivisionError), without_startup_lines():
        os.write(2, "".join(f"{line}\n" for line in LINES.values()).encode())
        raise ZeroDivisionError
    assert capfd.readouterr().err.splitlines() == [LINES[name] for name in shown]
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == (level or "3")
    os.write(2, b"I0000 00:00:00 after\n")
    assert capfd.readouterr().err == "I0000 00:00:00 after\n"


FIRST_IMPORTS = """
import importlib, os, sys
class Reached(BaseException):
    pass
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("keras", "tensorflow"):
            raise Reached
sys.meta_path.insert(0, Finder())
sys.path.insert(0, "examples")
before = set(sys.modules)
for script in sys.argv[1:]:
    os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("keras_txf", *sys.argv[1:]):
            del sys.modules[name]
    try:
        importlib.import_module(script)
    except Reached:
        print(script, os.environ.get("TF_CPP_MIN_LOG_LEVEL", "not set"))
"""


def test_examples_import_the_package_before_keras():
    """The package keeps TensorFlow's start-up lines away only where nobody has imported TensorFlow before."""
    pytest.importorskip("matplotlib")  # which one of them needs
    scripts = {path.stem: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
    result = run("-c", FIRST_IMPORTS, *scripts)
    with_keras = [name for name, text in scripts.items() if re.search("^(import|from) (data|keras)", text, re.M)]
    assert set(result.stdout.splitlines()) >= {f"{name} 3" for name in with_keras}, result.stderr
    assert "not set" not in result.stdout


INSTALLED = """
import importlib.metadata, sys
import keras_txf as txf
assert sys.prefix in txf.__file__, txf.__file__
assert importlib.metadata.version("keras_txf") == txf.__version__ == sys.argv[1]
model = txf.models.decoder_generator(20, 1, 8, 2)
assert model.generate([[5, 6]], max_new_tokens=2).shape == (1, 4)
assert "llama" in txf.checkpoints.families()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_a_distribution_works_in_an_environment_of_its_own(kind, tmp_path):
    """The file is built from a copy, and installed where nothing else of this folder is; its needs come from here."""
    pytest.importorskip("build")
    source, environment = tmp_path / "source", tmp_path / "environment"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "keras_txf", source / "keras_txf", ignore=ignored)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)

    def call(*command):
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, env=without_path)
        assert done.returncode == 0, done.stderr[-3000:]

    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    call(sys.executable, "-m", "build", "--wheel" if kind == "whl" else "--sdist", source, "--outdir", tmp_path)
    call(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    [file] = tmp_path.glob(f"*.{kind}")
    call(python, "-m", "pip", "install", "-q", "--no-deps", file)
    [packages] = environment.glob("lib/*/site-packages")
    (packages / "needs.pth").write_text(sysconfig.get_paths()["purelib"])
    call(python, "-c", INSTALLED, re.search('"(.*)"', (ROOT / "keras_txf" / "version.py").read_text())[1])


def test_the_core_needs_four_packages():
    needed = [re.match(r"\w+", line)[0] for line in SETUP["options"]["install_requires"].split()]
    assert sorted(needed) == ["keras", "ml_dtypes", "numpy", "safetensors"]
    keras = importlib.metadata.metadata("keras")["Requires-Python"]
    assert SETUP["options"]["python_requires"] == keras


def test_what_is_said_to_be_installed_exists():
    """The extras that messages, README and pages name."""
    patterns = ("*.md", "docs/**/*.md", "examples/*.py", "keras_txf/**/*.py")
    texts = "\n".join(path.read_text(encoding="utf-8") for pattern in patterns for path in ROOT.glob(pattern))
    named = re.findall(r"(?:keras_txf|'\.|\"\.)\[([a-z, ]+)\]", texts)
    assert len(named) > 5
    assert {extra.strip() for names in named for extra in names.split(",")} <= EXTRAS.keys()


def test_windows_resolves_without_tensorflow_text(monkeypatch):
    assert 'tensorflow-text>=2.21; platform_system != "Windows"' in EXTRAS["tensorflow"]
    pytest.importorskip("tensorflow")
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match="pip install tensorflow-text; there is no version for Windows.$"):
        require_tensorflow_text()


def test_the_long_description_leads_nowhere_but_to_the_net(monkeypatch):
    monkeypatch.setitem(sys.modules, "setuptools", types.SimpleNamespace(setup=lambda **options: None))
    for_index = runpy.run_path(str(ROOT / "setup.py"))["for_index"]
    kept = "[f](https://g.h), ![i](https://j.k), [l](#m), `n[o](p)`\n"
    assert for_index(f"![a](docs/a.png)\n\n[b](docs/b.md#c), [`d`](e.py), {kept}") == f"b, `d`, {kept}"
    code = "```python\nmodels[0](inputs)\n```\n"
    assert for_index(code) == code
