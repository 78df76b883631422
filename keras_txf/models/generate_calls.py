"""The common part of every model's `generate`: checks of the arguments, the engine, the results."""

import dataclasses
import functools
import inspect
import itertools
import typing
import weakref

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import mask_of, optional_inputs
from keras_txf.backend.keras_private import flatten_layers
from keras_txf.checks import short_repr
from keras_txf.generation.assisted import Assisted, check_assisted
from keras_txf.generation.engine import Engine
from keras_txf.generation.loop import Strategy
from keras_txf.generation.option_tables import is_loaded, with_defaults
from keras_txf.generation.processors import check_processors, without_token
from keras_txf.generation.prompts import check_switch, new_token_limits, stop_lists, stop_strings_of
from keras_txf.generation.results import WithState, check_state, check_state_options, check_top_logprobs, pack
from keras_txf.generation.samplers import check_options, check_sequences, check_stop_strings, check_stream, get_sampler
from keras_txf.layers.adapters import active_adapters
from keras_txf.layers.cache_kinds import cache_kind
from keras_txf.layers.caches import Cache
from keras_txf.layers.sequence_ends import Start
from keras_txf.layers.token_input import inputs_by_name, target_name, token_input
from keras_txf.models.decoding_models import check_decodable, decoding_models
from keras_txf.ops.tensors import at_most

Call = typing.TypeVar("Call", bound=typing.Callable)


def knows_options(call: Call) -> Call:
    """Decorates a method of a model: an unknown argument raises an error that suggests a known name.

    Missing arguments have the model's own defaults.
    """
    signature = inspect.signature(call)
    known = [*signature.parameters][1:]

    @functools.wraps(call)
    def checked(self, *args, **options):
        check_options(f"an option of `{call.__name__}`", options, known)
        arguments = signature.bind_partial(None, *args, **options).arguments
        options = {name: arguments[name] for name in known if name in arguments}
        return call(self, **with_defaults(self, options, known))

    return checked


@dataclasses.dataclass
class GenerateCall:
    """The arguments of a call of `generate` that all models share, see `Generator.generate`."""

    max_new_tokens: int | None
    max_length: int | None
    sampler: typing.Any
    processors: typing.Any
    num_return_sequences: int | None
    stop_ids: typing.Any
    stop_sequences: typing.Any
    seed: int | None = None
    padded: bool = True
    return_scores: bool = False
    stream: bool = False
    stop_strings: typing.Any = None
    tokenizer: typing.Any = None
    top_logprobs: int | None = None
    assistant: keras.Model | None = None
    draft_tokens: int = 4
    cache: typing.Any = None
    state: typing.Any = None
    return_state: bool = False

    @classmethod
    def of(cls, arguments):
        """The options among the arguments of a method, a dict such as `locals()`."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in arguments.items() if name in names})

    def strategy(self, model, tokens):
        """The checked `Strategy` of these options."""
        sampler = get_sampler(self.sampler, tokens.vocab_size)
        processors = check_processors(self.processors, tokens.vocab_size)
        stops = stop_lists(self.stop_ids, self.stop_sequences, tokens.vocab_size)
        is_stop = tokens.pad_id in itertools.chain(*stops)
        if tokens.pad_id is not None and not is_stop and not is_loaded(model):
            processors = (*processors, without_token(tokens.pad_id))  # padding is never a target of the losses
        if tokens.placeholder_id is not None:
            processors = (*processors, without_token(tokens.placeholder_id))
        return Strategy(sampler, processors, check_sequences(sampler, self.num_return_sequences), stops)


def run_generate(model, tokens, prompts, prefixes, inputs, options):
    """Runs `generate` of any model.

    Args:
        model: a model with `generate`.
        tokens: the `TokenInput` of the model.
        prompts: list of lists of ids.
        prefixes: for each prompt the ids before the new ids in the result.
        inputs: dict, the other inputs of the model.
        options: a `GenerateCall`.
    """
    state, return_scores, stream = options.state, options.return_scores, options.stream
    kind, draft_tokens = cache_kind(options.cache), checks.size("draft_tokens", options.draft_tokens)
    engine = _engine(model, tokens, kind)
    if state is not None:
        check_state(state).check(engine, len(prompts))
        prompts = [earlier + prompt for earlier, prompt in zip(state.ids, prompts)]
    lengths = list(map(len, prompts))
    reads_alone = options.return_state is True and stream is False
    limits = new_token_limits(lengths, options.max_new_tokens, options.max_length, tokens.max_length, reads_alone)
    longest = max(lengths)
    check_switch(switch_length_of(model), longest if state is None else min(map(len, state.ids)), longest, max(limits))
    strategy = options.strategy(model, tokens)
    for name in ("padded", "return_scores", "stream", "return_state"):
        checks.boolean(name, getattr(options, name))
    top_logprobs = check_top_logprobs(options.top_logprobs, tokens.vocab_size, return_scores)
    stop_strings = stop_strings_of(options.stop_strings, options.tokenizer)
    check_stop_strings(strategy.sampler, stop_strings and stop_strings.strings)
    check_state_options(strategy.sampler, state, options.return_state, stop_strings, options.assistant)
    if options.assistant is not None:
        decoder = _assistant(options.assistant, tokens, inputs, lengths, limits)
        check_assisted(strategy.sampler)
        strategy = strategy._replace(sampler=Assisted(strategy.sampler, decoder, draft_tokens))
    is_search = hasattr(strategy.sampler, "decoding_loop")
    if not kind.keeps_all and (is_search or state is not None or options.return_state):
        raise ValueError(
            f'`cache` must keep all tokens for beams, "contrastive", `assistant` and `state`; received {kind.__name__}.'
        )
    if stream:
        check_stream(strategy.sampler, options.padded, return_scores)
    strategy = strategy._replace(top_logprobs=top_logprobs, keeps_state=options.return_state)
    build_models = functools.partial(decoding_models, model, kind=kind)
    found = engine.generate(build_models, prompts, limits, strategy, options.seed, inputs, stop_strings, stream, state)
    if stream:
        shape = (-1,) if options.num_return_sequences is None else (-1, options.num_return_sequences)
        found.tokens = map(functools.partial(np.reshape, shape=shape), found.tokens)
        return found if options.return_state else found.tokens
    found, last = found if options.return_state else (found, None)
    padding = tokens.pad_id or 0
    result = pack(found, prefixes, options.num_return_sequences, padding, options.padded, return_scores)
    if not options.return_state:
        return result
    return WithState(result.ids, last, result) if return_scores else WithState(result, last)


def _assistant(assistant, tokens, inputs, lengths, limits):
    """The decoder of an assistant for prompts of these lengths, with a limit of new tokens for each."""
    check_decodable(assistant, "assistant")
    drafted = token_input(assistant, target_name(assistant))
    needed = set(inputs_by_name(assistant)) - {drafted.name}
    if drafted.vocab_size != tokens.vocab_size or not needed <= set(inputs):
        raise ValueError(
            f"`assistant` must read the ids and the model's inputs {short_repr(sorted(inputs))}, and have its "
            f"vocabulary of {tokens.vocab_size}; received a model that reads {short_repr(sorted(needed))}, with a "
            f"vocabulary of {drafted.vocab_size}."
        )
    total = max(length + limit for length, limit in zip(lengths, limits))
    if drafted.max_length is not None and total > drafted.max_length:
        raise ValueError(
            f"`assistant` must have positions for {total} tokens of a prompt and its answer; received a model with "
            f"max_length={drafted.max_length}."
        )
    check_switch(switch_length_of(assistant), max(lengths), max(lengths), max(limits))
    return _engine(assistant, drafted).decoder(functools.partial(decoding_models, assistant))


def make_function(model, tokens, longest_prompt, options, jit_compile):
    """The engine's function of tensors, and a function from prompt lengths to the limits of new tokens."""
    max_length = options.max_length
    model_length, switch_length = tokens.max_length, switch_length_of(model)
    limited = any(bound is not None for bound in (model_length, max_length, switch_length))
    if limited and longest_prompt is None:
        raise ValueError(
            "`longest_prompt` (the tokenizer's `length`) must be given if tokens are limited; received None, the "
            f"model's max_length={model_length} and max_length={max_length}."
        )
    lengths = [1, checks.optional(checks.positive_integer, "longest_prompt", longest_prompt) or 1]
    most = max(new_token_limits(lengths, options.max_new_tokens, max_length, model_length))
    strategy = options.strategy(model, tokens)
    checks.boolean("jit_compile", jit_compile)
    follow = _engine(model, tokens).function(functools.partial(decoding_models, model), most, strategy, jit_compile)
    check_switch(switch_length, 1, lengths[1], most)

    def run(ids, lengths, limits, seed, inputs):
        inputs = {name: ops.convert_to_tensor(value) for name, value in inputs.items()}
        return follow(ids, lengths, limits, seed, inputs)

    def limit(lengths):
        return ops.full_like(lengths, most) if max_length is None else at_most(max_length - lengths, most)

    return run, limit


def switch_length_of(model):
    """The shortest length beyond which a position layer of the model changes its frequencies, or None."""
    return min(filter(None, (getattr(layer, "switch_length", None) for layer in flatten_layers(model))), default=None)


def other_inputs(model, ids_name, inputs):
    """The model's inputs other than the token ids, as arrays by their names."""
    if inputs is not None and not isinstance(inputs, dict):
        raise ValueError(
            f"`inputs` must be a dict of arrays by the names of the model's inputs; received {short_repr(inputs)}."
        )
    masks = {mask for mask, name in model.mask_names.items() if name != ids_name}  # a series to continue has no padding
    optional = {*optional_inputs(model)} | masks  # masks of float vectors; files of before have inputs
    inputs, needed = dict(inputs or {}), (set(inputs_by_name(model)) | optional) - {ids_name}
    if not needed - optional <= set(inputs) <= needed:
        also = f", and maybe {short_repr(sorted(optional))}" if optional else ""
        raise ValueError(
            f"`inputs` must be the model's inputs other than {short_repr(ids_name)}, "
            f"{short_repr(sorted(needed - optional))}{also}; received {short_repr(sorted(map(str, inputs)))}. "
            f"The first argument is the prompt, {ids_name!s}."
        )
    for name in optional:
        vectors = name.removesuffix("_mask")
        inputs[vectors] = checks.dense_tensor(vectors, inputs[vectors])
        if inputs.get(name) is None:
            mask = mask_of(inputs[vectors])
            inputs[name] = ops.ones(ops.shape(inputs[vectors])[:2], "bool") if mask is None else mask
    for name, value in inputs.items():
        if mask_of(value) is not None and f"{name}_mask" not in needed:
            raise ValueError(
                f"`inputs` must have no Keras mask: `generate` would lose the mask of {name!s}. Add an input "
                f"{name!s}_mask to the model."
            )
    inputs = model.check_inputs(inputs)
    for name, tensor in inputs_by_name(model).items():
        if name in inputs:
            _check_shape(name, inputs[name], tensor.shape)
    return inputs


def check_rows(inputs, number):
    """Raises ValueError if another input does not have one row for each prompt."""
    for name, value in inputs.items():
        if len(value) != number:
            raise ValueError(
                f"`inputs` must have one row for each of the {number} prompts; received {len(value)} of {name!s}."
            )


def _check_shape(name, value, expected):
    shape = tuple(getattr(value, "shape", np.shape(value)))
    known = [pair for pair in zip(shape, expected) if None not in pair]
    if len(shape) != len(expected) or any(size != needed for size, needed in known):
        raise ValueError(f"`inputs` must hold {name!s} of shape {expected}; received shape {shape}.")


def _start_layer(model):
    return next((layer for layer in model.layers if isinstance(layer, Start)), None)


def start_id_of(model):
    """The default start token of an encoder-decoder's targets."""
    layer = _start_layer(model)
    return 1 if layer is None else layer.start_id


_ENGINES = weakref.WeakKeyDictionary()


def _engine(model, tokens, kind=Cache):
    start = _start_layer(model)
    # With a declared start token no padding precedes it: all tokens of a start are real, also `pad_id`.
    return engine_of(model, lambda: Engine(tokens.name, tokens.pad_id if start is None else None), kind)


def engine_of(model, make, kind=Cache):
    """The model's engine for its active adapters and a cache class; `quantize` makes new variables and a new engine."""
    variables, engines = _ENGINES.get(model, ([], {}))
    if len(variables) != len(model.variables) or any(a is not b for a, b in zip(variables, model.variables)):
        engines = {}
        _ENGINES[model] = model.variables, engines
    key = active_adapters(model), kind
    if key not in engines:
        engines[key] = make()
    return engines[key]
