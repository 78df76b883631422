"""What a layer costs: matrix products counted in the program that XLA compiled, peak memory, time, and fits of them."""

import math
import os
import pathlib
import re
import statistics
import time
import types

import numpy as np

INSTRUCTION = re.compile(r"^\s+(ROOT )?(%[\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)$")
NUMBERS = {"add": lambda a, b: a + b, "and": lambda a, b: a and b, "copy": lambda a: a, "bitcast": lambda a: a}
COMPARE = {"LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b}


def count(function, inputs):
    """Reads costs off the optimised program of `function`, a `tf.function(jit_compile=True)` of one tensor.

    The program is walked as it runs: a loop's counter and condition are evaluated, so that what stands in its body
    counts once a turn; XLA's own cost analysis would count it once. Only matrix products and convolutions count,
    from the shapes of their operands; elementwise work does not.

    Returns:
        weight_products: multiply-adds of products with weights or constants. pair_products: of two tensors that both
        depend on the inputs, as scores do. multiply_adds: both. steps: products in the longest chain in which each
        waits for the one before. trips: turns of the loops.
    """
    walk = _Walk(function.experimental_get_compiler_ir(inputs)(stage="optimized_hlo"))
    steps = walk.run(walk.entry, [(0 if i == 0 else None, None) for i in range(walk.size(walk.entry))])[0]
    return types.SimpleNamespace(
        weight_products=walk.weight_products, pair_products=walk.pair_products,
        multiply_adds=walk.weight_products + walk.pair_products, steps=steps, trips=walk.trips,
    )  # fmt: skip


class _Walk:
    """Runs the text of a program.

    A value is a pair: the products before it, None where it depends on no input, and its number, if known; or a list.
    """

    def __init__(self, text):
        self.computations, self.weight_products, self.pair_products, self.trips = {}, 0, 0, 0
        for line in text.splitlines():
            if line.endswith("{") and line.startswith(("%", "ENTRY")):
                name = re.search(r"%[\w.-]+", line)[0]
                self.computations[name] = []
                self.entry = name  # the last one is the ENTRY
            elif match := INSTRUCTION.match(line):
                _, result, shape, operation, inside, rest = match.groups()
                operands = re.findall(r"%[\w.-]+", inside)
                self.computations[name].append((bool(match[1]), result, shape, operation, operands, inside, rest))

    def size(self, name):
        return sum(operation == "parameter" for *_, operation, _, _, _ in self.computations[name])

    def run(self, name, arguments):
        values, shapes, root = {}, {}, None
        for is_root, result, shape, operation, operands, inside, rest in self.computations[name]:
            shapes[result] = shape
            given = [values[operand] for operand in operands]
            if operation == "parameter":
                value = arguments[int(inside)]
            elif operation == "tuple":
                value = given
            elif operation == "get-tuple-element":
                value = given[0][int(re.search(r"index=(\d+)", rest)[1])]
            elif operation in ("fusion", "call"):
                value = self.run(re.search(r"(?:calls|to_apply)=(%[\w.-]+)", rest)[1], given)
            elif operation == "while":
                value = self.loop(rest, given)
            elif operation in ("dot", "convolution"):
                sizes = [_sizes(shapes[operand]) for operand in operands]
                value = self.product(operation, given, _sizes(shape), sizes, rest)
            elif operation in ("custom-call", "conditional"):
                raise NotImplementedError(f"no count is known for {operation} in {name}: {rest[:200]}")
            else:
                before = [depth for value in given for depth, _ in (value if isinstance(value, list) else [value])]
                value = (_latest(before), _number(operation, given, inside, rest))
            values[result] = value
            root = value if is_root else root
        return root

    def loop(self, rest, given):
        condition, body = (re.search(rf"{part}=(%[\w.-]+)", rest)[1] for part in ("condition", "body"))
        while True:
            goes_on = self.run(condition, given)[1]
            if goes_on is None:
                raise NotImplementedError(f"the condition {condition} of a loop does not depend on a counter alone")
            if not goes_on:
                return given[0]
            given = [self.run(body, given)]
            self.trips += 1

    def product(self, operation, given, output, operands, rest):
        if operation == "dot":
            contracted = re.search(r"lhs_contracting_dims={([\d,]*)}", rest)[1]
            terms = math.prod(operands[0][int(axis)] for axis in contracted.split(",") if axis)
        else:
            kernel = re.search(r"dim_labels=\w+_(\w+)->", rest)[1]
            terms = math.prod(operands[1]) // operands[1][kernel.index("o")]
        before = [depth for depth, _ in given]
        if None in before:
            self.weight_products += math.prod(output) * terms
        else:
            self.pair_products += math.prod(output) * terms
        latest = _latest(before)
        return (None if latest is None else latest + 1, None)


def _sizes(shape):
    return [int(size) for size in re.search(r"\[([\d,]*)\]", shape)[1].split(",") if size]


def _latest(depths):
    return max((depth for depth in depths if depth is not None), default=None)


def _number(operation, given, inside, rest):
    """The value of a counter or a condition, None of all else."""
    if operation == "constant":
        return int(inside) if re.fullmatch(r"-?\d+", inside) else {"true": True, "false": False}.get(inside)
    rule = COMPARE.get(match[1]) if (match := re.search(r"direction=(\w+)", rest)) else NUMBERS.get(operation)
    numbers = [value[1] for value in given]
    return None if rule is None or None in numbers else rule(*numbers)


def note_memory(folder, name):
    """Has XLA note in `folder` the buffers of each function with `name` in its name; before its first compilation."""
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_module_re={name}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"


def peak_memory(folder, name):
    """Bytes that XLA sets aside for the program `name`: inputs, outputs, weights, and the most that lives between."""
    [report] = pathlib.Path(folder).glob(f"*_{name}_*memory-usage-report.txt")
    return int(re.search(r"Total bytes used: (\d+)", report.read_text())[1])


def seconds(calls, repeats):
    """Median times of the calls, by name; they take turns, so that a slow minute of the machine meets all of them."""
    times = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name] += [time.perf_counter() - start] if turn else []  # the first turn compiles
    return {name: statistics.median(values) for name, values in times.items()}


def exponent(sizes, values):
    """The p of the law size^p that fits best, in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def crossing(sizes, first, second):
    """The last size at which `first` grows over `second`, or None; straight lines in logarithms join them."""
    gap = np.log(first) - np.log(second)
    for i in reversed(range(len(sizes) - 1)):
        if gap[i] <= 0 < gap[i + 1]:
            share = gap[i] / (gap[i] - gap[i + 1])
            return float(np.exp(np.log(sizes[i]) + share * np.log(sizes[i + 1] / sizes[i])))
    return None
