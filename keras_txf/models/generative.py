"""`generative`, and the classes of functional Keras models with `generate`."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.prompts import prompt_lists, start_list
from keras_txf.generation.results import check_state
from keras_txf.layers.placeholders import InsertVectors, JoinImages, PrefixMask
from keras_txf.layers.serialization import register
from keras_txf.layers.token_input import (
    followed_input,
    id_inputs,
    inputs_by_name,
    known_target,
    series_inputs,
    target_name,
    token_input,
)
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.decoding_models import call_sequential, check_decodable, decoding_models, refuse_packed
from keras_txf.models.generate_calls import (
    GenerateCall,
    check_rows,
    knows_options,
    make_function,
    other_inputs,
    run_generate,
)
from keras_txf.models.seq2seq_model import Seq2Seq


def generative(model: keras.Model, name: str | None = None, tokens: str | None = None) -> Any:
    """Adds `generate` to a functional model: greedy search, samplers, beams, streams and scores.

    Use it for models that you wire yourself: blocks that attend to different depths of an encoder, your own layers
    between blocks, two encoders, image features as context. Decoding is derived from the graph of the model. Attention
    is called with a cache, tensors that do not depend on the new tokens are computed once, and all other layers are
    called unchanged. `forecaster` is for models of float vectors whose outputs are fed back.

    A prefix of float vectors, such as the features of an image or a soft prompt, is concatenated before the embedded
    tokens along axis 1, by `keras.layers.Concatenate` or `keras.ops.concatenate`. The length of the prefix must be
    known, and the prefix has no mask. The logits may keep the columns of the prefix, or drop them by `x[:, n:]`.

    Args:
        model: a functional `keras.Model` that takes token ids, int (B, T), and returns logits (B, T, V), alone or in a
            dict as "logits". The ids are its only integer input of that shape, the one input whose length the logits
            have, or the input named `target_ids` or `token_ids`. Layers that mix positions must read only earlier
            positions. Of this package: attention with `causal=True`, `DecoderBlock`, `CrossAttention`. Of Keras:
            `LSTM`, `GRU`, `SimpleRNN`, `RNN`, `Conv1D(padding="causal")`, `MultiHeadAttention` and
            `GroupQueryAttention` with `use_causal_mask=True`. Or your own layer whose `call` has an argument `cache`,
            see `txf.layers.Cache`. All other layers must treat each position of a sequence separately.
        name: name of the new model; default the name of `model`.
        tokens: the key or the name of the input of the ids, in a model with several inputs of ids of one length.

    Returns:
        A functional `keras.Model` with the same inputs, outputs and layers. If its only inputs are `source_ids` and
        `target_ids`, or source and target of other names and lengths, its `generate` has the arguments of
        `encoder_decoder`'s. Otherwise the first argument of `generate` is the prompt, and its argument `inputs` takes
        all other inputs, `source_ids` too.

    Raises:
        ValueError: a layer that mixes positions and cannot decode, by its name; no layer that decodes; no input of
            ids.

    Example:

    >>> ids = keras.Input((None,), dtype="int32", name="token_ids")
    >>> x = txf.layers.PositionalEmbedding(100, 32)(ids)
    >>> x = txf.layers.DecoderBlock(num_heads=4)(x)
    >>> x = keras.layers.Dense(32, activation="tanh")(x)  # a layer between blocks
    >>> x = txf.layers.DecoderBlock(num_heads=4)(x)
    >>> model = txf.models.generative(keras.Model(ids, keras.layers.Dense(100)(x)))
    >>> model.generate([[5, 6, 7]], max_new_tokens=4).shape
    (1, 7)
    """
    checks.optional(checks.string, "name", name)
    call_sequential(model, keras.Input((None,), dtype="int32", name="token_ids"))
    check_decodable(model)
    names = inputs_by_name(model)
    if tokens is not None:
        checks.one_of("tokens", tokens, sorted(names))
        if tokens in series_inputs(model):
            raise ValueError(
                f"`tokens` must name an input of token ids; received {short_repr(tokens)}, float vectors, which "
                "`txf.models.forecaster` feeds back."
            )
    ids = id_inputs(model)
    followed = followed_input(model) if len(ids) > 1 else None
    is_seq2seq = tokens in (None, "target_ids") and set(names) == {"source_ids", "target_ids"}
    is_seq2seq |= len(ids) == len(names) == 2 and followed is not None and tokens in (None, followed)
    if tokens is None and followed is not None and followed != known_target(model):
        tokens = followed
    with keras.RematScope(mode=None):
        generator = (Seq2Seq if is_seq2seq else Generator)(model.input, model.output, name=name or model.name)
    generator.tokens = tokens
    decoding_models(generator)  # raises ValueError if decoding cannot be derived
    return generator


@register
class Generator(CheckedModel):
    """A decoder-only language model."""

    @knows_options
    def generate(
        self,
        prompt_ids: Any = None,
        max_new_tokens: int | None = None,
        sampler: Any = "greedy",
        stop_ids: int | Sequence[int] | None = None,
        seed: int | None = None,
        max_length: int | None = None,
        stop_sequences: Sequence[Sequence[int]] | None = None,
        processors: Sequence[Callable] = (),
        num_return_sequences: int | None = None,
        start_id: int | Sequence[int] | None = None,
        padded: bool = True,
        return_scores: bool = False,
        stream: bool = False,
        inputs: dict[str, Any] | None = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        top_logprobs: int | None = None,
        assistant: keras.Model | None = None,
        draft_tokens: int = 4,
        cache: Any = None,
        state: Any = None,
        return_state: bool = False,
    ) -> Any:
        """Continues each prompt.

        A model from `txf.checkpoints.load` has the defaults of its `generation_config.json` instead.

        The model's padding token is never generated, because it is never a target of the losses. Exceptions: it is one
        of the stops, or `processors` leave no other token. A model from `txf.checkpoints.load` may generate it, as in
        transformers. Later tokens attend to it as to any other token.

        Args:
            prompt_ids: token ids: lists of unequal lengths, a ragged tensor, or an array (B, T) padded on
                either side. The model's padding token is removed at all positions; with pad_id=None nothing is removed.
                None: only the start token.
            max_new_tokens: the most tokens that are appended to each prompt. Default without `max_length`: 64, or fewer
                if the model has no positions for 64. Memory for all of them is allocated at the beginning.
            sampler: "greedy", "sampling", "beam", "contrastive"; with options
                `txf.generation.Sampling(...)`, `Beam(...)`, `Contrastive(...)`; or a function of logits,
                float32 (B, V), and a seed for `keras.random`, made of `keras.ops`, that returns ids (B,).
            stop_ids: a token id or several; a row ends with the first of them that it generates. The padding token may
                be generated if it is one of them.
            seed: the same seed gives the same tokens. Default: another seed for each call.
            max_length: the most tokens in a prompt and its continuation.
            stop_sequences: sequences of ids; a row ends after it has generated one of them.
            processors: functions that change the logits before a token is selected, in this order: such as
                `txf.generation.RepetitionPenalty(1.2)`, or functions of logits (R, V) and a
                `txf.generation.History` that return logits. If they forbid all tokens of a row, its ids have no meaning
                and its score is -inf. A loop is compiled for each function and each sampler: pass the same function
                again, not a new `lambda` for each call. A process keeps the 32 loops that were used last. TensorFlow
                compiles at most 128 loops by XLA, since it never frees them; later loops run slower, as graphs.
            num_return_sequences: number of sequences for each prompt: draws of a sampler, or the best beams.
                The result then has one more axis, after the batch axis.
            start_id: a token before each prompt, or a list of several tokens. The model ignores its own padding.
            padded: False returns lists of ids without padding.
            return_scores: return a `txf.generation.Scored`: also the log-probabilities of the new tokens, and the
                score of each sequence (the sum of them, or the score of the beam).
            stream: return an iterator that yields the new tokens of all rows, int32 (B,), one step at a time, with -1
                for a row that has ended.
            inputs: the other inputs of the model, such as a `context`, in a dict: arrays with one row for each prompt.
            stop_strings: a string or several; a row ends with the token that completes one of them in the text of the
                new tokens. The ids keep the string and the rest of its last token, as in transformers. The text is read
                every 8 steps, outside the compiled loop. Not for beams.
            tokenizer: for `stop_strings`: an object with `detokenize`, or a function of a list of ids that returns a
                text.
            top_logprobs: with `return_scores`, the number of most likely tokens to return for each new token, with
                their log-probabilities: a `txf.generation.ScoredWithTop`. A loop is compiled for each number.
            assistant: a smaller model with `generate`, the same vocabulary and the same inputs. It drafts tokens, and
                the model reads all of them in one step. Greedy answers do not change, and draws have the
                model's distribution ([Leviathan et al. 2023](https://arxiv.org/abs/2211.17192)). Generation is faster
                if the assistant is much smaller and often right. Best for few rows, since rows wait for each other. For
                the samplers "greedy" and "sampling".
            draft_tokens: number of tokens that the assistant drafts at a time.
            cache: how keys and values are stored: None, as the model computes them; "int8", a quarter of the memory of
                float32, see `txf.layers.Int8Cache`; or a subclass of `txf.layers.Cache` such as
                `txf.layers.SinkCache.of_size(sinks=4, window=252)`.
            state: the `state` of an earlier result. The prompts continue its sequences, and the model reads only the
                prompts. Answers, limits and `processors` refer to all tokens. A prompt may be empty. The model's other
                inputs are those of the first call.
            return_state: return a `txf.generation.WithState`: also a `state` for the next call, such as the next
                turn of a chat; max_new_tokens=0 then reads the prompts alone. A stream has an attribute `state` when it
                has ended. Not for beams, "contrastive" and `stop_strings`.

        Returns:
            NumPy int32 (B, longest): prompts and their continuations, padded on the right.

        Raises:
            ValueError: no prompt or an empty prompt, ids outside the vocabulary, more tokens than the
                model has positions, options that do not go together, a weight that is NaN or infinite (except in a
                stream).

        Example:

        >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
        >>> draws = txf.generation.Sampling(temperature=0.8, top_p=0.9)
        >>> result = model.generate([[5, 6], [7]], 4, draws, num_return_sequences=3, return_scores=True)
        >>> result.ids.shape, result.log_probs.shape, result.scores.shape
        ((2, 3, 6), (2, 3, 4), (2, 3))
        >>> model.generate([[5, 6], [7]], 4, return_scores=True, top_logprobs=5).top_ids.shape
        (2, 4, 5)
        >>> first = model.generate([[5, 6]], 4, return_state=True)
        >>> model.generate([[8, 9]], 4, state=first.state).shape  # after the four tokens of the first answer
        (1, 6)
        """
        options = GenerateCall.of(locals())
        refuse_packed(self)
        tokens = token_input(self, target_name(self))
        start_ids = [] if start_id is None else start_list(start_id, tokens.vocab_size)
        if prompt_ids is not None:
            prompt_ids = prompt_lists("prompt_ids", prompt_ids, tokens.pad_id, tokens.vocab_size)
        if state is None:
            inputs = other_inputs(self, tokens.name, self._with_prefix_length(inputs, prompt_ids, start_ids))
        elif inputs is not None:
            raise ValueError("`inputs` does not go with `state`, which keeps the inputs of the first call.")
        else:
            inputs = {}
        if prompt_ids is None and state is not None:
            prompts = [[] for _ in check_state(state).ids]
        elif prompt_ids is None:
            if start_id is None:
                raise ValueError("`prompt_ids` or `start_id` must be given; received neither.")
            prompts = [[] for _ in next(iter(inputs.values()), [[]])]
        else:
            prompts = prompt_ids
        prompts = [start_ids + prompt for prompt in prompts]
        if state is None and not all(prompts):
            raise ValueError("`prompt_ids` must hold at least one token in each prompt; received an empty one.")
        check_rows(inputs, len(prompts))
        has_images = bool(inputs) and any(isinstance(layer, JoinImages) for layer in self.layers)
        for layer in self.layers:
            if isinstance(layer, InsertVectors):
                number = inputs["images"].shape[1] * layer.group_size if has_images else None
                layer.check_counts([prompt.count(layer.placeholder_id) for prompt in prompts], number)
        return run_generate(self, tokens, prompts, prompts, inputs, options)

    def _with_prefix_length(self, inputs, prompts, start_ids):
        """The caller's `inputs`, with the lengths of the prompts for a missing `prefix_length` of a `PrefixMask`."""
        has_prefix = any(isinstance(layer, PrefixMask) for layer in self.layers)
        if not has_prefix or not isinstance(inputs, dict) or not inputs or "prefix_length" in inputs:
            return inputs
        if prompts is None:
            prompts = [[] for _ in next(iter(inputs.values()))]
        return {**inputs, "prefix_length": np.array([len(start_ids + prompt) for prompt in prompts], "int32")}

    @knows_options
    def make_generate_function(
        self,
        max_new_tokens: int | None = None,
        sampler: Any = "greedy",
        stop_ids: int | Sequence[int] | None = None,
        max_length: int | None = None,
        stop_sequences: Sequence[Sequence[int]] | None = None,
        processors: Sequence[Callable] = (),
        num_return_sequences: int | None = None,
        longest_prompt: int | None = None,
        jit_compile: bool = False,
    ) -> Callable:
        """`generate` as a function of tensors, for a TensorFlow graph in which batch and lengths are unknown.

        `txf.text.export` uses it. Sequences and scores are the same as from `generate`.

        Args:
            longest_prompt: the most tokens of a prompt. Required if the model or this call has a `max_length`.
            jit_compile: whether XLA compiles the loop, once for each batch size and each bucket of 32 tokens of the
                prompt length. Draws of your own functions equal those of `generate` only with True.
            others: see `generate`.

        Returns:
            A function of `ids`, int32 (B, P), padded on the left, P at least 1; `lengths`, int32 (B,), of the prompts;
            `seed`, int (2,); and `inputs`, the model's other inputs, in a dict. It returns the new tokens of the R
            rows, int32 (R, N), with -1 after the end; log-probabilities (R, N); and scores (R,). The sequences of one
            prompt are consecutive rows.

        Raises:
            ValueError: see `generate`.

        Example:

        >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
        >>> generate = model.make_generate_function(max_new_tokens=4)
        >>> tokens, log_probs, scores = generate(np.array([[5, 6], [0, 7]]), np.array([2, 1]), np.array([3, 0]))
        >>> tokens.shape
        (2, 4)
        """
        options = GenerateCall.of(locals())
        refuse_packed(self)
        tokens = token_input(self, target_name(self))
        run, limit = make_function(self, tokens, longest_prompt, options, jit_compile)

        def generate(ids, lengths, seed, inputs=None):
            ids, lengths = ops.cast(ids, "int32"), ops.cast(lengths, "int32")
            return run(
                ids, lengths, limit(lengths), ops.convert_to_tensor(seed), other_inputs(self, tokens.name, inputs)
            )

        return generate


@register
class ContextDecoder(Generator):
    """A decoder with a context that may have a Keras mask. Its logits have the mask of the target ids, if any."""

    supports_masking = True

    def __call__(self, inputs, *args, **kwargs):
        # Keras does not accept arrays together with tensors, such as ids in an array and a context as a tensor.
        def convert(x):
            return ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x

        return super().__call__(keras.tree.map_structure(convert, inputs), *args, **kwargs)
