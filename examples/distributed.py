"""Trains a language model on all devices there are, of one process or of several machines, on JAX.

    python examples/distributed.py --virtual-devices 8 --model 4          # a mesh of 2 x 4 on a CPU
    python examples/distributed.py --model 2 --fsdp                        # all GPUs of a machine

Of several machines each runs the same command with its own --process:

    python examples/distributed.py --processes 2 --process 0 --address 10.0.0.1:1234 --model 2
    python examples/distributed.py --processes 2 --process 1 --address 10.0.0.1:1234 --model 2

It prints the bytes that each device holds, and tokens/s. Start it again after a kill, and it goes on at the last epoch.
"""

import argparse
import collections
import math
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras_txf as txf  # before Keras: the package keeps TensorFlow's start-up lines away

# isort: split
import keras
import numpy as np
import tensorflow as tf


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a text file to learn; default: sequences that count upwards")
    parser.add_argument("--model", type=int, default=1, help="devices that share one copy of the weights")
    parser.add_argument("--fsdp", action="store_true", help="split the weights over the other devices too")
    parser.add_argument("--virtual-devices", type=int, help="split the CPU into so many devices for each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="the number of this one, from 0")
    parser.add_argument("--address", default="127.0.0.1:45678", help="of process 0")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step, over all devices")
    parser.add_argument("--steps", type=int, default=20, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--resume", help="a file that all processes see, such as runs/distributed.npz")
    return parser.parse_args()


def windows(options, vocab_size):
    """Pairs of tokens and next tokens, in an endless stream of batches in a fixed order."""
    if options.text:
        with open(options.text, "rb") as file:
            ids = np.frombuffer(file.read(), "uint8").astype("int32") % vocab_size
    else:
        ids = np.arange(1, 40 * options.length, dtype="int32") % vocab_size
    x, y = txf.training.next_token_windows(ids, length=options.length)
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(1000, seed=1)
    return data.batch(options.batch, drop_remainder=True)


def bytes_by_device(model):
    """The bytes of weights and of the optimizer on each device of this process."""
    held = collections.Counter()
    for variable in [*model.variables, *model.optimizer.variables]:
        sharding = variable.value.sharding
        for device in sharding.addressable_devices:
            held[str(device)] += math.prod(sharding.shard_shape(variable.shape)) * variable.value.dtype.itemsize
    return held


class Speed(keras.callbacks.Callback):
    """Prints tokens/s of each epoch but the first, in which the step is compiled."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.epochs = tokens, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        speed = f"{self.tokens / (time.perf_counter() - self.start):,.0f} tokens/s" if self.epochs > 1 else "compiled"
        print(f"epoch {epoch + 1}: loss {logs['loss']:.4f}, {speed}", flush=True)


def main():
    options, vocab_size = arguments(), 256
    if keras.backend.backend() != "jax":
        raise SystemExit(f"KERAS_BACKEND must be jax; it is {keras.backend.backend()}.")
    if options.virtual_devices:  # before JAX first looks for devices
        flag = f"--xla_force_host_platform_device_count={options.virtual_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
        # Threads of XLA. A collective of a virtual device holds one while it waits for other processes: with 2 threads,
        # those of 2 cores, each of them waited for ever.
        os.environ.setdefault("NPROC", "16")
    if options.processes > 1:
        keras.distribution.initialize(options.address, options.processes, options.process)
    devices = len(keras.distribution.list_devices())
    if devices % options.model:
        raise SystemExit(f"--model must divide the {devices} devices; received {options.model}.")

    def build():
        return txf.models.decoder_generator(
            vocab_size, options.layers, options.dim, options.heads, gated=True, norm="rms", norm_placement="pre",
            position="rotary", pad_id=None,
        )  # fmt: skip

    mesh = keras.distribution.DeviceMesh((devices // options.model, options.model), ["batch", "model"])
    layouts = txf.training.layout_map(build, mesh, fsdp=options.fsdp)
    keras.utils.set_random_seed(0)  # the same weights in each process
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        model = build()
        model.compile(keras.optimizers.Adam(1e-3), txf.training.TokenCrossEntropy())
        model.optimizer.build(model.trainable_variables)
        if options.process == 0:
            print(f"{devices} devices, {model.count_params():,} weights; the first step compiles for some seconds")
        for device, held in bytes_by_device(model).items():
            print(f"{device} holds {held:,} bytes of weights and moments", flush=True)
        callbacks = [Speed(options.steps * options.batch * options.length)] if options.process == 0 else []
        resume = txf.training.Resume(options.resume) if options.resume else None
        epoch = resume.epoch if resume else 0
        model.fit(
            windows(options, vocab_size).skip(epoch * options.steps), steps_per_epoch=options.steps,
            epochs=options.epochs, initial_epoch=epoch, shuffle=False, verbose=0,
            callbacks=[*callbacks, resume] if resume else callbacks,
        )  # fmt: skip


if __name__ == "__main__":
    main()
