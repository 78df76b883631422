"""Names of options, where an option of a part belongs, and which options need or exclude each other."""

import difflib
from typing import NamedTuple

from keras_txf.checks.values import short_repr

# Names of Hugging Face and of Keras -> our names of the same options.
OTHER_NAMES = {
    "hidden_dropout_prob": "dropout", "torch_dtype": "dtype",
    "num_labels": "num_classes", "hidden_size": "dim", "num_hidden_layers": "num_layers", "hidden_act": "activation",
    "num_attention_heads": "num_heads", "intermediate_size": "intermediate_dim", "pad_token_id": "pad_id",
    "max_position_embeddings": "max_length", "key_dim": "head_dim", "sliding_window": "window",
    "tie_word_embeddings": "tie_embeddings", "type_vocab_size": "token_types", "layer_norm_eps": "norm_epsilon",
    "rms_norm_eps": "norm_epsilon", "eos_token_id": "stop_ids", "decoder_start_token_id": "start_id",
    "forced_bos_token_id": "start_id", "language": "start_id", "forced_decoder_ids": "start_id",
    "repetition_penalty": "processors", "no_repeat_ngram_size": "processors", "bad_words_ids": "processors",
    "min_new_tokens": "processors", "suppress_tokens": "processors", "min_length": "processors", "do_sample": "sampler",
    "num_kv_heads": "num_key_value_heads", "ff_dim": "intermediate_dim", "hidden_dim": "intermediate_dim",
    "mlp_dim": "intermediate_dim", "embed_dim": "dim",
}  # fmt: skip

# Options of parts -> how a block or builder receives them. `layers/option_tables.py` adds the options of attention.
ATTENTION = "attention=MultiHeadSelfAttention(num_heads, {}=...) instead of `num_heads`, in a decoder with causal=True"
EMBEDDING = "embedding=PositionalEmbedding(..., {}=...)"
OF_PARTS = {
    "attention_probs_dropout_prob": ATTENTION.format("dropout"),
    "attention_dropout": ATTENTION.format("dropout"),
    "attention_bias": ATTENTION.format("use_bias"),
    "feed_forward_dropout": "feed_forward=FeedForward(..., dropout=...)",
    "feed_forward_bias": "feed_forward=FeedForward(..., use_bias=...)",
    "stochastic_depth": "residual=Residual(stochastic_depth=...)",
    "layer_scale": "residual=Residual(layer_scale=...)",
    "residual_scale": "residual=Residual(scale=...)",
    "logit_scale": "logit_adjustment=LogitAdjustment(scale=...)",
    "logit_bias": "logit_adjustment=LogitAdjustment(use_bias=...)",
    "final_logit_soft_cap": "logit_adjustment=LogitAdjustment(soft_cap=...)",
    "embedding_dim": "embedding=PositionalEmbedding(vocab_size, embedding_dim)",
    "embedding_dropout": EMBEDDING.format("dropout"),
    "input_embedding": "embedding=AudioEmbedding(...)",
    "num_experts": "feed_forward=MixtureOfExperts(num_experts)",
    "rope_theta": "position=Rotary(rope_theta)",
    "soft_cap": ATTENTION.format("logit_soft_cap"),
    **dict.fromkeys(("head_activation", "head_norm", "head_bias"), "head=, an activation or a layer"),
    **dict.fromkeys(("combine", "position_dim", "token_dim", "embeddings_initializer"), EMBEDDING),
}
SCOPES = {"rematerialize": 'keras.RematScope(mode="full")'}  # scopes of Keras that do what an option would


def known_names(kind, names, known, hints=()):
    """Raises ValueError for an unknown option name, and offers the nearest known one.

    A builder has too many options to list. `hints` are further names to offer, which the caller takes elsewhere.
    """
    for name in names:
        if name not in known:
            if name in SCOPES:
                raise ValueError(f"{short_repr(name)} is not {kind}. Build the model inside `with {SCOPES[name]}:`.")
            part = OF_PARTS.get(name, "").format(name)
            if part and part.partition("=")[0] in known:
                raise ValueError(f"{short_repr(name)} is not {kind}, but of one of its parts: pass {part}.")
            others = [x for x in (*known, *hints) if x != name]
            near = (
                [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in others else difflib.get_close_matches(name, others, 1)
            )
            hint = f" Did you mean {short_repr(near[0])}?" if near else ""
            options = f"Known: {sorted(known)}." if len(known) <= 24 else "Its docstring lists all."
            raise ValueError(f"{short_repr(name)} is not {kind}.{hint} {options}")


SET = "set"  # neither None nor False nor 0
UNSET = "not set"


class Rule(NamedTuple):
    """If `option` has one of `values`, `other` must have one of `needed`. Both are SET, UNSET or a tuple of values."""

    option: str
    values: object
    other: str
    needed: object
    reason: str


RULES = {
    "attention": [Rule("output_projection", (False,), "output_bias", (None,), "no projection would have the bias")],
    "MixtureOfExperts": [
        Rule("shared_gate", SET, "num_shared_experts", SET, "the gate weights the shared experts"),
        Rule("shared_intermediate_dim", SET, "num_shared_experts", SET, "it is the width of the shared experts"),
        Rule("topk_group", SET, "n_group", SET, "it counts groups"),
    ],
    "PatchEmbedding": [
        Rule("distillation_token", SET, "class_token", SET, "it follows the class token"),
        Rule("position_encoding", ("learned", "fixed"), "image_size", SET, "its patches have positions"),
        Rule("interpolate_positions", SET, "position_encoding", ("learned",), "only learned positions have a grid"),
    ],
    "PositionalEmbedding": [
        Rule("position_encoding", ("learned", "fixed"), "max_length", SET, "it is the number of positions"),
        Rule("vocab_size", UNSET, "position_encoding", SET, "the layer returns positions only"),
        Rule("vocab_size", UNSET, "combine", ("add",), "the layer returns positions only"),
        Rule("vocab_size", UNSET, "token_dim", UNSET, "there are no tokens"),
        Rule("vocab_size", UNSET, "token_types", UNSET, "there are no tokens"),
        Rule("vocab_size", UNSET, "scale", UNSET, "there are no tokens"),
        Rule("combine", ("concat",), "position_encoding", SET, "there is nothing else to concatenate"),
        Rule("combine", ("concat",), "token_dim", UNSET, "the tokens have `dim` - `position_dim` features"),
        Rule("position_dim", SET, "combine", ("concat",), "under 'add' the positions have `dim` features"),
    ],
}


def combinations(layer, rules):
    """Raises ValueError if two options of a layer break one of the `RULES` of a name."""
    for option, values, other, needed, reason in RULES[rules]:
        value, received = getattr(layer, option), getattr(layer, other)
        if _is(value, values) and not _is(received, needed):
            expected = {SET: f"needs `{other}`", UNSET: f"does not go with `{other}`"}
            words = expected.get(needed) if isinstance(needed, str) else f"needs {other}={short_repr(needed[0])}"
            raise ValueError(
                f"{option}={short_repr(value)} {words}: {reason}; received {other}={short_repr(received)}."
            )


def _is(value, expected):
    if isinstance(expected, str):
        return bool(value) == (expected == SET)
    return value in expected
