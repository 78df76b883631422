"""The example of many devices: one process on virtual devices, two processes, and a second start."""

import importlib.util
import re
import socket
import threading

import pytest
import script_cases

SMALL = ["--layers", 1, "--dim", 16, "--heads", 4, "--length", 8, "--batch", 8, "--steps", 3]
JAX = {"KERAS_BACKEND": "jax"}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="it needs JAX"),
    pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="it reads its data with tf.data"),
]


def losses(printed):
    return re.findall(r"epoch (\d): loss ([\d.]+), ", printed)


def held(printed):
    return {int(count.replace(",", "")) for count in re.findall(r" holds ([\d,]+) bytes", printed)}


def test_one_process_and_two_print_the_same_losses_and_resume(tmp_path):
    def start(*more):
        done = script_cases.run_apart("distributed", *SMALL, *more, **JAX)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = start("--virtual-devices", 4, "--epochs", 1)
    split = start("--virtual-devices", 4, "--epochs", 2, "--model", 2, "--fsdp", "--resume", tmp_path / "resume.npz")
    assert len(held(alone)) == len(held(split)) == 1 and held(split).pop() < 0.4 * held(alone).pop()
    assert losses(split)[0] == losses(alone)[0] and "tokens/s" in split and "tokens/s" not in alone
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        several = ["--virtual-devices", 2, "--processes", 2, "--model", 2, "--epochs", 2, "--address"]
        several.append(f"127.0.0.1:{free.getsockname()[1]}")
    other = threading.Thread(target=start, args=(*several, "--process", 1))
    other.start()
    assert losses(start(*several, "--process", 0)) == losses(split)
    other.join()
    again = start("--virtual-devices", 4, "--epochs", 3, "--model", 2, "--fsdp", "--resume", tmp_path / "resume.npz")
    assert [epoch for epoch, _ in losses(again)] == ["3"]


def test_what_does_not_divide_or_run_is_named():
    done = script_cases.run_apart("distributed", "--virtual-devices", 4, "--model", 3, **JAX)
    assert done.returncode == 1 and "--model must divide the 4 devices; received 3" in done.stderr
    done = script_cases.run_apart("distributed", KERAS_BACKEND="tensorflow")
    assert done.returncode == 1 and "KERAS_BACKEND must be jax" in done.stderr
