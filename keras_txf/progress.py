"""Progress of long work on standard error: bars of tqdm, and a message while a function compiles.

With `verbose="auto"` both are shown only in a terminal, and a bar only after a second: not in logs, pipes and tests.
"""

import contextlib
import importlib
import sys

from keras_txf import checks


def bar(items=None, total=None, unit="it", name=None, verbose="auto"):
    """Shows a progress bar.

    Args:
        items: iterable of the work's items; None if the caller calls `update(count)`.
        total: number of items, if `items` has no length and the number is known.
        unit: name of an item.
        name: name of the work.
        verbose: "auto", 0 for no bar or 1 for a bar.

    Returns:
        An iterable of the items, and a context manager, with `update` and `close`.
    """
    checks.verbosity("verbose", verbose)
    if not (_in_terminal() if verbose == "auto" else verbose):
        return _NoBar(items)
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:  # the extra `text` installs tqdm
        return _NoBar(items)
    delay = 1 if verbose == "auto" else 0
    return tqdm(items, desc=name, total=total, unit=unit, file=sys.stderr, delay=delay, leave=bool(verbose == 1))


@contextlib.contextmanager
def word(text):
    """Shows a text in a terminal, and erases it at the end of the scope."""
    shown = text if _in_terminal() else ""
    print(shown, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(shown)}\r" if shown else "", end="", file=sys.stderr, flush=True)


def _in_terminal():
    return sys.stderr is not None and sys.stderr.isatty()


class _NoBar:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def update(self, count=1):
        pass

    close = update
