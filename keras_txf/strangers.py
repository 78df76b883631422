"""Runs untrusted templates and regular expressions from files in a process with limits.

A template of 22 characters can fill the memory, and a regular expression can run forever. A limit within the main
process could not stop them.
"""

import atexit
import json
import os
import pathlib
import subprocess
import sys
import threading

SECONDS = 10  # for an answer
START_SECONDS = 60  # for Python to start, on a machine that is busy
MEMORY = 2**29  # bytes


class StrangersError(ValueError):
    """An error of a template or a regular expression.

    Args:
        kind: name of the error's class.
        reason: its message.
        line: of the template, or None.
    """

    def __init__(self, kind, reason, line=None):
        super().__init__(f"{kind}: {reason}")
        self.kind, self.reason, self.line = kind, reason, line


def ask(function, *arguments):
    """Calls a function of `strangers_process` in a process that ends with this process.

    Args:
        function: name of the function.
        *arguments: values of JSON types.

    Raises:
        StrangersError: the function raised an error, or took too much time or memory.
    """
    with _state.lock:
        if _state.process is None or _state.process.poll() is not None:
            stop()
            _state.process = _start()
        answer = _exchange(_state.process, json.dumps([function, arguments]), SECONDS)
        if answer is None:
            stop()
            raise StrangersError("TimeoutError", f"it took more than {SECONDS} seconds or {MEMORY // 2**20} MiB")
    if len(answer) > 1:
        raise StrangersError(*answer[1:])
    return answer[0]


def stop():
    """Ends the process; the next call starts a new process."""
    process, _state.process = _state.process, None
    if process is not None:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def _start():
    command = [sys.executable, str(pathlib.Path(__file__).with_name("strangers_process.py")), str(MEMORY)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process = subprocess.Popen(command, **pipes, env=environment, text=True, encoding="utf-8")
    if _exchange(process, "", START_SECONDS) is None:
        raise RuntimeError(f"Python did not start to run templates and regular expressions: {' '.join(command)}")
    return process


def _exchange(process, line, seconds):
    """Sends a line and returns the answer; None if the process ended or was killed after `seconds`."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        if line:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        return None
    finally:
        timer.cancel()
    return json.loads(answer) if answer.endswith("\n") else None


class _State:
    def __init__(self):
        self.lock, self.process = threading.Lock(), None


def _forget():
    """Forgets the process after a fork, since it answers only the parent."""
    global _state
    _state = _State()


_state = _State()
atexit.register(stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
