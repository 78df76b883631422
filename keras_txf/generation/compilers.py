"""Compiling a function of tensors and Keras variables: the one file that knows the backends' compilers."""

import functools
import gc
import threading

import keras

XLA_FUNCTIONS = 128  # that TensorFlow compiles by XLA in a process, for it never frees one: each is some megabytes


def compiled(function, variables, runs_once=False):
    """The function, compiled where the backend can: XLA on TensorFlow and JAX, eager without gradients on PyTorch.

    Args:
        function: of nested tensors, made of `keras.ops` and Keras layers.
        variables: the Keras variables that it reads; what they hold at each call counts.
        runs_once: that it is no loop, and of large products: those TensorFlow's own graph does as fast as
            XLA, which would take seconds to compile.
    """
    return _COMPILERS[keras.backend.backend()](function, list(variables), runs_once)


def while_loop(condition, body, state):
    """`keras.ops.while_loop` over one nested state, small in XLA's memory."""
    if keras.backend.backend() == "tensorflow":
        body = functools.partial(_imported, body)
    (state,) = keras.ops.while_loop(condition, lambda state: (body(state),), (state,))
    return state


def uniform(rows, seed):
    """Random numbers in [0, 1), float32 (rows, 1), the same from a seed whether XLA compiles or not.

    Args:
        rows: how many, an integer or a scalar tensor.
        seed: what `keras.random` takes.
    """
    return _UNIFORM[keras.backend.backend()](rows, seed)


def unfused(x):
    """The tensor as XLA would compute it if nothing followed."""
    return _BARRIERS[keras.backend.backend()](x)


def compiles_for_cpu():
    """Whether XLA compiles, for a CPU."""
    return _ON_CPU[keras.backend.backend()]()


def _tensorflow(function, variables, runs_once):
    import tensorflow as tf

    @functools.cache
    def traced(in_graph):
        # Each a partial of its own: TensorFlow counts traces by the code, and would warn of models that share it.
        jit_compile = not runs_once and (in_graph or _one_more_by_xla())
        return tf.function(functools.partial(function), jit_compile=jit_compile, autograph=False)

    lock = threading.Lock()

    def run(*arguments):
        with lock:
            function = traced(tf.inside_function())  # as part of the caller's graph it is the caller's to keep
        return function(*arguments)

    return run


_xla_functions = 0
_XLA_LOCK = threading.Lock()


def _one_more_by_xla():
    """Whether TensorFlow may compile another function by XLA: those beyond run as a graph, which it frees."""
    global _xla_functions
    with _XLA_LOCK:
        may = _xla_functions < XLA_FUNCTIONS
        _xla_functions += may
        return may


def _imported(function, state):
    """What the function returns, from a copy of its graph that knows nothing of the Python stack.

    XLA would take 20 MB for the stacks of all nodes of a decode loop.
    """
    import tensorflow as tf

    if tf.executing_eagerly():  # as tf.config.run_functions_eagerly wants it
        return function(state)
    graph, inputs, outputs, structure = _traced(function, state)
    gc.collect()  # what was traced refers to itself, and XLA needs the memory next
    return tf.nest.pack_sequence_as(structure, tf.graph_util.import_graph_def(graph, inputs, outputs, name=""))


def _traced(function, state):
    """The function's graph, tensors of this graph by the names of its inputs, names of its outputs, and their nest."""
    import tensorflow as tf

    tensors = tf.nest.flatten(state)
    traced = tf.function(lambda *flat: function(tf.nest.pack_sequence_as(state, flat)), autograph=False)
    traced = traced.get_concrete_function(*tensors)
    graph = traced.graph.as_graph_def()
    if graph.library.function:  # which are called by name, and live as long as what was traced
        tf.compat.v1.add_to_collection(__name__, traced)
    inputs = zip(traced.inputs, [*tensors, *map(tf.identity, traced.captured_inputs)])
    inputs = {inside.name: outside for inside, outside in inputs if inside.consumers()}
    structure = tf.nest.map_structure(lambda tensor: tensor.name, traced.structured_outputs)
    return _fewer_nodes(graph), inputs, [tensor.name for tensor in traced.outputs], structure


def _fewer_nodes(graph):
    """Without the inputs, for which XLA has no kernel, and with each constant once: most are shapes and axes."""
    import tensorflow as tf

    waited_for = {name[1:] for node in graph.node for name in node.input if name.startswith("^")}
    constants = [node for node in graph.node if node.op == "Const" and node.name not in waited_for]
    first = {}
    same = {node.name: first.setdefault(node.attr["value"].SerializeToString(), node.name) for node in constants}
    kept = [node for node in graph.node if node.op != "Placeholder" and same.get(node.name, node.name) == node.name]
    lean = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library, node=kept)
    for node in lean.node:
        node.input[:] = [same.get(name, name) for name in node.input]
    return lean


def _jax(function, variables, runs_once):
    import jax

    @jax.jit
    def with_values(values, arguments):
        # As arguments: values that a jitted function captures would be constants inside it.
        with keras.StatelessScope(state_mapping=zip(variables, values)):
            return function(*arguments)

    return lambda *arguments: with_values([variable.value for variable in variables], arguments)


def _torch(function, variables, runs_once):
    import torch

    return torch.no_grad()(function)


_COMPILERS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


def _tensorflow_barrier(x):
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python.xla import optimization_barrier

    return x if tf.executing_eagerly() else optimization_barrier(x)[0]


def _jax_barrier(x):
    import jax

    return jax.lax.optimization_barrier(x)


_BARRIERS = {"tensorflow": _tensorflow_barrier, "jax": _jax_barrier, "torch": lambda x: x}


def _tensorflow_on_cpu():
    import tensorflow as tf

    return not any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))


def _jax_on_cpu():
    import jax

    return jax.default_backend() == "cpu"


def _keras_uniform(rows, seed):
    return keras.random.uniform((rows, 1), dtype="float32", seed=seed)


def _tensorflow_uniform(rows, seed):
    """A hash of the seed and the row: TensorFlow's own numbers are others where XLA computes them."""
    import tensorflow as tf

    if not hasattr(seed, "value"):  # a seed of Keras, not that of a step
        return _keras_uniform(rows, seed)
    first, second = tf.unstack(tf.cast(tf.bitwise.bitwise_and(seed.next(), 0xFFFFFFFF), "uint32"))
    x = tf.cast(tf.range(rows)[:, None], "uint32")
    for word in (first, second):
        x = x * tf.constant(0x9E3779B9, "uint32") + word
        for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):  # Wellons' triple32
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, "uint32"))) * tf.constant(factor, "uint32")
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(14, "uint32")))
    return tf.cast(tf.cast(tf.bitwise.right_shift(x, tf.constant(8, "uint32")), "int32"), "float32") / 2**24


_UNIFORM = {"tensorflow": _tensorflow_uniform, "jax": _keras_uniform, "torch": _keras_uniform}


_ON_CPU = {"tensorflow": _tensorflow_on_cpu, "jax": _jax_on_cpu, "torch": lambda: False}
