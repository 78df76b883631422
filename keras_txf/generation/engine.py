"""What `generate` of every generative model runs on: a decode loop with a cache, compiled and kept."""

import itertools
import threading
import weakref

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.generation.adjustable import split
from keras_txf.generation.beams import Beam, BeamDecoding
from keras_txf.generation.compilers import compiled
from keras_txf.generation.contrastive import Contrastive, ContrastiveDecoding
from keras_txf.generation.decoding import Reader, Request, SampledDecoding

KEPT = 32  # loops of all models in a process; each is some megabytes
_engines = weakref.WeakSet()
_uses = itertools.count()
_lock = threading.RLock()
_DECODINGS = {Beam: BeamDecoding, Contrastive: ContrastiveDecoding}  # all else chooses token by token


class Engine:
    """The decode loops of one model, each compiled once for each bucket of lengths.

    A process keeps `KEPT` loops, those that were used last.

    Args:
        ids_name: the name of the token ids of its prefill and step models.
        pad_id: of the model, or None.
        first_is_real: whether the first token of a prompt is no padding even where it is `pad_id`.
    """

    def __init__(self, ids_name, pad_id, first_is_real=False):
        self.ids_name, self.pad_id, self.first_is_real = ids_name, pad_id, first_is_real
        self._readers, self._loops = {}, {}  # loops by what they are compiled for, each with when it was last used
        with _lock:
            _engines.add(self)

    def generate(self, build, prompts, limits, sampler, processors, sequences, stops, seed, inputs, stream=False):
        """Continues each prompt.

        Args:
            build: function of `width` and `return_hidden_states` that makes the prefill and the step model.
            prompts: list of lists of ids, none empty.
            limits: for each prompt how many tokens may follow.
            sampler: a sampler, `Beam` or `Contrastive`.
            processors: tuple of functions of logits and `History`.
            sequences: how many sequences for each prompt, at least one.
            stops: lists of ids that end a row.
            seed: None draws one.
            inputs: what else the prefill model takes, by name.
            stream: whether to return an iterator of the tokens instead, each int (R,), -1 for a row that has ended.

        Returns:
            For the R rows, `sequences` for each prompt, the new tokens, int (R, N), -1 after the end; their
            log-probabilities (R, N), and a score for each (R,). NumPy arrays.
        """
        keys, numbers = zip(*map(split, (sampler, *processors)))
        request = self._request(prompts, limits, stops, getattr(sampler, "width", 1), seed, inputs, list(numbers))
        request = keras.tree.map_structure(ops.convert_to_tensor, request)
        # The shapes too: TensorFlow would warn of a function that is traced for several.
        shapes = tuple(tuple(tensor.shape) for tensor in keras.tree.flatten(request))
        start, widen, advance, finish, results = self._kept_loop((*keys, sequences, shapes), build, sampler, processors, sequences)
        if stream:
            return _stream(start, widen, advance, request)
        tokens, log_probs, scores = map(ops.convert_to_numpy, results(finish(*start(request), request), request))
        if not np.isfinite(scores).all():  # as where the processors forbid all tokens; but NaN logits look the same
            _refuse_nan(self._decoding(build, sampler, processors, sequences).reader.prefill.variables)
        if np.isnan(scores).any():
            raise ValueError("The logits must be numbers; received NaN, from the model's activations, `processors` or `sampler`.")
        return tokens, log_probs, scores

    def function(self, build, new, sampler, processors, sequences, stops, jit_compile):
        """`generate` as a function of tensors, for a graph in which batch and lengths are unknown.

        Args:
            build, sampler, processors, sequences, stops: see `generate`.
            new: how many tokens may follow at most.
            jit_compile: whether XLA compiles the loop, for each batch and each 32 columns of prompt more.

        Returns:
            A function of prompts, int (B, P), padded on the left, their lengths and their limits, int (B,), a seed, int
            (2,), and the dict `inputs`, that returns what `generate` does.
        """
        loop = self._decoding(build, sampler, processors, sequences)
        advance = compiled(loop.advance, loop.reader.prefill.variables) if jit_compile else loop.advance
        stops, width = _stop_table(stops), getattr(sampler, "width", 1)
        numbers = [split(part)[1] for part in (sampler, *processors)]
        seed_dtype = keras.random.SeedGenerator(0).state.dtype

        def run(ids, lengths, limits, seed, inputs):
            step = 32 * width if jit_compile else width
            columns = ops.shape(ids)[1]
            length = -(-(columns + stops.shape[1] - 1) // step) * step
            ids = ops.pad(ids, ((0, 0), (length - columns, 0)))
            prompt = ops.arange(length)[None] >= length - lengths[:, None]
            visible = ops.logical_and(prompt, loop.reader.is_real(ids))
            if self.first_is_real:
                visible = ops.logical_or(visible, ops.arange(length)[None] == length - lengths[:, None])
            history = ops.pad(ops.where(prompt, ids, -1), ((0, 0), (0, new)), constant_values=-1)
            visible = ops.pad(visible, ((0, 0), (0, new * width)))
            seed = ops.cast(seed, seed_dtype)
            request = Request(ids, visible, inputs, history, limits, ops.convert_to_tensor(stops), seed, numbers)
            state, constant = loop.start(request)
            return loop.results(advance(loop.reader.widen(state, request), constant, request, request.new), request)

        return run

    def _kept_loop(self, key, *choices):
        """The loop for a key, made where none is kept; the one that is unused for longest goes."""
        with _lock:
            _, loop = self._loops.get(key, (None, None))
            self._loops[key] = next(_uses), loop or self._loop(*choices)
            loop = self._loops[key][1]
            while sum(len(engine._loops) for engine in _engines) > KEPT:
                engines = [engine for engine in _engines if engine._loops]
                oldest = min(engines, key=Engine._last_use)
                del oldest._loops[min(oldest._loops, key=lambda key: oldest._loops[key][0])]
            return loop

    def _last_use(self):
        """Of its loop that is unused for longest."""
        return min(use for use, _ in self._loops.values())

    def _decoding(self, build, sampler, processors, sequences):
        width, hidden = getattr(sampler, "width", 1), isinstance(sampler, Contrastive)
        if (width, hidden) not in self._readers:
            self._readers[width, hidden] = Reader(*build(width, hidden), self.ids_name, self.pad_id)
        reader = self._readers[width, hidden]
        return _DECODINGS.get(type(sampler), SampledDecoding)(reader, sampler, processors, sequences)

    def _loop(self, build, sampler, processors, sequences):
        """Its beginning, what comes before its parts, a part for a stream, all that follows, and what it has found.

        Each is compiled when it is called. XLA takes about a megabyte for each kernel: what need not be in the loop
        is not compiled with it.
        """
        loop = self._decoding(build, sampler, processors, sequences)
        reader = loop.reader

        def finish(state, constant, request):
            state = loop.advance(reader.widen(state, request), constant, request, request.new)
            return {name: value for name, value in state.items() if name != "cache"}

        variables = reader.prefill.variables
        return (
            compiled(loop.start, variables, runs_once=True),
            compiled(reader.widen, [], runs_once=True),
            compiled(loop.advance, variables),
            compiled(finish, variables),
            compiled(loop.results, [], runs_once=True),
        )

    def _request(self, prompts, limits, stops, width, seed, inputs, numbers):
        stops = _stop_table(stops)
        length = max(bucket(max(map(len, prompts))), stops.shape[1])
        length = -(-length // width) * width
        new = bucket(max(limits))
        ids = np.full((len(prompts), length), self.pad_id or 0, "int32")
        history = np.full((len(prompts), length + new), -1, "int32")
        visible = np.zeros((len(prompts), length + new * width), "bool")
        for row, prompt in enumerate(prompts):
            place = slice(length - len(prompt), length)
            ids[row, place] = history[row, place] = prompt
            visible[row, place] = [token != self.pad_id for token in prompt]
            visible[row, length - len(prompt)] |= self.first_is_real
        seed = checks.optional(checks.integer, "seed", seed)
        seed = keras.random.SeedGenerator(seed if seed is None else seed % 2**31).state.value  # no backend takes all
        return Request(ids, visible, inputs, history, np.array(limits, "int32"), stops, seed, numbers)


def _refuse_nan(variables):
    """Refuses a model with a weight that is not finite, by the path of the weight."""
    broken = [v.path for v in variables if "float" in v.dtype and not np.isfinite(ops.convert_to_numpy(ops.cast(v, "float32"))).all()]
    if broken:
        raise ValueError(
            f"The weights of a model that generates must be finite; received NaN or infinity in {len(broken)} of them, the first "
            f"is {broken[0]}."
        )


def _stream(start, widen, advance, request):
    """The tokens as they come. The first is there at once: what is compiled is of the adapters that are active now."""
    tokens = _columns(start, widen, advance, request)
    return itertools.chain([next(tokens)], tokens)


def _columns(start, widen, advance, request):
    state, constant = start(request)
    state = widen(state, request)
    for count in range(1, request.new + 1):
        state = advance(state, constant, request, ops.convert_to_tensor(np.array(count, "int32")))
        column = request.prompt_length + count - 1
        yield ops.convert_to_numpy(state["history"][:, column])
        if not ops.convert_to_numpy(state["running"]).any():
            return


def _stop_table(stops):
    """Stops as rows of one table, see `History`; few sizes, so that few are compiled."""
    rows, length = _power_of_two(max(4, len(stops))), _power_of_two(max(map(len, stops), default=1))
    table = np.full((rows, length), -3, "int32")
    for row, stop in enumerate(stops):
        table[row] = [-2] * (length - len(stop)) + list(stop)
    return table


def _power_of_two(number):
    return 2 ** (number - 1).bit_length()


def bucket(length, smallest=32):
    """The next of a few lengths, at most a quarter above: a compiled function serves them all."""
    step = max(smallest, 2 ** (int(length).bit_length() - 3))
    return max(1, -(-length // step)) * step
