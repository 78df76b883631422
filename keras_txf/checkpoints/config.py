"""The `config.json` of a checkpoint: which keys are read, which are ignored, and which raise errors.

A test compares the families with transformers: each key that a family's class there declares is read, or stands in
`NEUTRAL`, `FIXED` or the family's `neutral`. Any other key is unknown to that class. `Config.check_all_known` raises
ValueError if such a key has a meaning for some model, by `transformers_keys` and `OF_OTHER_CODE`, or if the folder
brings its own code, which may read the key. A key that no class knows cannot change the outputs of transformers, and
null has no effect: such keys are ignored.
"""

import contextlib
import functools
import json
import pathlib
import warnings

from keras_txf.checkpoints.config_schema import NULL, VALUE_CHECKS
from keras_txf.checks import short_repr

DATA = pathlib.Path(__file__).with_name("data")  # tests/checkpoints/make_transformers_keys.py writes the files

# Keys without an effect on the outputs of a model.
NEUTRAL = {
    # origin
    "_name_or_path", "_commit_hash", "architectures", "auto_map", "model_type", "transformers_version", "dtype",
    "torch_dtype", "torchscript", "name_or_path", "_attn_implementation", "_attn_implementation_internal",
    "attn_implementation", "_attn_implementation_autoset", "unsloth_fixed", "unsloth_version", "transformers.js_config",
    "is_llama_config",
    # initialisation and training
    "initializer_range", "initializer_factor", "init_std", "initializer_cutoff_factor", "gradient_checkpointing",
    # results of a call, and how it is divided
    "use_cache", "pretraining_tp", "output_attentions", "output_hidden_states", "output_past", "return_dict",
    "return_dict_in_generate", "chunk_size_feed_forward", "use_return_dict", "output_scores", "cache_implementation",
    # tokens, and options of `generate`
    "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id", "unk_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids", "task_specific_params", "max_length",
    "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
    "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values", "prefix", "tokenizer_class",
    "force_bos_token_to_be_generated", "save_step", "vocab_file", "language", "max_new_tokens", "min_new_tokens",
    "min_p", "top_h", "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "encoder_repetition_penalty", "sequence_bias",
    "guidance_scale", "renormalize_logits", "force_words_ids", "constraints", "stop_strings", "max_time",
    # names of classes, and the loss
    "id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task",
    "sbert_ce_default_activation_function", "sentence_transformers", "tf_legacy_loss",
}  # fmt: skip
# Keys that change a model in other code than transformers, such as vLLM.
OF_OTHER_CODE = {"dual_chunk_attention_config", "use_dynamic_ntk", "use_logn_attn", "logn_attn", "alibi_bias_max"}
# Keys with the values that the builders support.
FIXED = {
    "is_decoder": (False,), "add_cross_attention": (False,), "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None), "quantization_config": (None,), "tie_encoder_decoder": (False,),
    "use_bfloat16": (False, None), "position_embedding_type": ("absolute", None), "use_mrope": (False,),
    "rope_interleaved": (False,), "is_encoder_decoder": (False,),
}  # fmt: skip
REQUIRED = object()

ACTIVATIONS = {  # Hugging Face's name -> ours
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "quick_gelu": "gelu_sigmoid", "relu": "relu", "silu": "silu", "swish": "silu",
    "tanh": "tanh", "sigmoid": "sigmoid", "mish": "mish", "relu6": "relu6", "elu": "elu", "linear": "linear",
}  # fmt: skip


@functools.cache
def transformers_keys():
    """Returns the keys that classes of transformers declare, or that its code reads without a declaration."""
    return frozenset(json.loads((DATA / "transformers_keys.json").read_text(encoding="utf-8"))["keys"])


@functools.cache
def transformers_defaults():
    """Returns two tables of the classes of transformers, in a dict.

    "defaults" has, by `model_type`, the defaults of keys that differ from the defaults in our tables. "synonyms" has,
    by `model_type`, other names of keys that a file may use -> the names that the class declares.
    """
    return json.loads((DATA / "transformers_defaults.json").read_text(encoding="utf-8"))


class Config:
    """The values of a `config.json`. Records the keys that were read, with their values or defaults.

    Args:
        values: dict, as in the file.
        path: path of the values in the file, such as "text_config.".
    """

    def __init__(self, values, path=""):
        kind = values.get("model_type") if isinstance(values.get("model_type"), str) else None
        self.class_defaults = transformers_defaults()["defaults"].get(kind, {})
        self.synonyms = transformers_defaults()["synonyms"].get(kind, {})
        self.values = with_own_names(values, self.synonyms)
        self.path, self.kind = path, kind
        self.place = f"{path.rstrip('.')} of config.json" if path else "config.json"
        self.read, self.parts, self.unread, self.checks_values = {}, {}, {}, True

    def __call__(self, key, default=REQUIRED):
        """Returns the checked value of a key; null is allowed if the default is None or `NULL` has the key."""
        default = default if key in self.values else self.class_defaults.get(key, default)
        value = self.read[key] = self.values.get(key, default)
        if value is REQUIRED:
            raise ValueError(f"{self.place} must have {short_repr(key)}; received {short_repr(sorted(self.values))}.")
        may_be_null = default is None or key in NULL
        if key in VALUE_CHECKS and key in self.values and not (value is None and may_be_null):
            try:
                VALUE_CHECKS[key](key, value)
            except ValueError as error:
                raise ValueError(f"{self.place}: {error}") from None
        return value

    def part(self, key, kind=None):
        """Returns the `Config` of one of the models that a file describes under its own key, such as "text_config".

        `kind` is its `model_type`; default: made of the model's own and the key, such as "clip_text_model".

        If present, `text_config_dict` (CLIP's first files) overrides `text_config`.
        """
        if key not in self.parts:
            older, values = self(f"{key}_dict", None), self(key, None)
            path, values = (key, values) if older is None else (f"{key}_dict", older)
            kind = kind or f"{self.values['model_type']}_{key.removesuffix('_config')}_model"
            self.parts[key] = type(self)({**(values or {}), "model_type": kind}, f"{path}.")
        return self.parts[key]

    def only(self, key, *allowed, hint=""):
        """Raises ValueError if a key has a value that is not in `allowed`; the default is the first of them.

        `hint` ends the message.
        """
        if self(key, allowed[0]) not in allowed and self.checks_values:
            raise ValueError(
                f"{self.place} must have {short_repr(key)} in {list(allowed)}, for which there is a model; received "
                f"{short_repr(self(key))}.{hint}"
            )

    def not_read(self, key, *harmless):
        """Raises ValueError for a key that the class in transformers ignores, unless its value is harmless or null."""
        self.only(key, *harmless, None, hint=self.ignore_hint([key]))

    def activation(self, key, default=REQUIRED):
        """Returns our name of the activation under a key."""
        return self.as_activation(key, self(key, default))

    def as_activation(self, key, name):
        """Returns our name of an activation; the message names `key`."""
        if name not in ACTIVATIONS and self.checks_values:
            raise ValueError(
                f"{self.place} must have {short_repr(key)} in {sorted(ACTIVATIONS)}; received {short_repr(name)}."
            )
        return ACTIVATIONS.get(name)

    def each(self, key, number, default=None, allowed=None):
        """Returns the list under a key, one value for each block; `allowed` holds the values that it may have."""
        values = self(key, None)
        values = default if values is None else values
        if not isinstance(values, list) or len(values) < number:
            raise ValueError(
                f"{self.place} must have a list of {number} values for {short_repr(key)}; received "
                f"{short_repr(values)}."
            )
        unknown = [] if allowed is None else sorted(set(values[:number]) - set(allowed))
        if unknown:
            raise ValueError(
                f"{self.place} must have {short_repr(key)} of {short_repr([*allowed])}; received {short_repr(unknown)}."
            )
        return values[:number]

    def pad_id(self, default):
        """Returns the id of padding; None for null and for the -1 of early Llamas."""
        value = self("pad_token_id", default)
        return None if value == -1 else value

    def pad_id_of_decoder(self, default):
        """Returns the id of padding; None also if it ends texts, because transformers attends to such a token."""
        value, ends = self.pad_id(default), self("eos_token_id", None)
        return None if value in (ends if isinstance(ends, list) else [ends]) else value

    def end_id(self, default):
        """Returns the id of the token that ends a text."""
        return self("eos_token_id", default)

    def num_classes(self):
        """Returns the number of classes of a classifier."""
        labels = self("id2label", None)
        if labels == {}:
            raise ValueError("config.json must have at least one class in 'id2label'; received {}.")
        return self("num_labels", 2) if labels is None else len(labels)

    def note_unread(self, values):
        """Records values that the class in transformers does not read: dict of paths in config.json -> values."""
        self.unread.update(values)

    @contextlib.contextmanager
    def without_checks(self):
        """A scope for the keys of a head that is not built: their values need not be supported."""
        self.checks_values = False
        try:
            yield
        finally:
            self.checks_values = True

    def check_all_known(self, neutral):
        """Raises ValueError for unsupported values, and for unknown keys that may change the model; warns of others."""
        for key, allowed in FIXED.items():
            if key not in self.read and key not in neutral:
                self.only(key, *allowed, hint=self.ignore_hint([key]))
        unknown = self.values.keys() - self.read.keys() - NEUTRAL - set(neutral) - self.synonyms.keys()
        own_code = any(word in str(self.values.get("auto_map")) for word in ("AutoConfig", "AutoModel"))
        with_meaning = unknown if own_code else unknown & (transformers_keys() | VALUE_CHECKS.keys() | OF_OTHER_CODE)
        refused = sorted(key for key in with_meaning if self.values[key] is not None)
        if refused:
            code = ", or that the folder's own code (`auto_map`) may read" if own_code else ""
            raise ValueError(
                f"{self.place} has keys that change some models{code}, so what they ask for would be missing: "
                f"{short_repr({key: self.values[key] for key in refused})}.{self.ignore_hint(refused)}"
            )
        unread = {**{key: self.values[key] for key in sorted(unknown)}, **self.unread}
        if unread:
            warnings.warn(
                f"{self.place} has keys that its class in transformers does not read; they are ignored: "
                f"{short_repr(unread)}.",
                stacklevel=6,  # the caller of `load`
            )

    def ignore_hint(self, keys):
        """Returns the end of an error message, which says how to leave keys out."""
        keys = [f"{self.path}{key}" for key in keys]
        return f" `txf.checkpoints.load(..., ignore={short_repr(keys)})` loads the folder as if it had no such key."


def with_own_names(values, synonyms):
    """Returns the values with the family's own key for each synonym that transformers reads.

    If a file has both keys, the synonym counts, as in transformers. The number of BART's blocks is an exception:
    transformers 4 wrote its synonym without reading it.
    """
    found = dict(values)
    for other, own in synonyms.items():
        if values.get(other) is not None and (own not in values or own != "encoder_layers"):
            found[own] = values[other]
    return found


def drop_keys(values, ignore):
    """Returns the values of config.json without the keys that the caller ignores."""
    if not isinstance(ignore, (list, tuple, set)) or not all(isinstance(key, str) for key in ignore):
        raise ValueError(f"`ignore` must be a list of keys of config.json; received {short_repr(ignore)}.")
    missing = []
    for key in ignore:
        values, found = _drop_key(values, key)
        missing += [] if found else [key]
    if missing:
        raise ValueError(f"`ignore` must name keys of config.json; received {short_repr(missing)}, which are missing.")
    return values


def _drop_key(values, key):
    """Returns the values without a key, such as "a" or "rope_scaling.a", and whether the key was there."""
    outer, dot, inner = key.partition(".")
    if key in values or not dot or not isinstance(values.get(outer), dict):
        return {name: value for name, value in values.items() if name != key}, key in values
    rest, found = _drop_key(values[outer], inner)
    return {**values, outer: rest}, found
