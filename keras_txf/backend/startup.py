"""The first import of Keras and TensorFlow: no start-up lines of TensorFlow, and a word on a missing backend."""

import contextlib
import importlib.util
import os
import re
import sys
import tempfile

BACKENDS = ("tensorflow", "jax", "torch")
INSTALL = "pip install 'keras_txf[{}]'"


def import_keras():
    """Imports Keras, and with it the backend.

    Raises:
        ImportError: the backend is not installed; the message says what to install or to set.
    """
    try:
        with without_startup_lines():
            import keras  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in BACKENDS:
            raise
        # A folder of that name, where Python runs, has a spec too, without an origin.
        specs = {name: importlib.util.find_spec(name) for name in BACKENDS if name != error.name}
        others = [name for name, spec in specs.items() if spec and spec.origin]
        choice = f", or set the environment variable KERAS_BACKEND to {' or '.join(others)}" if others else ""
        raise ImportError(
            f"Keras' backend {error.name} is not installed: {INSTALL.format(error.name)}{choice}."
        ) from None


@contextlib.contextmanager
def without_startup_lines():
    """Keeps what TensorFlow logs while it is imported from the user; other lines come after the import.

    TensorFlow 2.21 logs its first lines before it reads `TF_CPP_MIN_LOG_LEVEL`, which is set here to 3, no lines but
    those of a crash, unless the user has set it. In this scope it holds for the first lines too: with 0 they come.
    """
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if level not in ("1", "2", "3") or "tensorflow" in sys.modules:
        yield
        return
    hidden = re.compile(rb"WARNING: All log messages before absl|[%b]\d{4} \d\d:\d\d:\d\d" % b"IWE"[: int(level)])
    with contextlib.ExitStack() as stack:
        try:  # TensorFlow writes to the file descriptor, not to `sys.stderr`
            standard_error = os.dup(2)
        except OSError:  # a process without one
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
