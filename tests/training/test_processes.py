"""Two processes of JAX train as one process on the joint batches, and continue after a kill of one of them."""

import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_txf as txf

STEPS, EPOCHS, KILLED = 6, 3, 9  # killed after the step 9, which is in the second epoch


def main(plan, processes, rank, address, file, kill):
    """One process of a training, which prints the losses from the epoch on at which it begins."""
    if processes > 1:
        keras.distribution.initialize(address, processes, rank)
    import tensorflow as tf

    def build():
        return txf.models.decoder_generator(32, 1, 16, 4, use_bias=False)  # of keys a bias has no gradient but rounding

    keras.utils.set_random_seed(7)
    if plan == "data":
        parallel = keras.distribution.DataParallel()
    else:
        mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"])
        layouts = txf.training.layout_map(build, mesh, fsdp=plan == "fsdp")
        parallel = keras.distribution.ModelParallel(layout_map=layouts)
    keras.distribution.set_distribution(parallel)
    model = build()
    model.compile(keras.optimizers.Adam(0.01), txf.training.TokenCrossEntropy())
    ids = np.random.default_rng(0).integers(1, 32, (8 * STEPS, 6)).astype("int32")
    joint = tf.data.Dataset.from_tensor_slices((ids, np.roll(ids, -1, 1))).batch(8, drop_remainder=True)
    resume = txf.training.Resume(file)

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if kill and rank == 1 and int(self.model.optimizer.iterations.value) == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)

    history = model.fit(
        joint, epochs=EPOCHS, initial_epoch=resume.epoch, shuffle=False, verbose=0, callbacks=[Kill(), resume]
    )
    print("losses", *history.history["loss"])


def losses(printed):
    """The losses among the lines of a process, whose libraries print some too."""
    lines = [line.split() for line in printed.splitlines()]
    return next((np.array(line[1:], float) for line in lines if line[:1] == ["losses"]), None)


def start(plan, processes, file, kill=False):
    """Returns the losses of each process, None of one that did not end."""
    here = pathlib.Path(__file__).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={4 // processes}",
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    running = []
    for rank in range(processes):
        code = f"import test_processes as t; t.main{(plan, processes, rank, address, str(file), kill)}"
        running.append(
            subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        )
    try:
        if kill:
            assert running[1].wait(120) == -signal.SIGKILL
            running[0].kill()  # it waits for the other, or has failed
        return [losses(one.communicate(timeout=120)[0]) for one in running]
    finally:
        for one in running:
            one.kill()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="Keras shards data sets of TensorFlow alone")
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="Keras trains in several processes on JAX alone")
@pytest.mark.parametrize("plan", ["data", "model", "fsdp"])
def test_two_processes_train_as_one_and_resume(plan, tmp_path):
    (alone,) = start(plan, 1, tmp_path / "alone.npz")
    assert len(alone) == EPOCHS and alone[-1] < alone[0]
    first, second = start(plan, 2, tmp_path / "two.npz")
    np.testing.assert_allclose([first, second], [alone, alone], rtol=0, atol=1e-5)
    names = ["alone.npz", "two.npz"]
    if plan != "model":  # each kill takes ten seconds
        names += ["killed.npz"]
        assert start(plan, 2, tmp_path / "killed.npz", kill=True) == [None, None]
        for resumed in start(plan, 2, tmp_path / "killed.npz"):
            np.testing.assert_allclose(resumed, alone[1:], rtol=0, atol=1e-5)  # from the last complete epoch
    states = [np.load(tmp_path / name) for name in names]
    for key in states[0]:
        if key.startswith("variable_"):
            np.testing.assert_array_equal(states[-1][key], states[1][key])
            np.testing.assert_allclose(states[1][key], states[0][key], rtol=0, atol=1e-4)
