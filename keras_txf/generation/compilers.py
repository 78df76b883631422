"""Compiles functions of tensors and Keras variables: the one file that knows the backends' compilers."""

import functools
import math
import threading

import keras

XLA_FUNCTIONS = 128  # that TensorFlow compiles by XLA in a process: it never frees their megabytes
LARGE = 2**28  # numbers of bfloat16, half a gigabyte


def compiled(function, variables, steps=None):
    """The function, compiled where the backend can: XLA on TensorFlow and JAX, eager on PyTorch and NumPy.

    Args:
        function: of nested tensors, made of `keras.ops` and Keras layers.
        variables: the Keras variables that the function reads, at each call anew.
        steps: how many steps the loop of the function takes: 0, it has no loop, 1, or None, many. Without a loop
            TensorFlow's graph computes large products as fast as XLA, and without seconds of compilation.
    """
    compiler = _COMPILERS.get(keras.backend.backend())
    return function if compiler is None else compiler(function, list(variables), steps)


def uniform(rows, seed):
    """Random numbers in [0, 1), float32 (rows, 1), the same from a seed whether XLA compiles or not.

    Args:
        rows: how many, an integer or a scalar tensor.
        seed: a seed of `keras.random`.
    """
    return (_tensorflow_uniform if keras.backend.backend() == "tensorflow" else _keras_uniform)(rows, seed)


def _tensorflow(function, variables, steps):
    import tensorflow as tf

    @functools.cache
    def traced(in_graph):
        # A partial for each: TensorFlow counts traces by the code, and would warn of models that share the code.
        may = steps != 0 and not _checks_numerics()
        jit_compile = may and (in_graph or not _xla_copies(variables) and _one_more_by_xla())
        return tf.function(functools.partial(function), jit_compile=jit_compile, autograph=False)

    lock = threading.Lock()

    def run(*arguments):
        with lock:
            function = traced(tf.inside_function())  # inside a graph, the caller keeps the function
        return function(*arguments)

    return run


def _xla_copies(variables):
    """Whether XLA would hold large weights a second time, in float32: on a CPU it multiplies no bfloat16.

    Of 1.08 GB of weights the copies take 2.5 GB more (`benchmarks/load_checkpoint.py`); TensorFlow's graph multiplies
    bfloat16 as it is.
    """
    import tensorflow as tf

    numbers = sum(math.prod(variable.shape) for variable in variables if variable.dtype == "bfloat16")
    return numbers >= LARGE and not any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))


def _checks_numerics():
    """Whether `tf.debugging.enable_check_numerics` is on: it adds operations that XLA does not compile."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.zeros(())
    return any(operation.type == "CheckNumericsV2" for operation in graph.get_operations())


_xla_functions = 0
_XLA_LOCK = threading.Lock()


def _one_more_by_xla():
    """Whether TensorFlow may compile another function by XLA. Later functions run as graphs, which it frees."""
    global _xla_functions
    with _XLA_LOCK:
        may = _xla_functions < XLA_FUNCTIONS
        _xla_functions += may
        return may


def _jax(function, variables, steps):
    import jax

    @functools.partial(jax.jit, compiler_options=_FREES_COPIES if steps in (0, 1) and _copies(variables) else None)
    def with_values(values, arguments):
        # The values are arguments: captured values would be constants of the jitted function.
        with keras.StatelessScope(state_mapping=zip(variables, values)):
            return function(*arguments)

    return lambda *arguments: with_values([variable.value for variable in variables], arguments)


def _copies(variables):
    """Whether JAX's XLA holds weights a second time, in float32: on a CPU it multiplies no bfloat16."""
    import jax

    return jax.default_backend() == "cpu" and any(variable.dtype == "bfloat16" for variable in variables)


# XLA then copies a weight right before its product, and not all weights before the first product or before the loop.
# A stream of 673 MB of weights takes 0.37 GB in place of 1.47, and 6 seconds of a processor in place of 10
# (`benchmarks/load_checkpoint.py --layers 4 --contenders jax --stream`). A loop of many steps would copy in each step.
_FREES_COPIES = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion",
}


def _torch(function, variables, steps):
    import torch

    return torch.no_grad()(function)


_COMPILERS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


def _keras_uniform(rows, seed):
    return keras.random.uniform((rows, 1), dtype="float32", seed=seed)


def _tensorflow_uniform(rows, seed):
    """A hash of the seed and the row: TensorFlow's own random numbers differ between XLA and its graphs."""
    import tensorflow as tf

    if not hasattr(seed, "value"):  # a seed of Keras, no `StepSeed`
        return _keras_uniform(rows, seed)
    first, second = tf.unstack(tf.cast(tf.bitwise.bitwise_and(seed.next(), 0xFFFFFFFF), "uint32"))
    x = tf.cast(tf.range(rows)[:, None], "uint32")
    for word in (first, second):
        x = x * tf.constant(0x9E3779B9, "uint32") + word
        for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):  # Wellons' triple32
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, "uint32"))) * tf.constant(
                factor, "uint32"
            )
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(14, "uint32")))
    return tf.cast(tf.cast(tf.bitwise.right_shift(x, tf.constant(8, "uint32")), "int32"), "float32") / 2**24
