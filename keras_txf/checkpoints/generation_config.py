"""`generation_config.json` as defaults of a model's `generate`.

A folder without that file has the same keys in `config.json`, as transformers reads them. Keys that are missing or null
have transformers' defaults, except for the number of new tokens.
"""

import dataclasses
import warnings

from keras_txf.checks import short_repr
from keras_txf.disk import file_of, read_json
from keras_txf.generation import (
    Beam,
    ForbiddenTokens,
    ForcedTokens,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
)
from keras_txf.generation.option_tables import set_generate_defaults
from keras_txf.generation.prompts import string_list
from keras_txf.generation.samplers import check_stop_strings
from keras_txf.layers.token_input import target_name, token_input

NAME = "generation_config.json"
# Options of transformers' `generate` that have no counterpart here -> the values that do nothing.
WITHOUT_COUNTERPART = {
    "num_return_sequences": (1,), "num_beam_groups": (1,), "diversity_penalty": (0,), "penalty_alpha": (0,),
    "encoder_repetition_penalty": (1,), "encoder_no_repeat_ngram_size": (0,), "exponential_decay_length_penalty": (),
    "sequence_bias": (), "guidance_scale": (1,), "watermarking_config": (),
    "force_words_ids": (), "constraints": (), "renormalize_logits": (False,), "max_time": (),
    "dola_layers": (), "token_healing": (False,), "return_timestamps": (False,),
}  # fmt: skip
OF_SAMPLING = {"typical_p": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": ()}
NO_LIMIT = 20  # the `max_length` that transformers reads as no limit
NEW_TOKENS = 64  # number of new tokens of `generate` without a limit


@dataclasses.dataclass(frozen=True)
class GenerateDefaults:
    """The defaults of one model, as a function of the options that a caller gives.

    Args:
        options: options of `generate`.
        processors: processors that run before the forced last token.
        last_id: the token that is forced at the largest number of tokens, or None.
        later: processors that run after the forced last token.
        positions: the largest number of tokens that the model takes, or None.
    """

    options: dict
    processors: tuple = ()
    last_id: int | None = None
    later: tuple = ()
    positions: int | None = None

    def __call__(self, given):
        limits = ("max_new_tokens", "max_length")
        found = {**self.options, **given}
        if any(name in given for name in limits):
            found = {name: value for name, value in found.items() if name not in limits or name in given}
        elif self.positions is not None and any(name in found for name in limits):
            found["max_length"] = min(found.get("max_length", self.positions), self.positions)
        if "processors" not in given:
            found["processors"] = (*self.processors, *self._last(found), *self.later)
        return found

    def _last(self, found):
        """Returns the processor that forces the last token; only the start tokens precede the new tokens."""
        if self.last_id is None:
            return ()
        start = found.get("start_id")
        before = len(start) if isinstance(start, (list, tuple)) else 1
        limits = [found["max_new_tokens"]] if "max_new_tokens" in found else []
        limits += [found["max_length"] - before] if "max_length" in found else []
        return (ForcedTokens({min(limits, default=NEW_TOKENS) - 1: self.last_id}),)


def load_generate_defaults(model, folder, config):
    """Sets the defaults of a model's `generate` from its folder; warns of keys that `generate` does not support."""
    if not hasattr(model, "generate"):
        return
    path = file_of(folder, NAME) if folder else None
    values = read_json(path) if path is not None and path.is_file() else config
    reader = _Reader(values, token_input(model, target_name(model)), target_name(model) == "target_ids")
    defaults = reader.defaults()
    if reader.unknown:
        warnings.warn(
            f"{NAME if values is not config else 'config.json'} asks `generate` for options that it lacks; answers may "
            f"differ from the answers of transformers: {short_repr({key: values[key] for key in reader.unknown})}.",
            stacklevel=3,  # the caller of `load`
        )
    set_generate_defaults(model, defaults)


class _Reader:
    """Reads the values of a `generation_config.json`.

    Args:
        values: dict, as in the file.
        tokens: `TokenInput` of the new tokens.
        after_start: whether the new tokens follow a start token alone, as in an encoder-decoder.
    """

    def __init__(self, values, tokens, after_start):
        self.values, self.tokens, self.after_start = values, tokens, after_start
        self.unknown = []

    def __call__(self, key, default=None):
        value = self.values.get(key)
        return default if value is None else value

    def express(self, keys, make):
        """Returns the result of `make`; if `make` raises for the values, None, and the warning names the keys."""
        try:
            return make()
        except (ValueError, TypeError):
            self.unknown += [key for key in keys if self(key) is not None]
            return None

    def is_id(self, token):
        return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < self.tokens.vocab_size

    def defaults(self):
        ends = self("eos_token_id", [])
        ends = [token for token in (ends if isinstance(ends, list) else [ends]) if self.is_id(token)]
        options = {"sampler": self.sampler()}
        if ends:
            options["stop_ids"] = tuple(ends)
        stop_strings = self.express(["stop_strings"], lambda: self.stop_strings(options["sampler"]))
        if stop_strings:
            options["stop_strings"] = stop_strings
        chosen = self.start(options)
        for name, free in (("max_new_tokens", None), ("max_length", NO_LIMIT)):
            if isinstance(value := self(name), int) and value > 0 and value != free:
                options[name] = value
        if "max_new_tokens" in options:  # as in transformers
            options.pop("max_length", None)
        self.note_unsupported(WITHOUT_COUNTERPART)
        last = self.single("forced_eos_token_id")
        before, first = self.processors(ends), len(chosen) + (self("forced_bos_token_id") is not None)
        later = [*self.forbidden("suppress_tokens", []), *self.forbidden("begin_suppress_tokens", [], (first,))]
        later += [ForcedTokens(dict(enumerate(chosen)))] if chosen else []
        return GenerateDefaults(options, before, last, tuple(later), self.tokens.max_length)

    def start(self, options):
        """Sets `start_id`; returns the first tokens of every answer from the one that the model chooses."""
        start = self("decoder_start_token_id", self("bos_token_id"))
        if not self.after_start or not self.is_id(start):
            self.unknown += ["forced_decoder_ids"] * (self("forced_decoder_ids") is not None)
            return []
        keys = ("forced_decoder_ids", "language", "task", "lang_to_id", "task_to_id", "no_timestamps_token_id")
        tokens = self.express(keys, lambda: self.check_ids(start_tokens(self.values, start))) or [start]
        chosen = [index for index, token in enumerate(tokens) if isinstance(token, list)]
        first = chosen[0] if chosen else len(tokens)
        options["start_id"] = tuple(tokens[:first]) if first > 1 else start
        return tokens[first:]

    def check_ids(self, tokens):
        """Raises ValueError if a token is neither an id nor a list of ids."""
        for token in tokens:
            if not all(map(self.is_id, token if isinstance(token, list) else [token])):
                raise ValueError(f"A token must be one of the vocabulary; received {short_repr(token)}.")
        return tokens

    def note_unsupported(self, table):
        self.unknown += [key for key, harmless in table.items() if self(key) is not None and self(key) not in harmless]

    def sampler(self):
        beams, draws = self("num_beams", 1), self("do_sample", False)
        if draws and beams != 1:
            self.unknown += ["do_sample"]
        if beams != 1:
            keys = ("num_beams", "length_penalty", "early_stopping")
            return self.express(keys, lambda: Beam(beams, self(keys[1], 1.0), self(keys[2], False))) or "greedy"
        if not draws:
            return "greedy"
        self.note_unsupported(OF_SAMPLING)
        keys = ("temperature", "top_k", "top_p", "min_p")
        top_p = self("top_p", 1.0)
        return (
            self.express(
                keys,
                lambda: Sampling(
                    self("temperature", 1.0), self("top_k", 50) or None, top_p if top_p < 1 else None, self("min_p")
                ),
            )
            or "greedy"
        )

    def stop_strings(self, sampler):
        """Returns the stop strings; raises ValueError for beams, which do not support them."""
        strings = string_list(self("stop_strings"))
        check_stop_strings(sampler, strings)
        return tuple(strings)

    def processors(self, ends):
        """Returns the processors in the order of transformers."""
        found = []
        for key, neutral, make in (
            ("repetition_penalty", 1, RepetitionPenalty),
            ("no_repeat_ngram_size", 0, NoRepeatNgrams),
        ):
            if self(key, neutral) != neutral:
                found.append(self.express([key], lambda make=make, key=key: make(self(key))))
        found += self.forbidden("bad_words_ids", ends)
        if ends:
            found += self.shortest()
        first = self.single("forced_bos_token_id")
        if first is not None:
            found.append(ForcedTokens({0: first}))
        return tuple(processor for processor in found if processor is not None)

    def forbidden(self, key, ends, positions=None):
        """Forbids tokens or sequences, except single tokens that end a text. Ids beyond the vocabulary are left out."""
        rows = self.express([key], lambda: [row if isinstance(row, list) else [row] for row in self(key, [])]) or []
        rows = [row for row in rows if all(map(self.is_id, row)) and row not in [[end] for end in ends]]
        return (ForbiddenTokens(rows, positions),) if rows else ()

    def shortest(self):
        lengths = {"min_length": self("min_length", 0), "min_new_tokens": self("min_new_tokens", 0)}
        if lengths["min_length"] and not self.after_start:
            self.unknown.append("min_length")  # the key counts the tokens of the prompt too
            lengths["min_length"] = 0
        elif lengths["min_length"]:
            lengths["min_length"] -= 1
        return [
            self.express([key], lambda length=length: MinimumLength(length))
            for key, length in lengths.items()
            if length
        ]

    def single(self, key):
        """Returns the token that is forced at the first or last position of an answer."""
        value = self(key)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if value is None or (self.after_start and self.is_id(value)):
            return value
        self.unknown.append(key)
        return None


def start_tokens(values, start):
    """Returns the first tokens of every answer; a list of tokens stands for one that the model chooses.

    Whisper's answers start with a language, a task, and whether there are timestamps.

    Args:
        values: values of a `generation_config.json`. Without the keys that are read here the result is `[start]`.
        start: the start token.

    Raises:
        ValueError, TypeError: tokens forced at positions that leave a gap; a language or a task without a token; values
            of other types.
    """
    languages, tasks = (_table(values, key) for key in ("lang_to_id", "task_to_id"))
    # Without these tables the keys have a different meaning.
    language, task = values.get("language") if languages else None, values.get("task") if tasks else None
    tokens = [start]
    if language is None and task is None:
        tokens += _forced(values.get("forced_decoder_ids") or [])
    if language is not None:
        tokens.append(_token(languages, language if language in languages else f"<|{language}|>"))
        task = "transcribe" if task is None and tasks else task
    elif languages and tokens[1:2] in ([], [None]):
        tokens[1:2] = [sorted(languages.values())]
    if task is not None:
        tokens.append(_token(tasks, task))
    without_times = values.get("no_timestamps_token_id")
    if without_times is not None and not values.get("return_timestamps") and tokens[-1] != without_times:
        tokens.append(without_times)
    return [token for token in tokens if token is not None]


def _forced(pairs):
    if [position for position, _ in pairs] != list(range(1, len(pairs) + 1)):
        raise ValueError(
            f"`forced_decoder_ids` must force the tokens from 1 on, without a gap; received {short_repr(pairs)}."
        )
    return [token for _, token in pairs]


def _table(values, key):
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise ValueError(f"`{key}` must be a JSON object; received {short_repr(table)}.")
    return table


def _token(table, name):
    if name not in table:
        raise ValueError(f"A token of {short_repr(name)} must be among {short_repr(sorted(table))}.")
    return table[name]
