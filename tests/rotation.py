"""Which cases run today: a drawn test runs one in n of its cases a day, so each case runs every n days."""

import collections
import zlib

import pytest


def is_drawn(arguments, turn=None, everything=False, one_in=1):
    """Whether a run of pytest draws cases.

    A file that somebody names runs in full, unless the day or a share is named too; a named test always runs.
    """
    is_named = any(argument.endswith(".py") for argument in arguments)
    return not everything and not any("::" in one for one in arguments) and (turn or one_in > 1 or not is_named)


def drawn(items, turn, one_in=1):
    """The items of the day `turn`.

    The cases of a function, and the functions of a file that have one case, are counted from a place that depends on
    the file alone. So all functions of a file that share a list of cases run the same ones.
    """
    counts = collections.Counter()
    for item in items:
        file, function = item.nodeid.split("::")[0], item.nodeid.partition("[")[0]
        group = function if hasattr(item, "callspec") else file
        place = zlib.crc32(file.encode()) + counts[group]
        counts[group] += 1
        if (place + turn) % days_between(item, one_in) == 0:
            yield item


def days_between(item, one_in):
    """The n of the mark `drawn(n)`; 3 for other slow and parity tests; `one_in` for quick tests, if it is more."""
    mark = item.get_closest_marker("drawn")
    if mark and not (mark.args and isinstance(mark.args[0], int)):
        raise pytest.UsageError(f"`drawn` of {item.nodeid} must have a number of days, such as `drawn(3)`.")
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("parity")
    days = mark.args[0] if mark else 3 if is_slow else 1
    is_mathematics = item.path.parent.name == "ops"  # mathematics can fail on each backend for its own reason
    return days if is_slow or is_mathematics else max(days, one_in)
