"""The options of a model's `generate` that other functions pass on to it; see `layers.shown_options`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict


class AnswerOptions(TypedDict, total=False):
    """Options of `generate` that keep the form of its result."""

    stop_ids: Annotated[int | Sequence[int] | None, None, "a token id or several; an answer ends with the first."]
    stop_sequences: Annotated[Sequence[Sequence[int]] | None, None, "sequences of ids; an answer ends after one."]
    seed: Annotated[int | None, None, "the same seed gives the same answers. Default: other ones each time."]
    start_id: Annotated[
        int | Sequence[int] | None, None, "the token that the answers, or the prompts, begin with, or several."
    ]
    max_length: Annotated[int | None, None, "at most so many tokens in an answer, and in the prompt before it."]
    processors: Annotated[
        Sequence[Callable],
        (),
        "what is done to the logits before a token is chosen, such as `txf.generation.RepetitionPenalty(1.2)`.",
    ]


class TextOptions(AnswerOptions, total=False):
    """Options of `generate` in functions that return texts."""

    stop_strings: Annotated[
        str | Sequence[str] | None,
        None,
        "a string or several; an answer ends before the first of them, whatever tokens it is split into, and a stream "
        "shows no part of it. The prompt may hold them. Not for beams.",
    ]


class GenerateOptions(AnswerOptions, total=False):
    """Options of `generate` with the number of new tokens and the sampler."""

    max_new_tokens: Annotated[int | None, None, "at most so many tokens are generated."]
    sampler: Annotated[
        Any,
        "greedy",
        '"greedy", "sampling", "beam" or "contrastive"; or a sampler with options, such as `txf.generation.Beam(4)`.',
    ]


class ExportOptions(GenerateOptions, total=False):
    """Options of `generate` in a SavedModel."""

    num_return_sequences: Annotated[
        int | None, None, "how many sequences for each text: `text` and `scores` are then (B, number)."
    ]
    jit_compile: Annotated[
        bool,
        False,
        "whether XLA compiles the loop, which takes seconds for each new size of batch and each 32 tokens of prompt "
        "more, and makes it up to three times as fast, most where the batch is one.",
    ]
