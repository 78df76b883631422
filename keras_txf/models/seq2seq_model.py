"""Seq2Seq: the model of an encoder-decoder, and its `generate`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.generation.loop import bucket
from keras_txf.generation.prompts import prompt_lists, start_list
from keras_txf.generation.results import pad_rows
from keras_txf.layers.serialization import register
from keras_txf.layers.token_input import inputs_by_name, source_name, target_name, token_input
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.decoding_models import refuse_packed
from keras_txf.models.generate_calls import (
    GenerateCall,
    knows_options,
    make_function,
    other_inputs,
    run_generate,
    start_id_of,
)


@register
class Seq2Seq(CheckedModel):
    """An encoder-decoder."""

    @knows_options
    def generate(
        self,
        source_ids: Any = None,
        max_new_tokens: int | None = None,
        sampler: Any = "greedy",
        stop_ids: int | Sequence[int] | None = None,
        seed: int | None = None,
        start_id: int | Sequence[int] | None = None,
        max_length: int | None = None,
        stop_sequences: Sequence[Sequence[int]] | None = None,
        processors: Sequence[Callable] = (),
        num_return_sequences: int | None = None,
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
    ) -> Any:
        """Answers each source.

        A model from `txf.checkpoints.load` has the defaults of its `generation_config.json` instead.

        Args:
            source_ids: token ids: lists of unequal lengths, a ragged tensor, or an array (B, S) padded on
                either side. None if the source is float vectors.
            max_new_tokens: the most tokens that are generated for each source. Default without `max_length`: 64, or
                fewer if the model has no positions for 64.
            start_id: the first token of every target in training, such as the `start` of the targets' tokenizer;
                default the model's `start_id`, or else 1. Or a list of the first tokens of every answer, such as
                Whisper's tokens of the language and the task.
            max_length: the most tokens in an answer, including those of `start_id`.
            sampler, stop_ids, seed, stop_sequences, processors, num_return_sequences, padded, return_scores,
            stream, stop_strings, tokenizer, top_logprobs, assistant, draft_tokens, cache: see `Generator.generate`.
            inputs: a dict with a source of float vectors, `source_features`, (B, S, F), and optionally
                `source_features_mask`, bool (B, S).

        Returns:
            NumPy int32 (B, longest): the answers without `start_id`, padded on the right.

        Raises:
            ValueError: no source, ids outside the vocabulary, more tokens than the model has positions,
                options that do not go together.
        """
        options = GenerateCall.of(locals())
        refuse_packed(self)
        target, source = token_input(self, target_name(self)), source_name(self)
        start_ids = self._start_ids(start_id, target.vocab_size)
        if source_ids is None or source is None:
            if source_ids is not None or source is not None:
                expected = short_repr(sorted(set(inputs_by_name(self)) - {target.name}))
                raise ValueError(
                    f"`source_ids` must be given if the model reads tokens, else `inputs`: the model reads {expected}."
                )
            inputs = other_inputs(self, target.name, inputs)
            if not all(len(value) for value in inputs.values()):
                raise ValueError("`inputs` must hold at least one source; received none.")
            if len({len(value) for value in inputs.values()}) > 1:
                lengths = {name: len(value) for name, value in inputs.items()}
                raise ValueError(
                    f"`inputs` must have one row each for each source; received {short_repr(lengths)} rows."
                )
        else:
            if inputs is not None:
                raise ValueError("`inputs` does not go with `source_ids`, the only other input of the model.")
            inputs = {source: self._padded_sources(source_ids)}
        rows = len(next(iter(inputs.values())))
        return run_generate(self, target, [start_ids] * rows, [[]] * rows, inputs, options)

    def _start_ids(self, start_id, vocab_size):
        """The list of the first tokens of an answer."""
        return start_list(start_id_of(self) if start_id is None else start_id, vocab_size)

    def _padded_sources(self, source_ids):
        """Source ids (B, S), padded on the right to the model's length, or to a bucket, which compiles fewer loops."""
        source = token_input(self, source_name(self))
        sources = prompt_lists("source_ids", source_ids, source.pad_id, source.vocab_size)
        width, fixed = max(1, *map(len, sources)), inputs_by_name(self)[source.name].shape[1]
        if fixed is not None and width > fixed:
            raise ValueError(f"`source_ids` must have at most the model's {fixed} tokens; received {width}.")
        if source.pad_id is None and any(len(row) != width for row in sources):
            raise ValueError("`source_ids` must be of one length, since the model has pad_id=None.")
        if source.pad_id is not None:
            width = fixed or max(width, min(bucket(width), source.max_length or math.inf))
        return pad_rows(sources, source.pad_id or 0, width)

    @knows_options
    def make_generate_function(
        self,
        max_new_tokens: int | None = None,
        sampler: Any = "greedy",
        stop_ids: int | Sequence[int] | None = None,
        start_id: int | Sequence[int] | None = None,
        max_length: int | None = None,
        stop_sequences: Sequence[Sequence[int]] | None = None,
        processors: Sequence[Callable] = (),
        num_return_sequences: int | None = None,
        jit_compile: bool = False,
    ) -> Callable:
        """`generate` as a function of tensors, for a TensorFlow graph in which batch and lengths are unknown.

        Args:
            others: see `generate`, and `Generator.make_generate_function`.

        Returns:
            A function of `source_ids`, int32 (B, S), padded, S at least 1, and `seed`, int (2,). It returns what the
            function of `Generator.make_generate_function` returns. For a source of float vectors it takes a dict of the
            model's inputs instead of the ids.

        Raises:
            ValueError: see `generate`.
        """
        options = GenerateCall.of(locals())
        refuse_packed(self)
        target = token_input(self, target_name(self))
        start_ids = self._start_ids(start_id, target.vocab_size)
        run, limit = make_function(self, target, len(start_ids), options, jit_compile)

        def generate(source_ids, seed):
            if isinstance(source_ids, dict):
                inputs = other_inputs(self, target.name, source_ids)
            else:
                inputs = {source_name(self): ops.cast(source_ids, "int32")}
            first = next(iter(inputs.values()))
            rows = ops.shape(first)[0]
            ids = ops.broadcast_to(np.array(start_ids, "int32"), (rows, len(start_ids)))
            lengths = ops.full((rows,), len(start_ids), "int32")
            return run(ids, lengths, limit(lengths), ops.convert_to_tensor(seed), inputs)

        return generate
