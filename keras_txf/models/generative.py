"""The model classes: functional Keras models, with `generate` on the two that generate."""

import functools
import math
import weakref

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.generation.engine import Engine, bucket
from keras_txf.generation.processors import check_processors
from keras_txf.generation.prompts import new_token_limits, prompt_lists, stop_lists
from keras_txf.generation.results import pack, pad_rows
from keras_txf.generation.samplers import check_sequences, check_stream, get_sampler
from keras_txf.layers.options import register
from keras_txf.layers.projections import active_adapters
from keras_txf.layers.starts import Start
from keras_txf.models.stepping import prefill_model, refuse_packed, step_model
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.stack import find_embedding


@register
class ContextDecoder(CheckedModel):
    """A decoder whose context brings a mask. Its logits carry the mask of the target ids, if any."""

    def __call__(self, inputs, *args, **kwargs):
        # Keras refuses arrays beside tensors, and a context is a tensor where ids are an array.
        def convert(x):
            return ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x

        return super().__call__(keras.tree.map_structure(convert, inputs), *args, **kwargs)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@register
class Generator(CheckedModel):
    """A decoder-only language model."""

    def generate(
        self,
        prompt_ids=None,
        max_new_tokens=None,
        sampler="greedy",
        stop_ids=None,
        seed=None,
        max_length=None,
        stop_sequences=None,
        processors=(),
        num_return_sequences=None,
        start_id=None,
        padded=True,
        return_scores=False,
        stream=False,
    ):
        """Continues each prompt.

        Args:
            prompt_ids: token ids: lists of unequal lengths, a ragged tensor, or an array (B, T) padded on
                either side. The model's padding is left out wherever it stands; with pad_id=None nothing is padding.
                None: the start token alone.
            max_new_tokens: at most this many tokens are appended to each prompt; default 64, where
                `max_length` is not given either. The memory for all of them is taken at the beginning.
            sampler: "greedy", "sampling", "beam", "contrastive"; or with options of its own
                `txf.generation.Sampling(...)`, `Beam(...)`, `Contrastive(...)`; or a function of logits,
                float32 (B, V), and a seed for `keras.random`, made of `keras.ops`, that returns ids (B,).
            stop_ids: a token id or several; a row ends with the first that it produces.
            seed: the same seed gives the same tokens. Default: another one each time.
            max_length: at most so many tokens in a prompt and what follows it.
            stop_sequences: sequences of ids; a row ends when it has produced one.
            processors: what is done to the logits before a token is chosen, in this order: such as
                `txf.generation.RepetitionPenalty(1.2)`, or functions of logits (R, V) and a
                `txf.generation.History` that return logits. Where they leave a row no token, its ids mean nothing and its
                score is -inf. A loop is compiled for each function, a sampler too: pass
                the same one again, not a new `lambda` for each call. A process keeps the 32 loops that were used last,
                and TensorFlow compiles 128 by XLA, which it never frees: those beyond run slower, as its graph.
            num_return_sequences: how many sequences for each prompt: draws of a sampler, or the best beams.
                With it the result has an axis more, after the batch's.
            start_id: a token that is put before each prompt. The model does not see it where it is the model's padding.
            padded: False returns lists of ids without padding.
            return_scores: return a `txf.generation.Scored`: also the log-probabilities of the new tokens,
                and the score of each sequence, their sum, or the beam's.
            stream: return an iterator that yields the tokens of all rows as they come, int32 (B,), and -1
                for a row that has ended.

        Returns:
            NumPy int32 (B, longest): prompts and what follows them, padded on the right.

        Raises:
            ValueError: no prompt or an empty one, ids outside the vocabulary, more tokens than the
                model has positions, options that do not go together, a weight that is NaN or infinite (but not of a stream).

        Example:

        >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
        >>> draws = txf.generation.Sampling(temperature=0.8, top_p=0.9)
        >>> result = model.generate([[5, 6], [7]], 4, draws, num_return_sequences=3, return_scores=True)
        >>> result.ids.shape, result.log_probs.shape, result.scores.shape
        ((2, 3, 6), (2, 3, 4), (2, 3))
        """
        embedding = find_embedding(self, "embedding")
        if prompt_ids is None:
            if start_id is None:
                raise ValueError("`prompt_ids` may be left out only where `start_id` is given; received neither.")
            prompts = [[]]
        else:
            prompts = prompt_lists("prompt_ids", prompt_ids, embedding.pad_id, embedding.vocab_size)
        if start_id is not None:
            checks.id_below("start_id", start_id, embedding.vocab_size)
            prompts = [[start_id, *prompt] for prompt in prompts]
        if not all(prompts):
            raise ValueError("`prompt_ids` must hold at least one token in each prompt; received an empty one.")
        return _generate(
            self, embedding, prompts, prompts, {}, max_new_tokens, max_length, sampler, processors,
            num_return_sequences, stop_ids, stop_sequences, seed, padded, return_scores, stream,
        )  # fmt: skip

    def make_generate_function(
        self,
        max_new_tokens=None,
        sampler="greedy",
        stop_ids=None,
        max_length=None,
        stop_sequences=None,
        processors=(),
        num_return_sequences=None,
        longest_prompt=None,
        jit_compile=False,
    ):
        """`generate` as a function of tensors, for a TensorFlow graph in which batch and lengths are unknown.

        `txf.text.export` is made of it. Sequences and scores are those of `generate`.

        Args:
            longest_prompt: the most tokens of a prompt. Needed where the model has a `max_length`, or this call.
            jit_compile: whether XLA compiles the loop: for each size of batch and each 32 tokens of prompt more.
                Draws of functions of yours are those of `generate` only then.
            others: see `generate`.

        Returns:
            A function of `ids`, int32 (B, P), padded on the left, P at least 1; `lengths`, int32 (B,), of the prompts; and
            `seed`, int (2,). It returns for the R rows, the sequences of each prompt side by side, their new tokens,
            int32 (R, N), -1 after the end, log-probabilities (R, N), and scores (R,).

        Raises:
            ValueError: see `generate`.

        Example:

        >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
        >>> generate = model.make_generate_function(max_new_tokens=4)
        >>> tokens, log_probs, scores = generate(np.array([[5, 6], [0, 7]]), np.array([2, 1]), np.array([3, 0]))
        >>> tokens.shape
        (2, 4)
        """
        run, limit = _function(
            self, find_embedding(self, "embedding"), longest_prompt, max_new_tokens, max_length, sampler, processors,
            num_return_sequences, stop_ids, stop_sequences, jit_compile,
        )  # fmt: skip

        def generate(ids, lengths, seed):
            ids, lengths = ops.cast(ids, "int32"), ops.cast(lengths, "int32")
            return run(ids, lengths, limit(lengths), ops.convert_to_tensor(seed), {})

        return generate


@register
class Seq2Seq(CheckedModel):
    """An encoder-decoder."""

    def generate(
        self,
        source_ids,
        max_new_tokens=None,
        sampler="greedy",
        stop_ids=None,
        seed=None,
        start_id=None,
        max_length=None,
        stop_sequences=None,
        processors=(),
        num_return_sequences=None,
        padded=True,
        return_scores=False,
        stream=False,
    ):
        """Answers each source.

        Args:
            source_ids: token ids: lists of unequal lengths, a ragged tensor, or an array (B, S) padded on
                either side.
            max_new_tokens: at most this many tokens are generated for each source; default 64, where
                `max_length` is not given either.
            start_id: the token that every target begins with in training, such as the `start` of the targets' tokenizer;
                default the model's, or else 1.
            max_length: at most so many tokens in an answer, the start token included.
            sampler, stop_ids, seed, stop_sequences, processors, num_return_sequences, padded, return_scores,
            stream: see `Generator.generate`.

        Returns:
            NumPy int32 (B, longest): the answers without the start token, padded on the right.

        Raises:
            ValueError: no source, ids outside the vocabulary, more tokens than the model has positions,
                options that do not go together.
        """
        source, target = find_embedding(self, "source_embedding"), find_embedding(self, "target_embedding")
        start_id = _start_id(self) if start_id is None else start_id
        sources = prompt_lists("source_ids", source_ids, source.pad_id, source.vocab_size)
        checks.id_below("start_id", start_id, target.vocab_size)
        width = max(1, *map(len, sources))
        if source.pad_id is None and any(len(row) != width for row in sources):
            raise ValueError("`source_ids` must be of one length, since the model has pad_id=None.")
        if source.pad_id is not None:
            width = max(width, min(bucket(width), _longest(self, "source", source) or math.inf))
        inputs = {"source_ids": pad_rows(sources, source.pad_id or 0, width)}
        return _generate(
            self, target, [[start_id]] * len(sources), [[]] * len(sources), inputs, max_new_tokens, max_length,
            sampler, processors, num_return_sequences, stop_ids, stop_sequences, seed, padded, return_scores, stream,
        )  # fmt: skip

    def make_generate_function(
        self,
        max_new_tokens=None,
        sampler="greedy",
        stop_ids=None,
        start_id=None,
        max_length=None,
        stop_sequences=None,
        processors=(),
        num_return_sequences=None,
        jit_compile=False,
    ):
        """`generate` as a function of tensors, for a TensorFlow graph in which batch and lengths are unknown.

        Args:
            others: see `generate`, and `Generator.make_generate_function`.

        Returns:
            A function of `source_ids`, int32 (B, S), padded, S at least 1, and `seed`, int (2,), that returns what that
            of `Generator.make_generate_function` does.

        Raises:
            ValueError: see `generate`.
        """
        target = find_embedding(self, "target_embedding")
        start_id = _start_id(self) if start_id is None else start_id
        checks.id_below("start_id", start_id, target.vocab_size)
        run, limit = _function(
            self, target, 1, max_new_tokens, max_length, sampler, processors,
            num_return_sequences, stop_ids, stop_sequences, jit_compile,
        )  # fmt: skip

        def generate(source_ids, seed):
            source_ids = ops.cast(source_ids, "int32")
            lengths = ops.ones_like(source_ids[:, 0])
            inputs = {"source_ids": source_ids}
            return run(start_id * lengths[:, None], lengths, limit(lengths), ops.convert_to_tensor(seed), inputs)

        return generate


def _generate(
    model, embedding, prompts, shown, inputs, max_new_tokens, max_length, sampler, processors, num_return_sequences,
    stop_ids, stop_sequences, seed, padded, return_scores, stream,
):
    """What both models do; `shown` are the ids that stand before the new ones in the result."""
    limits = new_token_limits(list(map(len, prompts)), max_new_tokens, max_length, _longest(model, "target", embedding))
    choices = _choices(embedding, sampler, processors, num_return_sequences, stop_ids, stop_sequences)
    for name, value in (("padded", padded), ("return_scores", return_scores), ("stream", stream)):
        checks.boolean(name, value)
    refuse_packed(model)
    engine, build = _engine(model, embedding.pad_id), functools.partial(_parts, model)
    run = functools.partial(engine.generate, build, prompts, limits, *choices, seed, inputs)
    if stream:
        check_stream(choices[0], padded, return_scores)
        shape = (-1,) if num_return_sequences is None else (-1, num_return_sequences)
        return (tokens.reshape(shape) for tokens in run(stream=True))
    return pack(*run(), shown, num_return_sequences, embedding.pad_id or 0, padded, return_scores)


def _function(
    model, embedding, longest, max_new_tokens, max_length, sampler, processors, num_return_sequences, stop_ids,
    stop_sequences, jit_compile,
):
    """The engine's function of tensors, and that of the prompts' lengths that says how many tokens may follow each."""
    own_length = _longest(model, "target", embedding)
    limited = own_length is not None or max_length is not None
    if limited and longest is None:
        raise ValueError(
            "A `longest_prompt` (the tokenizer's `length`) must be given where tokens are limited; received None, the "
            f"model's max_length={own_length} and max_length={max_length}."
        )
    lengths = [1, checks.optional(checks.positive_integer, "longest_prompt", longest) or 1]
    new = max(new_token_limits(lengths, max_new_tokens, max_length, own_length))
    choices = _choices(embedding, sampler, processors, num_return_sequences, stop_ids, stop_sequences)
    checks.boolean("jit_compile", jit_compile)
    refuse_packed(model)
    run = _engine(model, embedding.pad_id).function(functools.partial(_parts, model), new, *choices, jit_compile)

    def limit(lengths):
        return ops.full_like(lengths, new) if max_length is None else ops.minimum(new, max_length - lengths)

    return run, limit


def _choices(embedding, sampler, processors, num_return_sequences, stop_ids, stop_sequences):
    """Sampler, processors, sequences for each prompt and stops, as the engine takes them."""
    sampler = get_sampler(sampler, embedding.vocab_size)
    return (
        sampler,
        check_processors(processors, embedding.vocab_size),
        check_sequences(sampler, num_return_sequences),
        stop_lists(stop_ids, stop_sequences, embedding.vocab_size),
    )


def _parts(model, width, return_hidden_states):
    return prefill_model(model, width, return_hidden_states), step_model(model, width, return_hidden_states)


def _longest(model, side, embedding):
    """The most tokens that the model has positions for, of its source or target; None: no limit."""
    return find_embedding(model, f"{side}_position_embedding", embedding).max_length


def _start_layer(model):
    return next((layer for layer in model.layers if isinstance(layer, Start)), None)


def _start_id(model):
    """The token that every target of an encoder-decoder begins with, unless the caller says another."""
    layer = _start_layer(model)
    return 1 if layer is None else layer.start_id


_ENGINES = weakref.WeakKeyDictionary()


def _engine(model, pad_id):
    """The model's engine for its active adapters; made anew where its variables are others, as after `quantize`."""
    variables, engines = _ENGINES.get(model, ([], {}))
    if len(variables) != len(model.variables) or any(a is not b for a, b in zip(variables, model.variables)):
        engines = {}
        _ENGINES[model] = model.variables, engines
    active = active_adapters(model)
    if active not in engines:
        ids_name = "target_ids" if isinstance(model, Seq2Seq) else "token_ids"
        start = _start_layer(model)
        engines[active] = Engine(ids_name, pad_id, start is not None and start.is_padding)
    return engines[active]
