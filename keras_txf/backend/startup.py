"""Imports Keras and its backend, without the start-up lines of TensorFlow; says how to install a missing backend."""

import contextlib
import importlib.util
import os
import re
import sys
import tempfile

BACKENDS = ("tensorflow", "jax", "torch")
INSTALL = "pip install 'keras_txf[{}]'"


def import_keras():
    """Imports Keras, which imports the backend.

    Raises:
        ImportError: the backend is not installed; the message names the package to install or the variable to set.
    """
    try:
        with without_startup_lines():
            import keras  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in BACKENDS:
            raise
        # A folder of this name in the working directory has a spec too, but no origin.
        specs = {name: importlib.util.find_spec(name) for name in BACKENDS if name != error.name}
        others = [name for name, spec in specs.items() if spec and spec.origin]
        choice = f", or set the environment variable KERAS_BACKEND to {' or '.join(others)}" if others else ""
        raise ImportError(
            f"Keras' backend {error.name} is not installed: {INSTALL.format(error.name)}{choice}."
        ) from None


@contextlib.contextmanager
def without_startup_lines():
    """Hides the lines that TensorFlow logs during its import; other lines are printed after the import.

    Unless the user has set `TF_CPP_MIN_LOG_LEVEL`, this scope sets it to 3: only lines of a crash. TensorFlow 2.21 logs
    its first lines before it reads the variable; this scope hides them too, unless the user has set 0.
    """
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if level not in ("1", "2", "3") or "tensorflow" in sys.modules:
        yield
        return
    hidden = re.compile(rb"WARNING: All log messages before absl|[%b]\d{4} \d\d:\d\d:\d\d" % b"IWE"[: int(level)])
    with contextlib.ExitStack() as stack:
        try:  # TensorFlow writes to the file descriptor, not to `sys.stderr`
            standard_error = os.dup(2)
        except OSError:  # a process without standard error
            yield
            return
        stack.callback(os.close, standard_error)
        lines = stack.enter_context(tempfile.TemporaryFile())
        os.dup2(lines.fileno(), 2)
        try:
            yield
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(standard_error, 2)
            lines.seek(0)
            for line in lines:
                if not hidden.match(line):
                    os.write(2, line)
