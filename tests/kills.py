"""A process that is killed while it writes: from the nth change of the disk on nothing changes any more."""

import contextlib
import os
import pathlib
import resource
import shutil
from unittest import mock

CHANGES = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir")
# Functions that write a file, and which of their arguments is the path.
WRITERS = ((pathlib.Path, "write_text", 0), (pathlib.Path, "write_bytes", 0), (shutil, "copyfile", 1))


class Killed(BaseException):
    """Not an Exception: nothing that catches those may go on."""


@contextlib.contextmanager
def killed_at(number, *writers):
    """Raises `Killed` at the nth change of the disk, and at each later one: what cleans up comes to nothing either.

    A file that is written counts twice: before it is there, and when half of it is. `writers` are more functions that
    write, as (owner, name, place of the path among the arguments). Yields a list of the changes that were made.
    """
    made = []

    def change(name):
        if len(made) + 1 >= number:
            raise Killed(name)
        made.append(name)

    def changing(name, function):
        def call(*args, **kwargs):
            change(name)
            return function(*args, **kwargs)

        return call

    def writing(name, function, place):
        def call(*args, **kwargs):
            change(name)
            result = function(*args, **kwargs)
            try:
                change(f"the rest of {name}")
            except Killed:
                path = getattr(args[place], "name", None) if hasattr(args[place], "write") else args[place]
                os.truncate(path, os.path.getsize(path) // 2)
                raise
            return result

        return call

    with contextlib.ExitStack() as stack:
        for name in CHANGES:
            stack.enter_context(mock.patch.object(os, name, changing(name, getattr(os, name))))
        for owner, name, place in (*WRITERS, *writers):
            stack.enter_context(mock.patch.object(owner, name, writing(name, getattr(owner, name), place)))
        yield made


def every_kill(run, *writers):
    """Calls `run` killed at its first change of the disk, at its second, and so on; yields each number after the kill.

    It ends with a call that is not killed.
    """
    number, complete = 1, False
    while not complete:
        with killed_at(number, *writers):
            try:
                run()
                complete = True
            except Killed:
                pass
        yield number, complete
        number += 1


@contextlib.contextmanager
def full_disk(size):
    """No file can become longer than `size` bytes, for whatever writes it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
