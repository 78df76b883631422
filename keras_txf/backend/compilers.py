"""Compiled functions, loops, products of one row, and fused attention kernels: how each backend computes."""

import functools
import math
import threading

import keras
from keras import ops

XLA_FUNCTIONS = 128  # the most that TensorFlow compiles by XLA in a process: it never frees their megabytes
LARGE = 2**28  # numbers in bfloat16, half a gigabyte
LARGE_MASK = 2**27  # entries of a mask from which PyTorch's kernel takes more memory than blocks: 5 bytes each


def compiled(function, variables, steps=None):
    """Returns the function, compiled if the backend can: XLA on TensorFlow and JAX, eager on PyTorch and NumPy.

    Args:
        function: function of nested tensors, made of `keras.ops` and Keras layers.
        variables: the Keras variables that the function reads anew at each call.
        steps: number of steps of the function's loop: 0 without a loop, 1, or None for many. Without a loop
            TensorFlow's graph computes large products as fast as XLA, and saves seconds of compilation.
    """
    compiler = _COMPILERS.get(keras.backend.backend())
    return function if compiler is None else compiler(function, list(variables), steps)


def compiles():
    """Whether the backend compiles functions."""
    return keras.backend.backend() in ("tensorflow", "jax")


def trains_unfused():
    """Whether training computes one operation after the other, so that a gradient by hand saves passes.

    On TensorFlow a training step of a generator takes 85 ms with such a gradient of the loss and 110 ms without, a step
    of a larger one 637 and 758 ms (small and medium of `benchmarks/train_step.py`, 2 cores).
    """
    return keras.backend.backend() == "tensorflow"


def _tensorflow(function, variables, steps):
    import tensorflow as tf

    @functools.cache
    def traced(in_graph):
        # Each has its own partial: TensorFlow counts traces by code, and would warn if models share the code.
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
    """Whether XLA would copy large weights to float32: on a CPU it cannot multiply bfloat16.

    The copies of 1.08 GB of weights take 2.5 GB more (`benchmarks/load_checkpoint.py`); TensorFlow's graph multiplies
    bfloat16 without a copy.
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
    """Whether TensorFlow may compile another function by XLA. Later functions run as graphs, whose memory is freed."""
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
    """Whether JAX's XLA copies weights to float32: on a CPU it cannot multiply bfloat16."""
    import jax

    return jax.default_backend() == "cpu" and any(variable.dtype == "bfloat16" for variable in variables)


# With these options XLA copies a weight right before its product, instead of all weights before the first product or
# the loop. A stream of 673 MB of weights takes 0.37 GB instead of 1.47, and 6 seconds of a processor instead of 10
# (`benchmarks/load_checkpoint.py --layers 4 --contenders jax --stream`). A loop of many steps would copy in each step.
_FREES_COPIES = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion",
}


def _torch(function, variables, steps):
    import torch

    return torch.no_grad()(function)


_COMPILERS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


PARTS = 4
SMALLEST = 2**16  # numbers in a matrix: products of smaller matrices gain nothing


def is_one_row(x, matrix):
    """Whether x is one float32 row, (1, 1, D), that XLA multiplies by a large matrix (D, U) on a CPU."""
    rows, dim, units = x.shape[:-1], *matrix.shape
    if (
        tuple(rows) != (1, 1)
        or dim % PARTS
        or dim * units < SMALLEST
        or keras.backend.standardize_dtype(x.dtype) != "float32"
    ):
        return False
    compiles_for_cpu = _COMPILES_FOR_CPU.get(keras.backend.backend())
    return compiles_for_cpu is not None and compiles_for_cpu()


def multiply_one_row(x, matrix):
    """Multiplies x (1, 1, D) by a matrix (D, U) in parts of D, and sums them in float32: (1, 1, U)."""
    dim, units = matrix.shape
    parts = ops.matmul(ops.reshape(x, (PARTS, 1, dim // PARTS)), ops.reshape(matrix, (PARTS, dim // PARTS, units)))
    return ops.sum(parts, axis=0, keepdims=True)


def _tensorflow_compiles_for_cpu():
    import tensorflow as tf

    return tf.inside_function() and not any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))


def _jax_compiles_for_cpu():
    import jax

    return jax.default_backend() == "cpu"


_COMPILES_FOR_CPU = {"tensorflow": _tensorflow_compiles_for_cpu, "jax": _jax_compiles_for_cpu}


def sequential_loop(first, last, step, state):
    """Calls `step(i, state)` for i from `first` up to `last`, one after the other; returns the last state.

    Ten parallel steps take 3.2 GB, and one 0.33 GB: attention and its gradient, 8,192 tokens, 8 heads of 64.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.fori_loop(first, last, step, state)
    import tensorflow as tf

    return tf.while_loop(
        lambda i, state: i < last, lambda i, state: (i + 1, step(i, state)), (first, state), parallel_iterations=1
    )[1]


def scan_states(step, state, xs):
    """Calls `state = step(state, x)` for each x of xs; returns the last state, and the state before each x.

    On TensorFlow XLA cannot compile the gradient of `keras.ops.scan`, because its loop has no maximum length.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.scan(lambda state, x: (step(state, x), state), state, xs)
    import tensorflow as tf

    after = tf.scan(step, xs, state)
    return after[-1], tf.concat([state[None], after[:-1]], axis=0)


def records_gradients():
    """Whether the backend may ask for gradients of the present computation; PyTorch knows if it does not.

    Compiled functions of the other backends leave out unused computations.
    """
    if keras.backend.backend() != "torch":
        return True
    import torch

    return torch.is_grad_enabled()


def has_kernel(query):
    """Whether the backend has a fused kernel for the dtype of the queries.

    TensorFlow has no kernel. JAX's kernel asks for a product of float16 in float32, which JAX does not compile for a
    CPU, and computes the softmax of float64 in float32.
    """
    inexact = keras.backend.standardize_dtype(query.dtype) in ("float16", "float64")
    return keras.backend.backend() == "torch" or (keras.backend.backend() == "jax" and not inexact)


def fuses_long(query, key, window, has_pairs):
    """Whether the kernel needs no more memory for long sequences than attention in blocks.

    PyTorch's kernel never holds the logits; JAX's kernel holds them on a CPU and in float32. PyTorch's kernel takes a
    mask as a whole, and computes the logits that a window hides: with a window of 512, 32,768 tokens and 8 heads of 64,
    attention and its gradient take 65 s and 6.2 GB, in blocks 12 s and 1.1 GB (2 cores). With a mask of 8,192 x 8,192
    entries the kernel takes no more memory than blocks, and half the time.

    Args:
        query, key: (B, T, N, H) and (B, S, K, H).
        window: the width of the mask's window, or None.
        has_pairs: whether the mask differs from query to query in other ways than by causality and window.
    """
    if keras.backend.backend() == "torch":
        entries = query.shape[1] * key.shape[1] * (query.shape[0] or 1)
        return window is None and (not has_pairs or entries < LARGE_MASK)
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu" and keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")


def takes_one_width():
    """Whether the kernel requires values with the width of the keys."""
    return keras.backend.backend() == "jax"
