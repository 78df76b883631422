"""The public functions and their arguments: those of today, and those of the last release in public_names.json.

`PYTHONPATH=. python tests/public_names.py` writes the file when a version is released.
"""

import inspect
import json
import pathlib

import keras_txf as txf

FILE = pathlib.Path(__file__).with_suffix(".json")
AREAS = ("checkpoints", "generation", "layers", "models", "tasks", "text", "training", "visualize")


def public_functions():
    """(name, function) of each public function, class, and method that a public class defines."""
    for area in AREAS:
        module = getattr(txf, area)
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                yield f"{area}.{name}", thing
            for method in dir(thing) if inspect.isclass(thing) else ():
                found = getattr(thing, method)
                if not method.startswith("_") and getattr(found, "__module__", "").startswith("keras_txf"):
                    yield f"{area}.{name}.{method}", found


def arguments(function):
    """The names of the arguments of a function or class, without `self`; none for a class of Python's own."""
    try:
        return [name for name in inspect.signature(function).parameters if name not in ("self", "args", "kwargs")]
    except ValueError:
        return []


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(arguments(function))}" for name, function in public_functions()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
