"""Engine: the compiled decode loops behind `generate` of every generative model."""

import functools
import itertools
import threading
import weakref

import keras
import numpy as np
from keras import ops

from keras_txf.backend.compilers import compiled, compiles
from keras_txf.generation.loop import Request, bucket, decoding_loop, stop_table
from keras_txf.generation.loop_functions import columns, compile_loop, finish_by_text
from keras_txf.generation.parameters import seed_state, split_parameters
from keras_txf.generation.results import State, Stream, cut_rows
from keras_txf.ops.masks import real_tokens
from keras_txf.progress import word

COMPILING = "generate compiles: this batch size, length or sampler is new ..."
MAX_LOOPS = 32  # compiled loops of all models in a process; each takes some megabytes
_engines = weakref.WeakSet()
_uses = itertools.count()
_lock = threading.RLock()


class Engine:
    """The decode loops of one model, each compiled once for each bucket of lengths.

    A process keeps the `MAX_LOOPS` loops that were used last.

    Args:
        ids_name: the name of the input with the token ids.
        pad_id: the padding token of prompts, or None. A generated token is never padding.
    """

    def __init__(self, ids_name, pad_id):
        self.ids_name, self.pad_id = ids_name, pad_id
        self._models = {}  # by width, and whether they return hidden states
        self._loops = {}  # key -> when the loop was last used, and its compiled functions
        with _lock:
            _engines.add(self)

    def generate(
        self, build_models, prompts, limits, strategy, seed, inputs, stop_strings=None, stream=False, state=None
    ):
        """Continues each prompt.

        Args:
            build_models: function of `width` and `return_hidden_states` that returns a `GraphDecoder`.
            prompts: list of lists of ids, none empty.
            limits: for each prompt how many tokens may follow.
            strategy: a `Strategy`.
            seed: integer; None draws one.
            inputs: dict, the other inputs of the model.
            stop_strings: `StopStrings` that end a row too, or None.
            stream: whether to return a `Stream` of the tokens instead, each int (R,), -1 for a row that has ended.
            state: a `State` of the starts of the prompts, or None.

        Returns:
            NumPy arrays for the R rows, `num_return_sequences` for each prompt: the new tokens, int (R, N), -1 after
            the end; their log-probabilities (R, N); and a score for each row (R,). With `top_logprobs`, also ids and
            log-probabilities of the likeliest tokens (R, N, k). With `keeps_state`, a pair of the arrays and the
            `State`.
        """
        loop, each = self._decoding_loop(build_models, strategy), strategy.num_return_sequences
        keys, parameters = zip(*map(split_parameters, (strategy.sampler, *strategy.processors)))
        request = self._request(
            prompts, limits, strategy.stops, loop.models.width, seed, inputs, list(parameters), state
        )
        key = *keys, each, strategy.top_logprobs, strategy.keeps_state
        request, functions, compiles = self._functions_for(request, key, loop)
        make_state = functools.partial(self._state, request, prompts, each, state)
        with word(COMPILING if compiles else ""):
            if not any(limits):
                tokens, memory = np.zeros((len(prompts) * each, 0), "int32"), functions.read(request)
                arrays = tokens, tokens.astype("float32"), np.zeros(len(tokens), "float32")
                return arrays, make_state(tokens, memory)
            if stream:
                found = Stream()
                tokens = columns(functions, request, stop_strings, found, strategy.keeps_state and make_state)
                found.tokens = itertools.chain([next(tokens)], tokens)  # the first token while its adapters are active
                return found
            if stop_strings is None:
                last, lengths = functions.finish(*functions.start(request), request), None
            else:
                last, lengths = finish_by_text(functions, request, stop_strings)
            memory = {name: last.pop(name) for name in ("cache", "constant", "logits") if name in last}
            tokens, log_probs, scores, *top = map(ops.convert_to_numpy, functions.results(last, request))
        if lengths is not None:
            tokens, log_probs, scores = cut_rows(tokens, log_probs, scores, lengths)
        if not np.isfinite(scores).all():  # -inf if the processors forbid all tokens, or from NaN logits
            check_finite_weights(loop.models.variables)
        if np.isnan(scores).any():
            raise ValueError(
                "The logits must be numbers; received NaN, from the model's activations, `processors` or `sampler`, or "
                "for a token beyond the model's `attention_mask` or `attention_bias`, within its `prefix_length` or a "
                "run of its `bidirectional_mask`, or because a row has more placeholders than vectors of images, or a "
                "part of an image."
            )
        arrays = tokens, log_probs, scores, *top
        if not strategy.keeps_state:
            return arrays
        return arrays, make_state(tokens, memory)

    def _state(self, request, prompts, each, state, tokens, memory):
        """The `State` after the new tokens, int (R, N), -1 after the end, of a call that began from `state`."""
        counts = (tokens >= 0).sum(axis=1)
        texts, real = [], []
        for row, (new, count) in enumerate(zip(tokens, counts)):
            prompt = prompts[row // each]
            texts.append([*prompt, *new[:count].tolist()])
            real.append(self._real(row // each, prompt, state) + [True] * int(count))
        return State(self, texts, real, (request.ids.shape[1] + counts - 1).astype("int32"), memory)

    def function(self, build_models, max_new_tokens, strategy, jit_compile):
        """`generate` as a function of tensors, for a graph in which batch and lengths are unknown.

        Args:
            max_new_tokens: the most tokens that may follow a prompt.
            build_models, strategy: see `generate`.
            jit_compile: whether XLA compiles the loop, for each batch size and for each 32 columns of prompt.

        Returns:
            A function that returns the arrays of `generate`. Its arguments are prompts, int (B, P), padded on the left,
            their lengths and their limits, int (B,), a seed, int (2,), and the dict `inputs`.
        """
        loop = self._decoding_loop(build_models, strategy)
        advance = compiled(loop.advance, loop.models.variables) if jit_compile else loop.advance
        stops, width = stop_table(strategy.stops), loop.models.width
        parameters = [split_parameters(part)[1] for part in (strategy.sampler, *strategy.processors)]
        seed_dtype = keras.random.SeedGenerator(0).state.dtype

        def run(ids, lengths, limits, seed, inputs):
            multiple = 32 * width if jit_compile else width
            columns = ops.shape(ids)[1]
            length = -(-(columns + stops.shape[1] - 1) // multiple) * multiple
            ids = ops.pad(ids, ((0, 0), (length - columns, 0)))
            prompt = ops.arange(length, dtype="int32")[None] >= length - lengths[:, None]
            attention_mask = ops.logical_and(prompt, real_tokens(ids, self.pad_id))
            history = ops.pad(ops.where(prompt, ids, -1), ((0, 0), (0, max_new_tokens)), constant_values=-1)
            attention_mask = ops.pad(attention_mask, ((0, 0), (0, max_new_tokens * width)))
            stop_table, seed = ops.convert_to_tensor(stops), ops.cast(seed, seed_dtype)
            request = Request(ids, attention_mask, inputs, history, limits, stop_table, seed, parameters)
            state, constant = loop.start(request)
            state = advance(loop.models.pad_cache(state, request), constant, request, request.max_new_tokens)
            return loop.results(state, request)

        return run

    def decoder(self, build_models, width=1, return_hidden_states=False):
        """The `GraphDecoder` that a loop runs, built once."""
        key = width, return_hidden_states
        with _lock:
            if key not in self._models:
                self._models[key] = build_models(*key)
            return self._models[key]

    def _decoding_loop(self, build_models, strategy):
        """The loop of the sampler."""
        return decoding_loop(strategy, functools.partial(self.decoder, build_models))

    def _functions_for(self, request, key, loop):
        """A request as tensors, the functions of a loop for its shapes, and whether they compile at their first call.

        Args:
            request: a tuple of nested NumPy arrays.
            key: hashable; everything else that the functions depend on.
        """
        request = keras.tree.map_structure(_tensor, request)
        # One function for each shape: TensorFlow would warn of a function that is traced for several shapes.
        key = *key, tuple(tuple(tensor.shape) for tensor in keras.tree.flatten(request))
        compile_now = key not in self._loops and compiles()
        return request, self._compiled_functions(key, loop), compile_now

    def _compiled_functions(self, key, loop):
        """The `LoopFunctions` of a key, cached. Beyond `MAX_LOOPS` loops the least recently used loop is dropped."""
        with _lock:
            _, functions = self._loops.get(key, (None, None))
            functions = functions or compile_loop(loop)
            self._loops[key] = next(_uses), functions
            while sum(len(engine._loops) for engine in _engines) > MAX_LOOPS:
                engines = [engine for engine in _engines if engine._loops]
                oldest = min(engines, key=Engine._oldest_use)
                del oldest._loops[min(oldest._loops, key=lambda key: oldest._loops[key][0])]
            return functions

    def _oldest_use(self):
        """The last use of the least recently used loop."""
        return min(use for use, _ in self._loops.values())

    def _real(self, row, prompt, state):
        """Whether each token of a prompt is real, a list of bool. Tokens that a state has generated are real."""
        known = [] if state is None else state.real[row]
        return known + [token != self.pad_id for token in prompt[len(known) :]]

    def _request(self, prompts, limits, stops, width, seed, inputs, parameters, state=None):
        """The `Request` of a call, NumPy arrays whose lengths are rounded up to a bucket."""
        stops = stop_table(stops)
        length = max(bucket(max(map(len, prompts))), stops.shape[1])
        length = -(-length // width) * width
        max_new_tokens = bucket(max(limits))
        ids = np.zeros((len(prompts), length), "int32")
        history = np.full((len(prompts), length + max_new_tokens), -1, "int32")
        attention_mask = np.zeros((len(prompts), length + max_new_tokens * width), "bool")
        for row, prompt in enumerate(prompts):
            columns = slice(length - len(prompt), length)
            ids[row, columns] = history[row, columns] = prompt
            attention_mask[row, columns] = self._real(row, prompt, state)
        limits = np.array(limits, "int32")
        kept = {}
        if state is not None:
            new = bucket(max(len(prompt) - len(read) for prompt, read in zip(prompts, state.ids)))
            kept = state.tensors(prompts, min(new, length), length)
        return Request(ids, attention_mask, inputs, history, limits, stops, seed_state(seed), parameters, kept)


def _tensor(x):
    """The tensor of an array. On JAX Keras would turn Booleans into float32 if floatx is another type."""
    return ops.convert_to_tensor(x, "bool" if str(getattr(x, "dtype", "")) == "bool" else None)


def check_finite_weights(variables):
    """Raises ValueError with the path of a weight that is not finite."""
    broken = [
        v.path
        for v in variables
        if "float" in v.dtype and not np.isfinite(ops.convert_to_numpy(ops.cast(v, "float32"))).all()
    ]
    if broken:
        raise ValueError(
            "The weights of a model that generates must be finite; received NaN or infinity in "
            f"{len(broken)} of them, the first is {broken[0]}."
        )
